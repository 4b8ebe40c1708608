"""The memory of a loop over steps: what no step changes is computed before the first one, and the
axes that no sum goes over are neighbours."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from bodies import parse
from loop_models import loop

from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel
from taso_mirage.forms.recurrence import recurrence
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Graph
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.interpret import interpret

SELECTIVE = """
    g (float[{n}, 8] h0, float[{t}, {n}] X, float[{t}, 8] C, float[{n}, 8] A) => (float[{n}, 8] h, float[{t}, {n}] Y) {{
        m1 = Constant<value = int64[1] {{-1}}>()
        h, Y = Scan<num_scan_inputs = 2, body = step (float[{n}, 8] s, float[{n}] x, float[8] c)
                => (float[{n}, 8] s2, float[{n}] y) {{
            d = Softplus(x) \n d1 = Unsqueeze(d, m1) \n e = Exp(A) \n e0 = Neg(e) \n e1 = Mul(d1, e0) \n a = Exp(e1)
            p = Mul(a, s) \n s2 = Add(p, e1) \n c1 = Unsqueeze(c, m1) \n o = MatMul(s2, c1) \n y = Squeeze(o, m1)
        }}>(h0, X, C)
    }}
"""
"""A recurrence of elements with a state of 8 elements for each channel (Mamba)."""


PLAIN = SELECTIVE.replace("e = Exp(A) \n e0 = Neg(e)", "e0 = Identity(A)")
"""A loop of the same kind, with an operand that each step reads as it is."""


@cache
def kernel(channels: int, text: str = SELECTIVE) -> tuple[Graph, Graph]:
    """The loop, and its kernel of one block."""
    graph = loop(parse(text.format(n=channels, t=5)))
    found = recurrence(graph)
    assert found is not None
    return graph, Graph(graph.inputs, found.results(found.kernel(())))


@pytest.mark.parametrize(("channels", "text"), [(4, SELECTIVE), (16, PLAIN), (40, SELECTIVE)], ids=["4", "plain", "40"])
def test_the_code_computes_the_loop(channels: int, text: str) -> None:
    graph, made = kernel(channels, text)
    rng = np.random.default_rng(0)
    given = [(random_array(leaf, rng, {}) / 2).astype(np.float32) for leaf in graph.inputs]
    wanted = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
    for result, output in zip(NativeKernel(made)(*given), graph.outputs, strict=True):
        np.testing.assert_allclose(result, wanted[output], 1e-5, 1e-6)


def test_a_value_of_all_steps_is_computed_once() -> None:
    before, after = generate_cpp(kernel(16)[1]).rsplit("static void kernel_0", 1)[1].split("size_t step = 0")
    assert (before.count("exponential("), after.count("exponential(")) == (1, 2)


@pytest.mark.parametrize(("channels", "place"), [(16, "[i0 + 16 * i1]"), (4, "[8 * i0 + i1]")])
def test_the_channels_of_a_state_are_neighbours_where_they_fill_a_vector(channels: int, place: str) -> None:
    source = generate_cpp(kernel(channels)[1])
    assert f"after0{place} = " in source


def test_an_operand_of_all_steps_is_copied_into_the_order_of_the_state() -> None:
    before, after = generate_cpp(kernel(16, PLAIN)[1]).rsplit("static void kernel_0", 1)[1].split("size_t step = 0")
    assert "[i0 + 16 * i1] = v0" in before
    assert "[8 * i0 + i1]" not in after.split("std::swap")[0]
