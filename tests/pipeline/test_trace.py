"""The trace of an optimization: every file parses back, two runs differ where their rules do, and
its size has a bound."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from mugraphs import kernel

import taso_mirage
from taso_mirage.certificates.follow import _instance
from taso_mirage.errors import CheckFailed, InvalidOption, SyntaxProblem
from taso_mirage.ir.content import Draw, NodeContent
from taso_mirage.ir.model import TurnedWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable, weight
from taso_mirage.measure.session import Session
from taso_mirage.mugraph.checkpoint import from_json
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import stages, trace
from taso_mirage.pipeline.stage import Job, Stage
from taso_mirage.report.identifiers import identifiers
from taso_mirage.report.result import Result
from taso_mirage.report.trace_files import TraceFiles
from taso_mirage.rewriting.text import parse_graph, parse_graphs, show_graph
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cpu_kernel

QUICK: Mapping[str, Any] = {"effort": "quick", "budget": 20.0}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "index.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def traced(model: Any, folder: Path, **options: Any) -> Result:
    _, result = taso_mirage.optimize(model, return_result=True, trace=folder, **{**QUICK, **options})
    return result


def texts(folder: Path) -> dict[str, str]:
    """All files but the index, which has seconds."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != "index.tsv")
    return {file.relative_to(folder).as_posix(): file.read_text() for file in files}


def parsed(folder: Path) -> dict[str, Graph]:
    """All graphs of a trace; each prints again as a text of the same graph."""
    found = {name: parse_graph(text) for name, text in texts(folder).items() if name.endswith(".txt")}
    assert found
    assert all(parse_graph(show_graph(graph)) == graph for graph in found.values())
    return found


def untimed(folder: Path) -> list[dict[str, str]]:
    return [{**row, "seconds": ""} for row in rows(folder)]


