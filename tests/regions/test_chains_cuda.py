"""Operators after a convolution or a product of many rows, on CUDA: chains, folds and norms of
tensors of millions of elements are regions, with kernels of many blocks and wide loads for any
number of samples. Without a GPU: the search and Triton's compiler are real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import evaluate, symbol
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable
from taso_mirage.mugraph.closure import close
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions, superoptimize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.free_regions import free_regions

SAMPLES = 64
N = symbol("n")


def x(*shape: int) -> Node:
    return variable("x", Tensor("float32", (N, *shape)))


def other(name: str, *shape: int) -> Node:
    return variable(name, Tensor("float32", shape))


def instance_norm(made: Node, channels: int) -> Node:
    return term("instance_norm", made, other("scale", channels), other("offset", channels), epsilon=1e-5)


CHAINS: dict[str, Callable[[], Node]] = {
    "a bias of channels": lambda: term("add", term("relu", x(128, 126, 126)), other("b", 128, 1, 1)),
    "a softmax of channels": lambda: term("sigmoid", term("softmax", x(16, 14, 30, 30), axis=1)),
    "the least of channels": lambda: term("tanh", term("reduce_min", x(64, 254, 254), axes=(1,), keepdims=1)),
    "a norm of volumes": lambda: term(
        "hard_swish", instance_norm(term("mul", x(16, 15, 31, 31), other("s", 16, 1, 1, 1)), 16)
    ),
    "rows": lambda: term("tanh", term("mul", term("add", x(8192), other("r", 8192)), other("s", 8192))),
    "a sum of rows": lambda: term("gelu", term("reduce_log_sum_exp", x(8192), axes=(1,), keepdims=1)),
    "one fold": lambda: term("reduce_sum", x(256, 255), axes=(1,), keepdims=0),
}


def regions(made: Node, lanes: int = 4) -> list[EqualRegions]:
    inputs = tuple(n for n in topological([made]) if n.op == "input")
    return [*free_regions(standalone(Graph(inputs, (made,)), {"": 20}, {}), {"n": SAMPLES}, lanes, True)[0]]


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_one_region_with_a_kernel_of_many_blocks(name: str) -> None:
    made = CHAINS[name]()
    (kind,) = regions(made)
    assert [n.op for n in kind.goal if n.args] == [n.op for n in topological([made]) if n.args]
    assert kind.free is not None
    best, *_ = Search(kind.goal, SearchOptions(), H100, free=kind.free).run(1, 60.0)
    assert best.free is not None
    program = triton.program(best.free)
    bytes_ = sum(4 * prod(n.shape) for n in (*kind.whole.inputs, *kind.whole.outputs))
    assert best.seconds < 4 * bytes_ / H100.bandwidth + 2 * H100.launch  # memory, read twice at most
    for launch, kernel in zip(program.launches, compiled(program, 90), strict=True):
        blocks = prod(evaluate(n, dict(kind.measured)) for n in launch.launched)
        assert blocks >= min(SAMPLES, 2 * H100.processors)
        odd = name == "a norm of volumes"  # rows of 31 elements begin anywhere
        assert odd or ".v2." in kernel.ptx or ".v4." in kernel.ptx or "cp.async" in kernel.ptx


def test_one_fold_is_a_region_on_a_gpu_alone() -> None:
    assert regions(CHAINS["one fold"](), lanes=1) == []
    assert regions(term("relu", x(256, 255))) == []


def test_the_least_is_computed_as_the_largest_of_what_is_negated() -> None:
    given = variable("x", Tensor("float32", (3, 20, 5)))
    goal = Graph((given,), (term("exp", term("reduce_min", given, axes=(1,), keepdims=0)),))
    best, *_ = superoptimize(goal, best=1, budget=20, device=CPU_DEVICE)
    values = np.random.default_rng(0).normal(size=(3, 20, 5)).astype(np.float32)
    (found,) = NativeKernel(best.graph)(values)
    np.testing.assert_allclose(found, np.exp(values.min(1)), rtol=1e-6)


def test_dims_that_are_folded_together_have_one_order() -> None:
    """A mean over three dims has three partial sums, from the innermost dim on, not six; everything
    else is there, in every order that a loop may have."""
    given = variable("x", Tensor("float32", (4, 3, 5, 7, 2)))
    mean = term("reduce_mean", term("tanh", given), axes=(2, 3, 4), keepdims=0)
    goal = label(Graph((given,), (mean,)))
    three = [label_ for axis in goal.inputs["x"][2:] for label_ in axis]
    assert goal.inside() == {three[0]: {three[1], three[2]}, three[1]: {three[2]}, three[2]: frozenset()}
    folded = {frozenset(three) - labels for labels in close(goal).classes}
    assert folded == {frozenset(), frozenset(three[2:]), frozenset(three[1:]), frozenset(three)}
    pair = Graph((given,), (term("reduce_mean", given, axes=(2, 3), keepdims=0),))
    assert label(pair).inside() == {}
    split = label(goal.graph, three[1])
    outer = split.split[three[1]][0]
    assert split.inside()[outer] == {*three, split.split[three[1]][1]} - {three[1]}
    assert replace(split, known=()).inside() == split.inside()


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "reduce_log_sum_exp", "reduce_sum"])
def test_a_fold_of_three_dims_in_another_order_has_kernels(name: str) -> None:
    """A maximum over dims in the goal's order is the only one that there is; they lie in memory in
    another order."""
    given = variable("x", Tensor("float32", (4, 6, 8, 10)))
    moved = term("transpose", given, perm=(0, 3, 1, 2))
    goal = Graph((given,), (term(name, term("abs", moved), axes=(1, 2, 3), keepdims=0),))
    assert superoptimize(goal, best=1)


def test_a_minimum_of_truth_values_has_no_kernel() -> None:
    given = variable("x", Tensor("bool", (64, 128)))
    with pytest.raises(Unsupported):
        label(Graph((given,), (term("cast", term("reduce_min", given, axes=(1,), keepdims=0), to="float32"),)))
