"""A model with kernels as a plugin of TensorRT."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mugraphs
import numpy as np
import pytest

from taso_mirage.emit import triton as codegen
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, variable, weight
from taso_mirage.mugraph.graph import new_graph
from taso_mirage.onnx_io import save
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import PlannedNode, cuda_kernel, images
from taso_mirage.runtime.tensorrt.plugin_export import Exported, export


def rmsnorm_linear() -> tuple[Graph, Graph]:
    """A muGraph of one kernel from the search, and its goal, in half precision."""
    graph = new_graph()
    x, w = graph.new_input(dims=(2, 64), name="X"), graph.new_input(dims=(64, 96), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    return graph.superoptimize(best=1, budget=10.0)[0].graph, graph.graph()


def column_sums() -> tuple[Graph, Graph]:
    """Two kernels with scratch memory between them, in single precision."""
    x = mugraphs.leaf("X", "float32", 12, 20)

    def partial(x: Node) -> Node:
        return term("unsqueeze", term("reduce_sum", x, axes=(0,), keepdims=0), axes=(1,))

    first = mugraphs.kernel([(x, (0,), -1)], partial, (3,), 1, (1,))
    second = mugraphs.kernel([(first, (0,), -1)], lambda t: term("reduce_sum", t, axes=(1,), keepdims=0), (2,), 1, (0,))
    return Graph((x,), (second,)), Graph((x,), (term("reduce_sum", x, axes=(0,), keepdims=0),))


@cache
def kernel(make: Callable[[], tuple[Graph, Graph]]) -> tuple[PlannedNode, Graph]:
    """A case's kernel, compiled for three architectures and as PTX, and its goal."""
    found, goal = make()
    program = codegen.program(found)
    codes = [image for capability in (80, 90, 100) for image in images(compiled(program, capability))]
    codes += [image.with_ptx(text) for image, text in zip(codes, ptx(program), strict=False)]
    return cuda_kernel(program, codes), goal


def ptx(program: TritonProgram, capability: int = 80) -> list[str]:
    """The PTX of each launch, as the compiler makes it on the way to a cubin."""
    import triton

    seen: list[str] = []
    original: Any = triton.compile

    def recorded(*args: Any, **options: Any) -> Any:
        made = original(*args, **options)
        seen.append(made.asm["ptx"])
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "compile", recorded)
        compiled(program, capability)
    return seen


def write_model(path: Path) -> None:
    """relu(linear(norm(A))) + linear(norm(B)) by one kernel at two places, and column sums of C by
    another."""
    norm, goal = kernel(rmsnorm_linear)
    sums, columns = kernel(column_sums)
    a, b = (variable(name, Tensor("float16", (2, 64))) for name in "AB")
    c = variable("C", Tensor("float32", (12, 20)))
    weights = [weight(name, Tensor("float16", (64, 96))) for name in ("W1", "W2")]
    first, second = (placed(goal, (x, w)) for x, w in zip((a, b), weights, strict=True))
    third = placed(columns, (c,))
    outputs = term("add", term("relu", first), second), third
    rng = np.random.default_rng(0)
    values = {w.attr("name"): StoredWeight(rng.normal(size=(64, 96), scale=0.1).astype(np.float16)) for w in weights}
    model = standalone(Graph((a, b, c), outputs), {"": 17}, values)
    regions = [
        EmbeddedRegion((a, weights[0]), (first,), norm),
        EmbeddedRegion((b, weights[1]), (second,), norm),
        EmbeddedRegion((c,), (third,), sums),
    ]
    save(embed(model, regions), path)


def placed(goal: Graph, inputs: tuple[Node, ...]) -> Node:
    """A goal's result over other inputs."""
    return substitute(goal.outputs, dict(zip(goal.inputs, inputs, strict=True)))[0]


@pytest.fixture(scope="session")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("optimized") / "optimized.onnx"
    write_model(path)
    return path


@pytest.fixture(scope="session")
def exported(optimized: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(optimized, tmp_path_factory.mktemp("plugin"), {})
