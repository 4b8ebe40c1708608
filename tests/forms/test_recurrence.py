"""Loops as kernels for the CPU: the program computes the loop, at every number of steps; blocks are
parts of axes that a step does not mix, and wrong ones are refuted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import onnx
import pytest
from bodies import parse
from loop_models import RECURRENCES, channels, gated, gated_delta, loop, results

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.forms.recurrence import FORM, OPERATOR, LoopCut, Recurrence, recurrence
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Graph, Node, constant, substitute
from taso_mirage.meanings.reals import REALS
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.parallel_axes import parallel_axes
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Failure, FailureKind

AXES = {
    "gated delta": [([1, 1, 1, 1, 1, 1], [1, 1]), ([3, None, None, 2, None, None], [3, 2])],
    "recurrent": [([0, 0, None], [0, 0])],
}
"""The axes of the operands of a step whose parts are apart, and of its results."""


def goal(name: str) -> Recurrence:
    found = recurrence(loop(RECURRENCES[name]()))
    assert found is not None
    return found


@cache
def found(name: str) -> tuple[Graph, ...]:
    """The muGraphs of a loop."""
    graph = loop(RECURRENCES[name]())
    return tuple(each.graph for each in goal(name).mugraphs(graph, CPU_DEVICE))


def values(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(random_array(leaf, rng, {}) / 2).astype(np.float32) for leaf in graph.inputs]


@pytest.mark.parametrize("name", RECURRENCES)
def test_a_kernel_computes_the_loop(name: str) -> None:
    graph = loop(RECURRENCES[name]())
    given = values(graph)
    wanted = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
    for each in found(name)[:1]:
        for made, output in zip(NativeKernel(each)(*given), graph.outputs, strict=True):
            np.testing.assert_allclose(made, wanted[output], 1e-4, 1e-5)


@pytest.mark.parametrize("name", ["gated delta", "channels"])
def test_a_decay_makes_no_copy_of_the_state(name: str) -> None:
    """The factor that all elements of a sum share is outside of the product."""
    right = goal(name)
    kernel = right.kernel(())
    source = generate_cpp(Graph(tuple(right.node.args), right.results(kernel)))
    size = dim_product(right.node.args[0].shape)
    assert len(re.findall(rf"float \w+\[{size}\]", source)) == 2


@pytest.mark.parametrize("name", AXES)
def test_the_axes_that_a_step_does_not_mix_are_found(name: str) -> None:
    assert list(parallel_axes(goal(name).body, goal(name).states)) == AXES[name]


def test_a_kernel_runs_any_number_of_steps() -> None:
    free = FreeSizes.of(loop(gated_delta("n0")))
    kernel = NativeKernel(with_free_names(found("gated delta")[0], free))
    for steps in (1, 7):
        graph = loop(gated_delta(steps))
        given = values(graph)
        wanted = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
        for made, output in zip(kernel(*given), graph.outputs, strict=True):
            np.testing.assert_allclose(made, wanted[output], 1e-4, 1e-5)


@pytest.mark.parametrize("made", [gated_delta, channels, gated])
def test_a_kernel_runs_any_number_of_samples(made: Callable[..., onnx.ModelProto]) -> None:
    named, right = loop(made("n1", b="n0")), loop(made(b=2))
    free, read = FreeSizes.of(named), recurrence(right)
    assert read is not None
    assert FORM.follows is not None
    assert FORM.follows(right, named, free)
    kernel = NativeKernel(with_free_names(read.mugraphs(right, CPU_DEVICE)[0].graph, free))
    for steps, samples in ((4, 1), (2, 3)):
        graph = loop(made(steps, b=samples))
        given = values(graph)
        wanted = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
        for result, output in zip(kernel(*given), graph.outputs, strict=True):
            np.testing.assert_allclose(result, wanted[output], 1e-4, 1e-5)


SAMPLES = """
    g (float[{b}, 4] s0, float[{t}, {b}, 4] X) => (float[{b}, 4] s) {{
        s = Scan<num_scan_inputs = 1, body = step (float[{b}, 4] a, float[{b}, 4] x) => (float[{b}, 4] a2) {{
            {m} \n a1 = Mul(a, x) \n a2 = Add(a1, m)
        }}>(s0, X)
    }}
