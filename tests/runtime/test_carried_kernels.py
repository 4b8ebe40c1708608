"""`inspect --kernels`: the fused kernels that a file carries, with their places, plans and
programs."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from mugraphs import Pair, kernel, leaf
from typer.testing import CliRunner

from taso_mirage.cli.commands import app
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, variable
from taso_mirage.onnx_io import load, save
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.files import load_as_data
from taso_mirage.onnx_io.kernels import DOMAIN, carried_kernels
from taso_mirage.operators.ops import term
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import PlannedNode, cpu_kernel


def gelu_of_sum(rows: int = 6, inner: int = 5) -> Pair:
    """gelu(X + b), as a muGraph of one kernel and as operators."""
    x, b = leaf("X", "float32", rows, inner), leaf("b", "float32", inner)

    def body(x: Node, b: Node) -> Node:
        return term("gelu", term("add", x, b))

    made = kernel([(x, (0,), -1), (b, (-1,), -1)], body, (3,), 1, (0,))
    return Graph((x, b), (made,)), Graph((x, b), (body(x, b),))


def twice(folder: Path) -> tuple[Path, PlannedNode]:
    """A model that has the kernel in two places."""
    graph, goal = gelu_of_sum()
    x, b = goal.inputs
    (first,) = goal.outputs
    (second,) = substitute(goal.outputs, {x: term("exp", first)})
    planned = cpu_kernel(graph)
    regions = [EmbeddedRegion.of(goal, (term("exp", first), b), planned), EmbeddedRegion.of(goal, (x, b), planned)]
    path = folder / "twice.onnx"
    save(embed(standalone(Graph((x, b), (term("relu", second),)), {"": 20}), regions), path)
    return path, planned


def test_an_output_that_a_kernel_computes_keeps_its_metadata(tmp_path: Path) -> None:
    """The kernel is replaced by its operators, as `verify` reads a file."""
    graph, goal = gelu_of_sum()
    region = EmbeddedRegion.of(goal, goal.inputs, cpu_kernel(graph))
    path = tmp_path / "last.onnx"
    save(embed(standalone(goal, {"": 20}), [region]), path)
    proto = onnx.load(path)
    assert proto.graph.node[-1].domain == DOMAIN
    proto.graph.output[0].doc_string = "what it is"
    proto.graph.output[0].metadata_props.add(key="kind", value="USER_OUTPUT")
    onnx.save(proto, path)
    (output,) = load(path).header.graph.outputs
    assert (output.doc_string, dict(output.metadata_props)) == ("what it is", {"kind": "USER_OUTPUT"})


def inspected(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_kernel_is_shown_once_with_its_places_plan_and_program(tmp_path: Path) -> None:
    path, planned = twice(tmp_path)
    (row,) = json.loads(inspected(path, "--kernels", "--json"))["kernels"]
    assert (row["name"], row["target"], row["operators"]) == ("CpuKernel0", "cpu", ["Add", "Gelu"])
    assert len(row["places"]) == 2
    assert row["plan"] == planned.plan
    assert row["source"] == planned.source
    text = inspected(path, "--kernels")
    assert "1 fused kernel" in text
    assert "CpuKernel0 (cpu): Add Gelu" in text
    assert f"        entry {planned.entry}" in text
    assert "parallel_for" in text
    assert "kernels" not in json.loads(inspected(path, "--json"))


def test_a_kernel_at_some_sizes_alone_has_the_operators_of_both_branches(tmp_path: Path) -> None:
    graph, goal = gelu_of_sum()
    b = goal.inputs[1]
    x = variable("x", Tensor("float32", (symbol("n"), 5)))
    free = term("gelu", term("add", x, b))
    region = EmbeddedRegion((x, b), (free,), cpu_kernel(graph))
    path = tmp_path / "free.onnx"
    save(embed(standalone(Graph((x, b), (term("relu", free),)), {"": 20}), [region], {"n": 6}), path)
    (found,) = carried_kernels(load_as_data(path).header)
    assert found.operators == ("Add", "Gelu")
    assert len(found.places) == 1
    assert found.plan == region.kernel.plan
    assert found.source == region.kernel.source


def test_a_model_without_kernels_has_none(tmp_path: Path) -> None:
    _, goal = gelu_of_sum()
    path = tmp_path / "plain.onnx"
    save(standalone(goal, {"": 20}), path)
    assert "0 fused kernels" in inspected(path, "--kernels")


def test_what_the_file_says_is_escaped(tmp_path: Path) -> None:
    """A program comes from a file of others."""
    path, planned = twice(tmp_path)
    model = onnx.load(path)
    for entry in model.metadata_props:
        entry.value = entry.value.replace("parallel_for", "\x1b[31mred")
    onnx.save(model, path)
    text = inspected(path, "--kernels")
    assert "\x1b" not in text
    assert "red" in text
    assert planned.source not in text


@pytest.mark.parametrize("key", ["taso_mirage.cpp.", "taso_mirage.format"])
def test_a_file_without_the_program_says_so(tmp_path: Path, key: str) -> None:
    path, _ = twice(tmp_path)
    model = onnx.load(path)
    kept = [entry for entry in model.metadata_props if not entry.key.startswith(key)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, path)
    said = "the file does not have its program" in inspected(path, "--kernels")
    assert said == (key == "taso_mirage.cpp.")
