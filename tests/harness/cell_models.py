"""Loops that are recurrent layers, in the forms in which frameworks write them, as text of ONNX."""

from __future__ import annotations

import onnx
from bodies import parse

LSTM = """
    i0, f0, g0, o0 = Split<axis = 1>(a) \n i = Sigmoid(i0) \n f = Sigmoid(f0) \n g = Tanh(g0) \n o = Sigmoid(o0)
    u = Mul(f, c) \n v = Mul(i, g) \n c2 = Add(u, v) \n k = Tanh(c2) \n h2 = Mul(o, k)
"""
SUM = "p = MatMul(x, W) \n q = MatMul(h, R) \n s = Add(p, q) \n a = Add(s, b)"
GRU = """
    p = MatMul(x, W) \n q0 = MatMul(h, R) \n p0, p1, p2 = Split<axis = 1>(p) \n q = Add(q0, b) \n q1, q2, q3 = Split<axis = 1>(q)
    z0 = Add(p0, q1) \n z = Sigmoid(z0) \n r0 = Add(p1, q2) \n r = Sigmoid(r0) \n n0 = Mul(r, q3) \n n1 = Add(p2, n0) \n n = Tanh(n1)
"""
BEFORE = """
    p = MatMul(x, W) \n p0, p1, p2 = Split<axis = 1>(p) \n b0, b1, b2 = Split<axis = 0>(b) \n R0, R1, R2 = Split<axis = 1>(R)
    q0 = MatMul(h, R0) \n z1 = Add(p0, q0) \n z2 = Add(z1, b0) \n z = Sigmoid(z2)
    q1 = MatMul(h, R1) \n r1 = Add(p1, q1) \n r2 = Add(r1, b1) \n r = Sigmoid(r2)
    m = Mul(r, h) \n q2 = MatMul(m, R2) \n n1 = Add(p2, q2) \n n2 = Add(n1, b2) \n n = Tanh(n2)
"""
MIXED = "one = Constant<value = float {1}>() \n y = Sub(one, z) \n u = Mul(y, n) \n v = Mul(z, h) \n h2 = Add(u, v)"
MODEL = """
    g (float[{n}, 4] h0, float[{n}, 4] c0, float[{t}, {n}, 3] X, float[{i}, {w}] W, float[4, {w}] R, float[{w}] b)
            => ({results}) {{
        {before}
        {outputs} = Scan<num_scan_inputs = 1{more}, body = step ({states}, float[{n}, {e}] x) => ({news}, float[{n}, 4] y9) {{
            {step} \n y9 = Identity({output})
        }}>({firsts}, {sequence})
    }}
"""


def layer(
    step: str,
    gates: int,
    states: str = "h c",
    t: int | str = 3,
    n: int | str = 2,
    rows: int = 3,
    before: str = "",
    sequence: str = "X",
    width: int = 3,
    backward: bool = False,
    firsts: str = "",
    output: str = "h2",
) -> onnx.ModelProto:
    """A loop over `X` (t, n, 3) whose step computes `h2` (and `c2`) of `x`, `h` (and `c`), the
    matrices `W` (rows, 4 gates) and `R`, and the vector `b`. `states`: their order; `before`: nodes
    that compute `sequence`, of elements (n, width)."""
    names = states.split()
    return parse(
        MODEL.format(
            t=t,
            n=n,
            i=rows,
            w=4 * gates,
            e=width,
            before=before,
            sequence=sequence,
            step=step,
            output=output,
            more=", scan_input_directions = [1], scan_output_directions = [1]" if backward else "",
            results=", ".join([*(f"float[{n}, 4] {each}9" for each in names), f"float[{t}, {n}, 4] Y"]),
            outputs=", ".join([*(f"{each}9" for each in names), "Y"]),
            states=", ".join(f"float[{n}, 4] {each}" for each in names),
            news=", ".join(f"float[{n}, 4] {each}2" for each in names),
            firsts=firsts or ", ".join(f"{each}0" for each in names),
        )
    )