"""
COUPLED = {
    "none": "m = Neg(x)",
    "their mean": "m = ReduceMean<axes = [0]>(x)",
    "their number": "zero = Constant<value = int64 {0}>() \n c = Shape(x) \n d = Gather(c, zero) \n m = Cast<to = 1>(d)",
    "one axis for all": "all = Constant<value = int64[1] {-1}>() \n f = Reshape(x, all) \n c = Shape(x) \n m = Reshape(f, c)",
}


@pytest.mark.parametrize("name", COUPLED)
def test_only_a_step_of_each_sample_alone_has_a_kernel_of_all_sizes(name: str) -> None:
    named, right = (loop(parse(SAMPLES.format(t=t, b=b, m=COUPLED[name]))) for t, b in (("n1", "n0"), (4, 2)))
    assert FORM.follows is not None
    assert FORM.follows(right, named, FreeSizes.of(named)) == (name == "none")


TWO_STATES = """
    g (float[4, 4] z, float[4, 4] w, float[3, 4, 4] X) => (float[4, 4] a, float[4, 4] b, float[3, 4, 4] Y) {{
        a, b, Y = Scan<num_scan_inputs = 1, body = step (float[4, 4] s, float[4, 4] r, float[4, 4] x)
                => (float[4, 4] s2, float[4, 4] r2, float[4, 4] y) {{
            t = Transpose<perm = {perm}>(x) \n s2 = Mul(x, s) \n r2 = Sub(t, r) \n y = Add(s2, x)
        }}>(z, w, X)
    }}
"""
"""Two states, the second of which has the axes of the element in the order `perm`."""


def of_one_value(graph: Graph) -> Graph:
    """The loop with one first value for both states."""
    first, second, x = graph.inputs
    return Graph((first, x), substitute(graph.outputs, {second: first}))


@pytest.mark.parametrize("perm", ["[0, 1]", "[1, 0]"])
def test_several_states_may_have_one_first_value(perm: str) -> None:
    """An LSTM has such states, which begin with the same zeros."""
    graph = of_one_value(loop(parse(TWO_STATES.format(perm=perm))))
    right = recurrence(graph)
    assert right is not None
    assert len(right.operands) == 2
    given = values(graph)
    wanted = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
    made = right.mugraphs(graph, CPU_DEVICE)
    assert made
    for each in made:
        for result, output in zip(NativeKernel(each.graph)(*given), graph.outputs, strict=True):
            np.testing.assert_allclose(result, wanted[output], 1e-5, 1e-6)


def test_a_first_value_of_states_in_other_axes_is_cut_along_none() -> None:
    for perm, count in (("[0, 1]", 2), ("[1, 0]", 0)):
        graph = loop(parse(TWO_STATES.format(perm=perm)))
        right, apart = recurrence(of_one_value(graph)), recurrence(graph)
        assert right is not None
        assert apart is not None
        assert (len(right.axes()), len(apart.axes())) == (count, 2)


# ---------------------------------------------------------------- wrong kernels


def refuted(kernel: Node, right: Recurrence) -> bool:
    """Whether the field refutes a kernel of a loop."""
    leaves = right.operands
    verdict = verified_mugraph(Graph(leaves, results(kernel)), Graph(leaves, results(right.node)), numbers=False)
    return isinstance(verdict, Failure) and verdict.kind is FailureKind.REFUTED


def other(right: Recurrence, **attrs: object) -> Recurrence:
    return Recurrence(term(right.node.op, *right.node.args, **{**dict(right.node.attrs), **attrs}))


def wrong_kernels() -> Iterator[tuple[str, Node, Recurrence]]:
    """Kernels of other loops than the goal."""
    right = goal("gated").with_steps(3)
    (cuts, *_) = right.cuts()
    yield "the wrong direction", other(right, backward=1).kernel(cuts), right
    swapped = (right.node.args[0], right.node.args[2], right.node.args[1], *right.node.args[3:])
    yield "other sequences", Recurrence(term(right.node.op, *swapped, **dict(right.node.attrs))).kernel(cuts), right
    body = right.body
    late = Graph(body.inputs, (body.outputs[0], term("mul", body.inputs[0], body.inputs[2])))
    yield "the state before the step", other(right, body=late).kernel(cuts), right
    still = Graph(body.inputs, (body.inputs[0], body.outputs[1]))
    yield "a state that stays", other(right, body=still).kernel(cuts), right


@pytest.mark.parametrize(("kernel", "right"), [pytest.param(k, r, id=name) for name, k, r in wrong_kernels()])
def test_the_field_refutes_a_kernel_of_another_loop(kernel: Node, right: Recurrence) -> None:
    (cuts, *_) = right.cuts()
    assert not refuted(right.kernel(cuts), right)
    assert refuted(kernel, right)


@pytest.mark.parametrize("wrong", ["x", "s"])
def test_the_field_refutes_states_with_another_first_value(wrong: str) -> None:
    right = recurrence(of_one_value(loop(parse(TWO_STATES.format(perm="[0, 1]")))))
    assert right is not None
    first, x = right.with_steps(3).operands
    other = {"x": term("gather", x, constant(0), axis=0), "s": term("neg", first)}[wrong]
    (cuts, *_) = right.cuts()
    inner = right.with_steps(3)
    made = term(OPERATOR, first, other, x, **dict(right.node.attrs))
    assert not refuted(inner.kernel(cuts), inner)
    assert refuted(made, inner)


def test_an_axis_over_which_a_step_sums_is_not_cut() -> None:
    right = goal("recurrent").with_steps(3)
    own: tuple[LoopCut, ...] = (((1, 2, 1), (1, 2), 2),)
    kernel = right.kernel
    with pytest.raises(Exception, match="matmul"):
        kernel(own)


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for name in RECURRENCES:
        yield f"recurrence/{name}", found(name)[0]
    yield "recurrence/any length", with_free_names(found("gated delta")[0], FreeSizes.of(loop(gated_delta("n0"))))


FOLD = """
    g (float[2, 16] s0, float[9, 2, 16] X) => (float[2, 16] s, float[9, 2, 16] Y) {{
        s, Y = Scan<num_scan_inputs = 1{more}, body = step (float[2, 16] a, float[2, 16] x) => (float[2, 16] b, float[2, 16] y) {{
            b = {fold}(a, x) \n y = Identity({given})
        }}>(s0, X)
    }}
