"""Loops whose state is a matrix as kernels by chunks of steps: the program computes the loop at
every number of steps, errors do not grow with it, and wrong chunks are refuted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from bodies import parse
from linear_mutants import MUTANTS
from loop_models import channels, gated, gated_delta, loop, recurrent, results, shifted

from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.errors import Unsupported
from taso_mirage.forms.recurrence import CHUNK, FORM, Recurrence, recurrence
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Graph
from taso_mirage.meanings.linear_states import LinearStates
from taso_mirage.meanings.reals import REALS
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get
from taso_mirage.verdicts import Evidence, Failure, FailureKind

DUAL = """
    g (float[{b}, 2, 16, 5] S0, float[{t}, {b}, 2, 16] X, float[{t}, {b}, 2] T, float[{t}, {b}, 5] B, float[{t}, {b}, 5] C,
       float[2] A) => (float[{b}, 2, 16, 5] S, float[{t}, {b}, 2, 16] Y) {{
        m1 = Constant<value = int64[1] {{-1}}>()
        n12 = Constant<value = int64[2] {{1, 2}}>() \n n13 = Constant<value = int64[2] {{1, 3}}>()
        S, Y = Scan<num_scan_inputs = 4{more}, body = step (float[{b}, 2, 16, 5] s, float[{b}, 2, 16] x, float[{b}, 2] t,
                float[{b}, 5] b, float[{b}, 5] c) => (float[{b}, 2, 16, 5] s2, float[{b}, 2, 16] y) {{
            t0 = Softplus(t) \n e0 = Neg(A) \n e1 = Mul(t0, e0) \n a = Exp(e1)
            a1 = Unsqueeze(a, m1) \n a2 = Unsqueeze(a1, m1) \n p = Mul(s, a2) \n t1 = Unsqueeze(t0, m1)
            x0 = Mul(t1, x) \n x1 = Unsqueeze(x0, m1) \n b1 = Unsqueeze(b, n12) \n u = MatMul(x1, b1)
            s2 = Add(p, u) \n c1 = Unsqueeze(c, n13) \n o = MatMul(s2, c1) \n o1 = Squeeze(o, m1) \n y = Add(o1, x)
        }}>(S0, X, T, B, C)
    }}
"""
"""A state space model: the keys are the last axis, and both heads have the same."""
GENERAL = """
    g (float[{b}, 2, 5, 16] S0, float[{t}, {b}, 2, 5] R, float[{t}, {b}, 2, 5] D, float[{t}, {b}, 2, 5] K,
       float[{t}, {b}, 2, 16] V, float[{t}, {b}, 2, 5] A) => (float[{b}, 2, 5, 16] S, float[{t}, {b}, 2, 16] O) {{
        m1 = Constant<value = int64[1] {{-1}}>() \n m2 = Constant<value = int64[1] {{-2}}>()
        S, O = Scan<num_scan_inputs = 5{more}, body = step (float[{b}, 2, 5, 16] s, float[{b}, 2, 5] r, float[{b}, 2, 5] d,
                float[{b}, 2, 5] k, float[{b}, 2, 16] v, float[{b}, 2, 5] a)
                => (float[{b}, 2, 5, 16] s2, float[{b}, 2, 16] o) {{
            d0 = Sigmoid(d) \n d1 = Unsqueeze(d0, m1) \n s1 = Mul(s, d1)
            a1 = Unsqueeze(a, m2) \n sa = MatMul(a1, s) \n b1 = Unsqueeze(a, m1) \n p = Mul(b1, sa) \n s3 = Sub(s1, p)
            k1 = Unsqueeze(k, m1) \n v1 = Unsqueeze(v, m2) \n u = Mul(k1, v1) \n s2 = Add(s3, u)
            r1 = Unsqueeze(r, m1) \n w = Mul(s2, r1) \n n2 = Constant<value = int64[1] {{2}}>()
            o = ReduceSum<keepdims = 0>(w, n2)
        }}>(S0, R, D, K, V, A)
    }}