COUNTED = """
    g (float[2, 4] h0, float[{t}, 2, 3] X, float[3, 4] W, float[4, 4] R, float[4] b) => (float[2, 4] h9, float[{t}, 2, 4] Y) {{
        zero = Constant<value = int64 {{0}}>() \n yes = Constant<value = bool {{1}}>() \n shape = Shape(X) \n trips = Gather(shape, zero)
        h9, Y = Loop(trips, yes, h0) <body = step (int64 i, bool l, float[2, 4] h) => (bool l2, float[2, 4] h2, float[2, 4] y9) {{
            l2 = Identity(l) \n x = Gather(X, i) \n {step} \n h2 = Tanh(a) \n y9 = Identity(h2)
        }}>
    }}
"""


def counted_layer(t: int | str) -> onnx.ModelProto:
    """An RNN as a Loop whose counter chooses the elements."""
    return parse(COUNTED.format(t=t, step=SUM))


ZEROS = "s9 = Constant<value = int64[2] {2, 4}>() \n z0 = ConstantOfShape(s9)"
LAYERS = {
    "lstm": lambda: layer(f"{SUM} {LSTM}", 4),
    "lstm of any length": lambda: layer(f"{SUM} {LSTM}", 4, t="t", n="n"),
    "lstm backward": lambda: layer(f"{SUM} {LSTM}", 4, backward=True),
    "lstm with its cell first": lambda: layer(f"{SUM} {LSTM}", 4, states="c h"),
    "lstm with the gates in another order": lambda: layer(
        f"{SUM} {LSTM.replace('i0, f0, g0, o0', 'o0, g0, i0, f0')}", 4
    ),
    "lstm of one matrix": lambda: layer(
        f"K = Concat<axis = 0>(W, R) \n j = Concat<axis = 1>(x, h) \n p = MatMul(j, K) \n a = Add(p, b) {LSTM}", 4
    ),
    "lstm whose forget gate begins open": lambda: layer(
        f"{SUM} {LSTM}".replace(
            "f = Sigmoid(f0)", "l = Constant<value = float {1}>() \n f1 = Add(f0, l) \n f = Sigmoid(f1)"
        ),
        4,
    ),
    "lstm over products": lambda: layer(
        f"q = MatMul(h, R) \n a = Add(x, q) {LSTM}",
        4,
        before="P0 = MatMul(X, W) \n P = Add(P0, b)",
        sequence="P",
        width=16,
    ),
    "lstm of Gemm": lambda: layer(
        f"T = Transpose<perm = [1, 0]>(R) \n p = MatMul(x, W) \n q = Gemm<transB = 1>(h, T, b) \n a = Add(p, q) {LSTM}",
        4,
    ),
    "lstm with another activation": lambda: layer(f"{SUM} {LSTM}".replace("k = Tanh(c2)", "k = Softsign(c2)"), 4),
    "lstm of states that are zero": lambda: layer(f"{SUM} {LSTM}", 4, before=ZEROS, firsts="z0, h0"),
    "gru": lambda: layer(f"{GRU} {MIXED}", 3, "h"),
    "gru of any length": lambda: layer(f"{GRU} {MIXED}", 3, "h", t="t", n="n", backward=True),
    "rnn that is counted": lambda: counted_layer(3),
    "gru as a step to the hidden gate": lambda: layer(
        f"{GRU} d = Sub(h, n) \n u = Mul(z, d) \n h2 = Add(n, u)", 3, "h"
    ),
    "gru that resets the state": lambda: layer(f"{BEFORE} {MIXED}", 3, "h"),
    "rnn": lambda: layer(f"{SUM} \n h2 = Tanh(a)", 1, "h"),
    "rnn of Relu backward": lambda: layer(
        "p = MatMul(x, W) \n q = MatMul(h, R) \n s = Add(p, q) \n h2 = Relu(s)", 1, "h", backward=True, t="t"
    ),
}
"""Models whose loops are operators, which begin the names."""
