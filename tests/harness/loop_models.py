"""Models with a loop over a sequence, as text of ONNX, and their loops as terms."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from bodies import parse

from taso_mirage.ir.model import Model
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.loops import with_scans
from taso_mirage.operators.ops import term, traits

GATED_DELTA = """
    g (float[{b}, {h}, {k}, {v}] S0, float[{t}, {b}, {h}, {k}] Q, float[{t}, {b}, {h}, {k}] K, float[{t}, {b}, {h}, {v}] V,
       float[{t}, {b}, {h}] G, float[{t}, {b}, {h}] B) => (float[{b}, {h}, {k}, {v}] S, float[{t}, {b}, {h}, {v}] O) {{
        m1 = Constant<value = int64[1] {{-1}}>() \n m2 = Constant<value = int64[1] {{-2}}>()
        g0 = Neg(G) \n b0 = Sigmoid(B)
        S, O = Scan<num_scan_inputs = 5, body = step (float[{b}, {h}, {k}, {v}] s, float[{b}, {h}, {k}] q, float[{b}, {h}, {k}] k,
                float[{b}, {h}, {v}] v, float[{b}, {h}] g, float[{b}, {h}] b) => (float[{b}, {h}, {k}, {v}] s2, float[{b}, {h}, {v}] o) {{
            d = Exp(g) \n d1 = Unsqueeze(d, m1) \n d2 = Unsqueeze(d1, m1) \n s1 = Mul(s, d2)
            k1 = Unsqueeze(k, m2) \n kv1 = MatMul(k1, s1) \n kv = Squeeze(kv1, m2)
            e0 = Sub(v, kv) \n b1 = Unsqueeze(b, m1) \n e1 = Mul(e0, b1) \n e = Unsqueeze(e1, m2)
            k2 = Unsqueeze(k, m1) \n u = Mul(k2, e) \n s2 = Add(s1, u)
            q1 = Unsqueeze(q, m2) \n o1 = MatMul(q1, s2) \n o = Squeeze(o1, m2)
        }}>(S0, Q, K, V, g0, b0)
    }}
"""
"""The gated delta rule."""
GATED = """
    g (float[{b}, {n}] h0, float[{t}, {b}, {n}] X, float[{t}, {b}, {n}] Z, float[{n}, {n}] W)
            => (float[{b}, {n}] h, float[{t}, {b}, {n}] Y) {{
        one = Constant<value = float {{1}}>()
        h, Y = Scan<num_scan_inputs = 2{more}, body = step (float[{b}, {n}] s, float[{b}, {n}] x, float[{b}, {n}] z)
                => (float[{b}, {n}] s2, float[{b}, {n}] y) {{
            p = MatMul(x, W) \n c = Tanh(p) \n i = Sigmoid(z) \n f = Sub(one, i)
            a = Mul(f, s) \n b = Mul(i, c) \n s2 = Add(a, b) \n y = Mul(s2, c)
        }}>(h0, X, Z)
    }}
"""
"""A gated recurrence of elements, whose candidates are a product with a weight (minGRU)."""
RECURRENT = """
    g (float[2, {n}] h0, float[{t}, 2, {n}] X, float[{n}, {n}] W) => (float[2, {n}] h, float[{t}, 2, {n}] Y) {{
        h, Y = Scan<num_scan_inputs = 1, body = step (float[2, {n}] s, float[2, {n}] x) => (float[2, {n}] s2, float[2, {n}] y) {{
            p = MatMul(s, W) \n q = Add(p, x) \n s2 = Tanh(q) \n y = Identity(s2)
        }}>(h0, X)
    }}
"""
"""A product of the state."""
SHIFTED = """
    g (float[3, {n}] a0, float[3, {n}] b0, float[{t}, 3, {n}] X)
            => (float[3, {n}] a, float[3, {n}] b, float[{t}, 3, {n}] Y, float[{t}, 3, 1] M) {{
        a, b, Y, M = Scan<num_scan_inputs = 1, body = step (float[3, {n}] s, float[3, {n}] r, float[3, {n}] x)
                => (float[3, {n}] s2, float[3, {n}] r2, float[3, {n}] y, float[3, 1] m) {{
            s2 = Identity(x) \n r2 = Identity(s) \n p = Add(s, r) \n y = Add(p, x) \n m = ReduceMax<axes = [1]>(y)
        }}>(a0, b0, X)
    }}
"""
"""A shift register, whose states change places, with a maximum of each row."""


CHANNELS = """
    g (float[{b}, 2, 3, 16] S0, float[{t}, {b}, 2, 3] Q, float[{t}, {b}, 2, 3] K, float[{t}, {b}, 2, 16] V, float[{t}, {b}, 2, 3] D)
            => (float[{b}, 2, 3, 16] S, float[{t}, {b}, 2, 16] O) {{
        m1 = Constant<value = int64[1] {{-1}}>() \n m2 = Constant<value = int64[1] {{-2}}>()
        S, O = Scan<num_scan_inputs = 4, body = step (float[{b}, 2, 3, 16] s, float[{b}, 2, 3] q, float[{b}, 2, 3] k,
                float[{b}, 2, 16] v, float[{b}, 2, 3] d) => (float[{b}, 2, 3, 16] s2, float[{b}, 2, 16] o) {{
            d1 = Unsqueeze(d, m1) \n s1 = Mul(s, d1) \n q1 = Unsqueeze(q, m2) \n o1 = MatMul(q1, s1) \n o = Squeeze(o1, m2)
            k1 = Unsqueeze(k, m1) \n v1 = Unsqueeze(v, m2) \n u = Mul(k1, v1) \n s2 = Add(s1, u)
        }}>(S0, Q, K, V, D)
    }}