"""
"""Decays of each key, a row that reads the state before its decay, and a sum over keys."""
BACKWARD = ", scan_input_directions = [1, 1, 1, 1], scan_output_directions = [1]"
LINEAR: dict[str, Any] = {
    "gated delta": gated_delta,
    "channels": channels,
    "dual": lambda t, b=1: parse(DUAL.format(t=t, b=b, more=BACKWARD)),
    "general": lambda t, b=1: parse(GENERAL.format(t=t, b=b, more="")),
}
"""Loops by chunks, by the numbers of their steps and samples."""


def goal(name: str, steps: int = 4, samples: int = 1) -> Recurrence:
    found = recurrence(loop(LINEAR[name](steps, b=samples)))
    assert found is not None
    return found


def chunked(right: Recurrence, size: int = CHUNK) -> Graph:
    """The muGraph by chunks of a loop over its operands."""
    cuts = right.chunk_cuts()
    assert cuts is not None
    return Graph(tuple(right.node.args), right.results(right.kernel(cuts, (size, *right.chunk[1:]))))


@cache
def any_length(name: str) -> NativeKernel:
    """The kernel by chunks for every number of steps and samples."""
    right, named = goal(name, samples=2), loop(LINEAR[name]("n1", b="n0"))
    return NativeKernel(with_free_names(chunked(right), FreeSizes.of(named)))


def values(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(random_array(leaf, rng, {}) / 2).astype(np.float32) for leaf in graph.inputs]


@pytest.mark.parametrize("name", LINEAR)
def test_a_kernel_by_chunks_runs_any_number_of_steps(name: str) -> None:
    for steps, samples in ((1, 2), (CHUNK - 1, 1), (CHUNK, 1), (2 * CHUNK + 3, 2)):
        graph = loop(LINEAR[name](steps, b=samples))
        given = values(graph)
        wanted = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
        for made, output in zip(any_length(name)(*given), graph.outputs, strict=True):
            np.testing.assert_allclose(made, wanted[output], 0, 2e-6 * np.abs(wanted[output]).max())


def test_after_no_step_the_state_is_the_first() -> None:
    given = values(loop(gated_delta(1)))
    state, outputs = any_length("gated delta")(*(x[:0] if i else x for i, x in enumerate(given)))
    np.testing.assert_array_equal(state, given[0])
    assert outputs.shape[0] == 0


@pytest.mark.parametrize("decay", [0.0, -1e-3, -30.0, -1e4])
def test_decays_of_any_size_give_numbers(decay: float) -> None:
    graph = loop(gated_delta(2 * CHUNK + 1))
    given = values(graph)
    given[4] = np.full_like(given[4], decay)
    wanted = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
    for made, output in zip(any_length("gated delta")(*given), graph.outputs, strict=True):
        np.testing.assert_allclose(made, wanted[output], 1e-4, 1e-5)


def exact(given: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The gated delta rule in float64."""
    state, q, k, v, g, b = (x.astype(np.float64) for x in given)
    outputs = np.zeros(v.shape)
    for t in range(len(q)):
        state = state * np.exp(g[t])[..., None, None]
        error = b[t][..., None] * (v[t] - np.einsum("bhk,bhkv->bhv", k[t], state))
        state = state + k[t][..., None] * error[..., None, :]
        outputs[t] = np.einsum("bhk,bhkv->bhv", q[t], state)
    return state, outputs