@pytest.fixture(scope="module")
def once(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("trace") / "new"
    return traced(onnx.load(layer), folder), folder


def test_the_graph_after_every_stage_and_rule_reads_back(once: tuple[Result, Path]) -> None:
    result, folder = once
    graphs = parsed(folder)
    last = rows(folder)[-1]
    assert graphs[last["file"]] == result.model.graph
    assert next(graphs[row["file"]] for row in rows(folder) if row["stage"] == "read") == result.original.graph
    ran = [row["stage"] for row in rows(folder) if row["seconds"]]
    assert [*dict.fromkeys(ran)] == [*result.seconds]
    applied = [row["rule"] for row in rows(folder) if row["rule"]]
    assert {name for step in result.steps for name in step.equations} <= {
        e for rule in applied for e in rule.split(" + ")
    }
    assert all(row["file"] in graphs and int(row["terms"]) > 0 for row in rows(folder) if row["rule"])
    fewer = [int(row["terms"]) for row in rows(folder) if row["rule"] and row["stage"] == "passes"]
    assert fewer == sorted(fewer, reverse=True)


def test_a_rule_changes_the_lines_of_its_place_alone(once: tuple[Result, Path]) -> None:
    """Values keep their names from graph to graph."""
    _, folder = once
    found = texts(folder)
    before, (row, *_) = found["03-read.txt"].splitlines(), [r for r in rows(folder) if r["rule"]]
    after = found[row["file"]].splitlines()
    assert 0 < len({*before} ^ {*after}) < len(before) / 2
    (line,) = [line for line in after if line.startswith(f"    {row['place']} = ")]
    assert line not in before


def test_two_runs_write_the_same_and_two_sets_of_rules_differ_at_the_rule(
    once: tuple[Result, Path], layer: Path, tmp_path: Path
) -> None:
    _, folder = once
    traced(onnx.load(layer), tmp_path / "again")
    assert texts(tmp_path / "again") == texts(folder)
    assert untimed(tmp_path / "again") == untimed(folder)
    first = next(row["rule"] for row in rows(folder) if row["rule"])
    traced(onnx.load(layer), tmp_path / "without", rules=taso_mirage.rules() - first)
    ours, theirs = untimed(folder), untimed(tmp_path / "without")
    differing = next(a for a, b in zip(ours, theirs, strict=False) if a != b)
    assert differing["rule"] == first
    assert parsed(tmp_path / "without")["03-read.txt"] == parsed(folder)["03-read.txt"]


def test_weights_are_listed_once_by_digest(once: tuple[Result, Path]) -> None:
    _, folder = once
    listed = [line.split("\t") for line in (folder / "weights.tsv").read_text().splitlines()[1:]]
    names = [name for name, *_ in listed]
    assert len(names) == len(set(names))
    used = {n.attr("name") for graph in parsed(folder).values() for n in graph if n.op == "weight"}
    assert used == set(names)
    assert {row[-1] for row in listed} == {"the model", "computed"}
    assert max(len(text) for text in texts(folder).values()) < 100_000


def chain(count: int) -> onnx.ModelProto:
    """Pairs of Neg, which go, between functions that stay."""
    lines = ["x0 = Identity(x)"]
    for i in range(count):
        lines += [f"a{i} = Neg(x{i})", f"b{i} = Neg(a{i})", f"x{i + 1} = Tanh(b{i})"]
    text = "\n".join(lines)
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[64, 64] x) => (float[64, 64] y) {'
    return onnx.parser.parse_model(f"{head}{text}\ny = Relu(x{count})}}")


def test_beyond_the_bound_only_changes_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole text grows with the square of the model, that of changes with its size."""
    traced(chain(60), tmp_path / "whole")
    monkeypatch.setattr(trace, "WHOLE", 20_000)
    result = traced(chain(60), tmp_path / "parts")
    graphs = parsed(tmp_path / "parts")
    rules = [row for row in rows(tmp_path / "parts") if row["rule"]]
    whole = [row for row in rows(tmp_path / "whole") if row["rule"]]
    assert [(r["rule"], r["place"]) for r in rules] == [(r["rule"], r["place"]) for r in whole]
    assert len(rules) >= 60
    parts = [row for row in rules if row["file"].endswith(".change.txt")]
    assert len(rules) - 10 < len(parts) < len(rules)
    for row in parts:
        before, after = parse_graphs(texts(tmp_path / "parts")[row["file"]]).values()
        assert [o.type for o in before.outputs] == [o.type for o in after.outputs]
        assert len([*before]) <= 3
    assert sum(map(len, texts(tmp_path / "parts").values())) < sum(map(len, texts(tmp_path / "whole").values())) / 3
    assert graphs[rows(tmp_path / "parts")[-1]["file"]] == result.model.graph


def test_without_whole_graphs_every_rule_of_the_search_has_its_change(
    layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "WHOLE", 0)
    result = traced(onnx.load(layer), tmp_path)
    files = texts(tmp_path)
    rules = [row for row in rows(tmp_path) if row["rule"]]
    assert rules
    for row in rules:
        before, after = parse_graphs(files[row["file"]]).values()
        assert before.inputs == after.inputs
        assert before.outputs != after.outputs
    assert {each for row in rules for each in row["rule"].split(" + ")} >= set(result.equations)
    assert parsed(tmp_path)[rows(tmp_path)[-1]["file"]] == result.model.graph


def test_the_programs_of_kernels_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is written once, by the stage that puts its kernel into the model."""
    x = variable("x", Tensor("float32", (64, 64)))
    goal = Graph((x,), (term("tanh", x),))
    planned = cpu_kernel(Graph((x,), (kernel([(x, (0,), -1)], lambda x: term("tanh", x), (4,), 1, (0,)),)))

    def with_kernel(job: Job, result: Result, original: Session) -> Result:
        region = EmbeddedRegion.of(goal, result.model.graph.inputs, planned)
        return replace(result, model=embed(result.model, [region]), changed=True)

    stage = Stage("kernels", with_kernel, ("result", "original"), ("result",))
    monkeypatch.setattr(stages, "KERNELS", (stage,))
    traced(chain(1), tmp_path)
    found = texts(tmp_path)
    (program,) = [name for name in found if name.endswith(".cpp")]
    assert program.endswith(f"-kernels/{planned.entry}.cpp")
    assert found[program] == planned.source
    after = {name.partition("-")[2]: text for name, text in found.items()}
    assert "taso_mirage::CpuKernel0" in after["kernels.txt"]
    assert "tanh" in after["check.txt"]
    assert parsed(tmp_path)


NODES = """
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2, 4] x, bool c, int64 n) => (float[2, 4] y, float[2, 4] z, float[2, 4] u, float[2, 4] d) {
        r = Neg(x)
        s = Neg(r)
        y = If(c) <
            then_branch = t () => (float[2, 4] p) { a = Exp(s) \n b = Neg(a) \n p = Neg(b) },
            else_branch = e () => (float[2, 4] q) { q = Abs(s) }
        >
        z = Loop(n, c, s) <
            body = l (int64 i, bool go, float[2, 4] v) => (bool on, float[2, 4] w) { on = Identity(go) \n w = Add(v, s) }
        >
        u = local.twice(s)
        d = RandomNormalLike(s)
    }
    <domain: "local", opset_import: ["" : 17]>
    twice (x) => (y) { y = Add(x, x) }
"""


BRANCH = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 4] x, bool c) => (float[2, 4] y) {
        y = If(c) <
            then_branch = t () => (float[2, 4] p) { a = Exp(x) \n b = Neg(a) \n p = Neg(b) },
            else_branch = e () => (float[2, 4] q) { q = Abs(x) }
        >
    }