"""
FOLDS = {"Max": np.maximum, "Min": np.minimum, "Mul": np.multiply}


def folding(fold: str, given: str = "b", more: str = "") -> Graph:
    return loop(parse(FOLD.format(fold=fold, given=given, more=more)))


@pytest.mark.parametrize("fold", FOLDS)
def test_a_running_maximum_or_product_is_a_kernel(fold: str) -> None:
    graph = folding(fold)
    right = recurrence(graph)
    assert right is not None
    (made, *_) = right.mugraphs(graph, CPU_DEVICE)
    first, rows = values(graph)
    wanted = FOLDS[fold].accumulate([first, *rows])[1:]
    last, every = NativeKernel(made.graph)(first, rows)
    np.testing.assert_array_equal(last, wanted[-1])
    np.testing.assert_array_equal(every, wanted)


BACKWARD = ", scan_input_directions = [1], scan_output_directions = [1]"
OTHER_FOLDS = {
    "the state before": ("a", ""),
    "the other direction": ("b", BACKWARD),
    "the element": ("x", ""),
}


@pytest.mark.parametrize("name", [*OTHER_FOLDS, "another first state", "another fold"])
@pytest.mark.parametrize("fold", FOLDS)
def test_another_running_fold_is_refuted(fold: str, name: str) -> None:
    graph = folding(fold)
    given, more = OTHER_FOLDS.get(name, ("b", ""))
    other = recurrence(folding("Add" if name == "another fold" else fold, given, more))
    assert other is not None
    leaves = graph.inputs
    first = term("neg", leaves[0]) if name == "another first state" else leaves[0]
    wrong = other.results(term(OPERATOR, first, leaves[1], **dict(other.node.attrs)))
    assert isinstance(verified_mugraph(Graph(leaves, wrong), graph, numbers=False), Failure)