@pytest.mark.parametrize(
    ("steps", "alike", "bound"),
    [(16, False, 2e-6), (256, False, 2e-6), (1024, False, 2e-6), (16384, False, 2e-6), (16384, True, 2e-5)],
)
def test_errors_do_not_grow_with_the_number_of_steps(steps: int, alike: bool, bound: float) -> None:
    """Keys of length 1 and no decay: what is written stays until it is written over. Where keys are
    `alike` each step writes over the last one, and roundings of the steps add up in the loop,
    too."""
    rng = np.random.default_rng(steps)
    types = [x.tensor for x in loop(gated_delta(steps)).inputs]
    given = [rng.normal(size=type.shape).astype(np.float32) for type in types]
    given[2][:] = given[2][:1] if alike else given[2]
    given[2] /= np.linalg.norm(given[2], axis=-1, keepdims=True)
    beta = np.ones(given[5].shape) if alike else rng.uniform(0, 1, given[5].shape)
    given[4], given[5] = np.zeros_like(given[4]), beta.astype(np.float32)
    for made, wanted in zip(any_length("gated delta")(*given), exact(given), strict=True):
        assert np.abs(made - wanted).max() < bound * np.abs(wanted).max()


# ---------------------------------------------------------------- which loops, and wrong chunks


@pytest.mark.parametrize("name", LINEAR)
def test_the_field_accepts_chunks(name: str) -> None:
    right = goal(name, 5)
    wanted = Graph(tuple(right.node.args), results(right.node))
    assert isinstance(verified_mugraph(chunked(right, 2), wanted, numbers=False), Evidence)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_the_field_refutes_wrong_chunks(mutant: type[LinearStates], monkeypatch: pytest.MonkeyPatch) -> None:
    right = goal("general", 5)
    wanted = Graph(tuple(right.node.args), results(right.node))
    made = chunked(right, 2)
    monkeypatch.setitem(get("scan").body.__globals__, "LinearStates", mutant)
    verdict = verified_mugraph(made, wanted, numbers=False)
    assert isinstance(verdict, Failure)
    assert verdict.kind is FailureKind.REFUTED


SQUARED = "s1 = Mul(s, s)"
READ = "d = ReduceMax<axes = [2, 3]>(s) \n d1 = Sigmoid(d) \n s1 = Mul(s, d1)"
SCALED = "a1 = MatMul(k1, s) \n d = ReduceSum<keepdims = 1>(a1, m1) \n s1 = Mul(s, d)"
UNLIKE = """
    g (float[1, 2, 3, 16] S0, float[4, 1, 2, 3] K) => (float[1, 2, 3, 16] S) {{
        m1 = Constant<value = int64[1] {{-1}}>()
        S = Scan<num_scan_inputs = 1, body = step (float[1, 2, 3, 16] s, float[1, 2, 3] k) => (float[1, 2, 3, 16] s2) {{
            m2 = Constant<value = int64[1] {{-2}}>() \n k1 = Unsqueeze(k, m2) \n k2 = Unsqueeze(k, m1) \n {}
            r = MatMul(k1, s) \n u = Mul(k2, r) \n s2 = Add(s1, u)
        }}>(S0, K)
    }}
"""
WITHOUT = {
    "a step that mixes its state": recurrent,
    "a state of elements": gated,
    "two states": shifted,
    "a square": lambda: parse(UNLIKE.format(SQUARED)),
    "a decay by the largest element": lambda: parse(UNLIKE.format(READ)),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_state_that_is_not_linear_has_no_chunks(name: str) -> None:
    found = recurrence(loop(WITHOUT[name]()))
    assert found is not None
    assert found.chunk == ()


def test_a_decay_that_a_step_reads_has_no_code() -> None:
    right = recurrence(loop(parse(UNLIKE.format(SCALED))))
    assert right is not None
    with pytest.raises(Unsupported, match="depends on the state"):
        generate_cpp(chunked(right))


def test_all_samples_have_blocks_of_their_own() -> None:
    named = loop(gated_delta("n1", b="n0"))
    assert FORM.follows is not None
    assert FORM.follows(loop(gated_delta(b=2)), named, FreeSizes.of(named))


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for name in LINEAR:
        yield f"chunks/{name}", chunked(goal(name, 40))