"""


def test_bodies_functions_and_draws_are_in_the_text(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(NODES)
    traced(model, tmp_path / "one", kernels="off")
    graphs = parsed(tmp_path / "one")
    nodes = [n for n in graphs["03-read.txt"] if n.op == "opaque"]
    calls = {n.attr("call").operator: n for n in nodes}
    assert calls["If"].attr("call").bodies == (("else_branch", 1), ("then_branch", 1))
    assert {"abs", "exp", "neg"} <= {a.op for a in Graph((), (calls["If"],))}
    assert calls["RandomNormalLike"].attr("call").draw == Draw((), "", "RandomNormalLike", "d")
    other = onnx.parser.parse_model(NODES.replace("q = Abs(s)", "q = Exp(s)"))
    traced(other, tmp_path / "two", kernels="off")
    one, two = (texts(tmp_path / name)["03-read.txt"].splitlines() for name in ("one", "two"))
    changed = [line.split(" = ")[1].partition("(")[0] for line in one if line not in two]
    assert "abs" in changed
    assert "opaque" in changed


def test_a_body_that_is_optimized_has_a_trace_of_its_own(tmp_path: Path) -> None:
    traced(onnx.parser.parse_model(BRANCH), tmp_path, kernels="off")
    (own,) = (tmp_path / "bodies").iterdir()
    assert [row["rule"] for row in rows(own) if row["rule"]]
    assert "bodies of a node" in {row["rule"] for row in rows(tmp_path)}
    assert parsed(own)


def test_a_folder_with_files_is_refused_before_the_work(layer: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(InvalidOption, match="is not empty; name another one"):
        traced(layer, tmp_path, output=tmp_path.parent / "out.onnx")
    assert not (tmp_path.parent / "out.onnx").exists()
    with pytest.raises(InvalidOption, match="is the path of a file and of a folder to write"):
        traced(layer, tmp_path / "new", output=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_weight_in_another_order_was_computed(tmp_path: Path) -> None:
    leaves = [weight(name, Tensor("float32", (2, 3))) for name in ("a", "b")]
    array = np.arange(6, dtype=np.float32)
    given = {"a": TurnedWeight(array.reshape(3, 2).T), "b": ir.tensor(array.reshape(2, 3))}
    model = standalone(Graph((), (term("add", *leaves),)), {"": 17}).with_graph((term("add", *leaves),), given)
    files = TraceFiles(tmp_path)
    files.text(model, model.graph.outputs, given, {})
    files.flush()
    first, second = [line.split("\t") for line in (tmp_path / "weights.tsv").read_text().splitlines()[1:]]
    assert (first[0], first[-1], second[0], second[-1]) == ("a", "computed", "b", "the model")
    assert first[3] == hashlib.sha256(b"float32 (2, 3) " + array.reshape(3, 2).T.tobytes()).hexdigest()


# ---------------------------------------------------------------- texts


def test_kernels_in_a_model_are_named_by_their_functions(tmp_path: Path) -> None:
    """Equal kernels have equal texts, and other programs others."""
    x = variable("x", Tensor("float32", (6, 5)))
    goal = Graph((x,), (term("exp", term("neg", x)),))
    made = []
    for i, blocks in enumerate((2, 3, 3)):
        planned = cpu_kernel(
            Graph((x,), (kernel([(x, (0,), -1)], lambda x: term("exp", term("neg", x)), (blocks,), 1, (0,)),))
        )
        model = embed(standalone(goal, {"": 17}), [EmbeddedRegion.of(goal, (x,), planned)])
        text = TraceFiles(tmp_path / str(i)).text(model, model.graph.outputs, model.weights, model.names)
        (node,) = parse_graph(text).outputs
        assert node.attr("call").operator == "taso_mirage::CpuKernel0"
        made.append(text)
    assert made[0] != made[1] == made[2]


def test_identifiers_are_distinct_and_follow_names() -> None:
    x = variable("a b", Tensor("float32", (2,)))
    inner = term("neg", x)
    outer = term("exp", inner)
    last = term("relu", outer)
    graph = Graph((x,), (last, inner))
    found = identifiers(graph, {last: "a.b", inner: "9"})
    assert [found[n] for n in (x, inner, outer, last)] == ["a_b", "_9", "a_b_1", "a_b_2"]
    assert parse_graph(show_graph(graph, names=found)) == graph
    assert parse_graph(show_graph(graph, names=identifiers(graph, {}))) == graph


@pytest.mark.parametrize(
    "type",
    [
        Tensor("float32", (2, 3)),
        (Tensor("float32", ()), Tensor("Sequence(float32)", None)),
        Tensor("", (2,)),
        Tensor("Optional(int64)", ()),
        None,
    ],
    ids=str,
)
@pytest.mark.parametrize("draw", [None, Draw((("y", "then_branch"),), "", "RandomNormal", "it's")])
def test_a_node_without_a_definition_reads_back(type: Any, draw: Draw | None) -> None:
    x = variable("x", Tensor("float32", (2,)))
    content = NodeContent("org::Own 'op'", "0123", (("body", 2),), draw)
    node = Node("opaque", (x, x), (("call", content),), type)
    text = show_graph(Graph((x,), (node,)))
    assert parse_graph(text) == Graph((x,), (node,))
    assert parse_graph(text).outputs[0].attr("call") == content


@pytest.mark.parametrize(
    ("value", "dtype"), [(0.0, "float32"), (-0.0, "float32"), (np.nan, "float64"), (-np.inf, "bfloat16"), (7, "int64")]
)
def test_an_array_of_equal_elements_is_short_and_reads_back(value: float, dtype: str) -> None:
    equal = constant(np.full((8, 64), value), dtype)
    graph = Graph((), (equal, constant(np.array([1, 2])), constant(np.zeros(0))))
    text = show_graph(graph, short=True)
    assert len(text) < 250 < 1500 < len(show_graph(graph))
    assert parse_graph(text) == graph


@pytest.mark.parametrize("call", ["'If'", "content('If')", "content('If', '', (), (1, 2))", "content('If', '', (), 3)"])
def test_a_content_that_is_none_is_refused(call: str) -> None:
    text = f"def graph(x: input('x', float32[2])):\n    y = opaque(x, call={call}, type=float32[2])\n    return y\n"
    with pytest.raises(SyntaxProblem, match=r"line 2: .* is no content of a node"):
        parse_graph(text)


OPAQUE = "opaque(x, call=content('If', '', (), None), type=float32[2])"


def test_no_kernel_has_a_node_without_a_definition() -> None:
    """Checkpoints and certificates come from others, and such a node would be computed as they
    say."""
    body = f"    def body0(x: input('x', float32[2])):\n        return {OPAQUE}\n"
    head, last = "def graph(x: input('x', float32[2])):\n", "    return neg(x)\n"
    with pytest.raises(SyntaxProblem, match="line 2: the body body0 has a node without a definition"):
        parse_graph(head + body + last)
    with pytest.raises(SyntaxProblem, match="a node without a definition"):
        from_json({"mugraph": 1, "program": [head.rstrip(), f"    return {OPAQUE}"]})
    with pytest.raises(CheckFailed, match="names a weight"):
        _instance(f"{head}    return {OPAQUE}\n", head + last)


def test_a_model_as_it_was_read_has_nodes_that_do_not_read_back() -> None:
    """The ONNX node itself is no value; the trace prints its content."""
    model = from_memory(onnx.parser.parse_model(NODES))
    with pytest.raises(SyntaxProblem):
        parse_graph(show_graph(model.graph))