"""
"""Linear attention with a decay for each channel of the keys; outputs are those of the state
before."""


COUNTED = """
    g (float[2, {n}] h0, float[{t}, 2, {n}] X, float[{t}, 2, {n}] Z, float[{n}, {n}] W)
            => (float[2, {n}] h, float[{t}, 2, {n}] Y) {{
        zero = Constant<value = int64 {{0}}>() \n yes = Constant<value = bool {{1}}>()
        shape = Shape(X) \n trips = Gather(shape, zero)
        h, Y = Loop(trips, yes, h0) <body = step (int64 i, bool c, float[2, {n}] s)
                => (bool c2, float[2, {n}] s2, float[2, {n}] y) {{
            {counter}
            c2 = {goes_on}
            x = Gather(X, j) \n z = Gather(Z, i) \n p = MatMul(x, W) \n q = Tanh(p)
            a = Mul(z, s) \n s2 = Add(a, q) \n y = Mul(s2, z)
        }}>
    }}
"""
"""A Loop whose counter chooses elements of two sequences."""


def counted(
    t: int | str = 4, n: int = 32, counter: str = "j = Identity(i)", goes_on: str = "Identity(c)"
) -> onnx.ModelProto:
    """The Loop; `counter`: the nodes that compute the place `j` in X, `goes_on`: the call that says
    whether it continues."""
    return parse(COUNTED.format(t=t, n=n, counter=counter, goes_on=goes_on))


GREEDY = """
    g (float[{b}, {n}] h0, int64[{b}] w0, float[{w}, {n}] E, float[{n}, {n}] R, float[{n}, {w}] O)
            => (float[{b}, {n}] h, int64[{b}] w, int64[{t}, {b}] Y) {{
        trips = Constant<value = int64 {{{t}}}>() \n yes = Constant<value = bool {{1}}>()
        h, w, Y = Loop(trips, yes, h0, w0) <body = step (int64 i, bool c, float[{b}, {n}] s, int64[{b}] k)
                => (bool c2, float[{b}, {n}] s2, int64[{b}] k2, int64[{b}] y) {{
            c2 = Identity(c) \n x = Gather(E, k) \n q = MatMul(s, R) \n a = Add(x, q) \n s2 = Tanh(a)
            l = MatMul(s2, O) \n k2 = ArgMax<axis = 1, keepdims = 0>(l) \n y = Identity(k2)
        }}>
    }}
"""
"""A Loop that reads no sequence: a decoder whose next token is that of the largest output."""


def greedy(t: int = 4, n: int = 8, w: int = 12, b: int = 1) -> onnx.ModelProto:
    """The decoder: states of `n` elements, `w` tokens, `b` samples."""
    return parse(GREEDY.format(t=t, n=n, w=w, b=b))


def gated_delta(t: int | str = 4, h: int = 2, k: int = 3, v: int = 16, b: int | str = 1) -> onnx.ModelProto:
    """The gated delta rule: `h` heads, keys of `k` elements, values of `v`, of `b` samples."""
    return parse(GATED_DELTA.format(t=t, h=h, k=k, v=v, b=b))


def gated(t: int | str = 4, n: int = 32, more: str = "", b: int | str = 2) -> onnx.ModelProto:
    """The gated recurrence of `b` samples; `more`: further attributes of its Scan."""
    return parse(GATED.format(t=t, n=n, more=more, b=b))


def channels(t: int | str = 4, b: int | str = 1) -> onnx.ModelProto:
    """Linear attention with decays of channels, of `b` samples."""
    return parse(CHANNELS.format(t=t, b=b))


def recurrent(t: int | str = 4, n: int = 8) -> onnx.ModelProto:
    """The recurrence with a product of its state."""
    return parse(RECURRENT.format(t=t, n=n))


def shifted(t: int | str = 4, n: int = 8) -> onnx.ModelProto:
    """The shift register."""
    return parse(SHIFTED.format(t=t, n=n))


BACKWARD = ", scan_input_directions = [1, 1], scan_output_directions = [1]"
RECURRENCES: dict[str, Callable[[], onnx.ModelProto]] = {
    "gated delta": gated_delta,
    "gated": gated,
    "backward": lambda: gated(more=BACKWARD),
    "channels": channels,
    "recurrent": recurrent,
    "shifted": shifted,
}
"""Models of a Scan, by their names."""


def as_terms(proto: onnx.ModelProto) -> Model:
    """The model with its loops as terms."""
    return with_scans(from_memory(proto))


def loop(proto: onnx.ModelProto) -> Graph:
    """The only loop of a model over inputs of its own, with all its results."""
    (node,) = [n for n in as_terms(proto).nodes() if traits(n).lowering is Lowering.STEPS]
    leaves = tuple(variable(f"x{i}", Tensor(a.dtype, a.shape)) for i, a in enumerate(node.args))
    made = term(node.op, *leaves, **dict(node.attrs))
    return Graph(leaves, results(made))


def results(node: Node) -> tuple[Node, ...]:
    """All results of a term."""
    several = node.type if isinstance(node.type, tuple) else ()
    return tuple(term("item", node, index=i) for i in range(len(several))) or (node,)
