"""The models of `recurrent.py`: loops of recurrent layers as exporters write them, as text of ONNX,
with their projections where the layer has them in its loop; and a layer of experts that are written
out, with tokens in the place of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, KEYS, VALUES, WIDTH, HIDDEN = 16, 128, 128, 512, 256
"""Heads of attention with their sizes, the channels of a gated recurrence, and of a cell."""
HEADER = '<ir_version: 9, opset_import: ["" : 17]>'
ATTENTION = """
    g (float[1, {h}, {k}, {v}] S0, float[{t}, 1, {h}, {k}] Q, float[{t}, 1, {h}, {k}] K, float[{t}, 1, {h}, {v}] V,
       float[{t}, 1, {h}] G, float[{t}, 1, {h}] B) => (float[1, {h}, {k}, {v}] S, float[{t}, 1, {h}, {v}] O) {{
        m1 = Constant<value = int64[1] {{-1}}>() \n m2 = Constant<value = int64[1] {{-2}}>()
        S, O = Scan<num_scan_inputs = 5, body = step (float[1, {h}, {k}, {v}] s, float[1, {h}, {k}] q, float[1, {h}, {k}] k,
                float[1, {h}, {v}] v, float[1, {h}] g, float[1, {h}] b) => (float[1, {h}, {k}, {v}] s2, float[1, {h}, {v}] o) {{
            {decay}
            k1 = Unsqueeze(k, m2) \n k2 = Unsqueeze(k, m1)
            {update}
            u = Mul(k2, e) \n s2 = Add(s1, u)
            q1 = Unsqueeze(q, m2) \n o1 = MatMul(q1, s2) \n o = Squeeze(o1, m2)
        }}>(S0, Q, K, V, G, B)
    }}
"""
DECAY = "d = Exp(g) \n d1 = Unsqueeze(d, m1) \n d2 = Unsqueeze(d1, m1) \n s1 = Mul(s, d2)"
STAYS = "s1 = Identity(s)"
DELTA = """kv1 = MatMul(k1, s1) \n kv = Squeeze(kv1, m2) \n e0 = Sub(v, kv)
            b1 = Unsqueeze(b, m1) \n e1 = Mul(e0, b1) \n e = Unsqueeze(e1, m2)"""
ADDS = "e = Unsqueeze(v, m2)"
GATED = """
    g (float[1, {n}] h0, float[{t}, 1, {n}] X, float[{n}, {n}] W, float[{n}, {n}] Z) => (float[1, {n}] h, float[{t}, 1, {n}] Y) {{
        one = Constant<value = float {{1}}>()
        h, Y = Scan<num_scan_inputs = 1, body = step (float[1, {n}] s, float[1, {n}] x) => (float[1, {n}] s2, float[1, {n}] y) {{
            c = MatMul(x, W) \n p = MatMul(x, Z) \n i = Sigmoid(p) \n f = Sub(one, i)
            a = Mul(f, s) \n b = Mul(i, c) \n s2 = Add(a, b) \n y = Identity(s2)
        }}>(h0, X)
    }}
"""
SELECTIVE = """
    g (float[{n}, 16] h0, float[{t}, {n}] X, float[{t}, {n}] D, float[{t}, 16] B, float[{t}, 16] C, float[{n}, 16] A)
            => (float[{n}, 16] h, float[{t}, {n}] Y) {{
        m1 = Constant<value = int64[1] {{-1}}>() \n m0 = Constant<value = int64[1] {{0}}>()
        h, Y = Scan<num_scan_inputs = 4, body = step (float[{n}, 16] s, float[{n}] x, float[{n}] d, float[16] b, float[16] c)
                => (float[{n}, 16] s2, float[{n}] y) {{
            d0 = Softplus(d) \n d1 = Unsqueeze(d0, m1) \n e = Exp(A) \n e0 = Neg(e) \n e1 = Mul(d1, e0) \n a = Exp(e1)
            p = Mul(a, s) \n x0 = Mul(d0, x) \n x1 = Unsqueeze(x0, m1) \n b1 = Unsqueeze(b, m0) \n u = Mul(x1, b1)
            s2 = Add(p, u) \n c1 = Unsqueeze(c, m1) \n o = MatMul(s2, c1) \n y = Squeeze(o, m1)
        }}>(h0, X, D, B, C)
    }}
"""
LSTM = """
    g (float[1, {n}] h0, float[1, {n}] c0, float[{t}, 1, {n}] X, float[{n}, {m}] W, float[{n}, {m}] R, float[{m}] b)
            => (float[1, {n}] h, float[1, {n}] c, float[{t}, 1, {n}] Y) {{
        h, c, Y = Scan<num_scan_inputs = 1, body = step (float[1, {n}] s, float[1, {n}] r, float[1, {n}] x)
                => (float[1, {n}] s2, float[1, {n}] r2, float[1, {n}] y) {{
            p = MatMul(x, W) \n q = MatMul(s, R) \n a0 = Add(p, q) \n a = Add(a0, b)
            i0, f0, g0, o0 = Split<axis = 1>(a)
            i = Sigmoid(i0) \n f = Sigmoid(f0) \n g = Tanh(g0) \n o = Sigmoid(o0)
            u = Mul(f, r) \n w = Mul(i, g) \n r2 = Add(u, w) \n z = Tanh(r2) \n s2 = Mul(o, z) \n y = Identity(s2)
        }}>(h0, c0, X)
    }}
"""
GRU = """
    g (float[1, {n}] h0, float[{t}, 1, {n}] X, float[{n}, {l}] W, float[{n}, {l}] R) => (float[1, {n}] h, float[{t}, 1, {n}] Y) {{
        one = Constant<value = float {{1}}>()
        h, Y = Scan<num_scan_inputs = 1, body = step (float[1, {n}] s, float[1, {n}] x) => (float[1, {n}] s2, float[1, {n}] y) {{
            p = MatMul(x, W) \n q = MatMul(s, R) \n p0, p1, p2 = Split<axis = 1>(p) \n q0, q1, q2 = Split<axis = 1>(q)
            z0 = Add(p0, q0) \n z = Sigmoid(z0) \n r0 = Add(p1, q1) \n r = Sigmoid(r0)
            n0 = Mul(r, q2) \n n1 = Add(p2, n0) \n c = Tanh(n1)
            f = Sub(one, z) \n a = Mul(f, c) \n b = Mul(z, s) \n s2 = Add(a, b) \n y = Identity(s2)
        }}>(h0, X)
    }}
"""
GENERAL = """
    g (float[1, {h}, {k}, {v}] S0, float[{t}, 1, {h}, {k}] R, float[{t}, 1, {h}, {k}] D, float[{t}, 1, {h}, {k}] K,
       float[{t}, 1, {h}, {v}] V, float[{t}, 1, {h}, {k}] A, float[{t}, 1, {h}, {k}] B)
            => (float[1, {h}, {k}, {v}] S, float[{t}, 1, {h}, {v}] O) {{
        m1 = Constant<value = int64[1] {{-1}}>() \n m2 = Constant<value = int64[1] {{-2}}>()
        S, O = Scan<num_scan_inputs = 6, body = step (float[1, {h}, {k}, {v}] s, float[1, {h}, {k}] r, float[1, {h}, {k}] d,
                float[1, {h}, {k}] k, float[1, {h}, {v}] v, float[1, {h}, {k}] a, float[1, {h}, {k}] b)
                => (float[1, {h}, {k}, {v}] s2, float[1, {h}, {v}] o) {{
            d0 = Sigmoid(d) \n d1 = Unsqueeze(d0, m1) \n s1 = Mul(s, d1)
            a1 = Unsqueeze(a, m2) \n sa = MatMul(a1, s) \n b1 = Unsqueeze(b, m1) \n p = Mul(b1, sa) \n s3 = Sub(s1, p)
            k1 = Unsqueeze(k, m1) \n v1 = Unsqueeze(v, m2) \n u = Mul(k1, v1) \n s2 = Add(s3, u)
            r1 = Unsqueeze(r, m2) \n o1 = MatMul(r1, s2) \n o = Squeeze(o1, m2)
        }}>(S0, R, D, K, V, A, B)
    }}
"""
DUAL = """
    g (float[1, {h}, {v}, {k}] S0, float[{t}, 1, {h}, {v}] X, float[{t}, 1, {h}] T, float[{t}, 1, {k}] B, float[{t}, 1, {k}] C,
       float[{h}] A, float[{h}] D) => (float[1, {h}, {v}, {k}] S, float[{t}, 1, {h}, {v}] Y) {{
        m1 = Constant<value = int64[1] {{-1}}>()
        n12 = Constant<value = int64[2] {{1, 2}}>() \n n13 = Constant<value = int64[2] {{1, 3}}>()
        S, Y = Scan<num_scan_inputs = 4, body = step (float[1, {h}, {v}, {k}] s, float[1, {h}, {v}] x, float[1, {h}] t, float[1, {k}] b,
                float[1, {k}] c) => (float[1, {h}, {v}, {k}] s2, float[1, {h}, {v}] y) {{
            t0 = Softplus(t) \n e = Exp(A) \n e0 = Neg(e) \n e1 = Mul(t0, e0) \n a = Exp(e1)
            a1 = Unsqueeze(a, m1) \n a2 = Unsqueeze(a1, m1) \n p = Mul(s, a2) \n t1 = Unsqueeze(t0, m1)
            x0 = Mul(t1, x) \n x1 = Unsqueeze(x0, m1) \n b1 = Unsqueeze(b, n12) \n u = Mul(x1, b1)
            s2 = Add(p, u) \n c1 = Unsqueeze(c, n13) \n o = MatMul(s2, c1) \n o1 = Squeeze(o, m1) \n d = Unsqueeze(D, m1) \n x2 = Mul(x, d)
            y = Add(o1, x2)
        }}>(S0, X, T, B, C)
    }}
"""
STREAMED = """
    g (float[1, {n}, 8] b0, float[{t}, 1, {n}] X, float[{n}, 9] W, float[{n}, {n}] P) => (float[1, {n}, 8] b, float[{t}, 1, {n}] Y) {{
        m1 = Constant<value = int64[1] {{-1}}>() \n one = Constant<value = int64[1] {{1}}>() \n nine = Constant<value = int64[1] {{9}}>()
        two = Constant<value = int64[1] {{2}}>()
        b, Y = Scan<num_scan_inputs = 1, body = step (float[1, {n}, 8] s, float[1, {n}] x) => (float[1, {n}, 8] s2, float[1, {n}] y) {{
            x1 = Unsqueeze(x, m1) \n w = Concat<axis = 2>(s, x1) \n s2 = Slice(w, one, nine, two)
            p = Mul(w, W) \n c = ReduceSum<keepdims = 0>(p, two) \n r = Relu(c) \n q = MatMul(r, P) \n y = Add(x, q)
        }}>(b0, X)
    }}
"""
VOICE = """
    g (float[1, {n}] h0, float[1, {n}] c0, float[{t}, 1, {k}] X, float[{k}, {n}] F, float[{n}, {m}] W, float[{n}, {m}] R,
       float[{m}] b, float[{n}, 1] O) => (float[1, {n}] h, float[1, {n}] c, float[{t}, 1, 1] Y) {{
        h, c, Y = Scan<num_scan_inputs = 1, body = step (float[1, {n}] s, float[1, {n}] r, float[1, {k}] x)
                => (float[1, {n}] s2, float[1, {n}] r2, float[1, 1] y) {{
            e0 = MatMul(x, F) \n e = Relu(e0) \n p = MatMul(e, W) \n q = MatMul(s, R) \n a0 = Add(p, q) \n a = Add(a0, b)
            i0, f0, g0, o0 = Split<axis = 1>(a)
            i = Sigmoid(i0) \n f = Sigmoid(f0) \n g = Tanh(g0) \n o = Sigmoid(o0)
            u = Mul(f, r) \n w = Mul(i, g) \n r2 = Add(u, w) \n z = Tanh(r2) \n s2 = Mul(o, z)
            v0 = Relu(s2) \n v = MatMul(v0, O) \n y = Sigmoid(v)
        }}>(h0, c0, X)
    }}
"""
GREEDY = """
    g (float[1, {n}] h0, int64[1] w0, float[{w}, {n}] E, float[{n}, {n}] W, float[{n}, {n}] R, float[{n}, {w}] O)
            => (float[1, {n}] h, int64[1] w, int64[{t}, 1] Y) {{
        trips = Constant<value = int64 {{{t}}}>() \n yes = Constant<value = bool {{1}}>()
        h, w, Y = Loop(trips, yes, h0, w0) <body = step (int64 i, bool c, float[1, {n}] s, int64[1] k)
                => (bool c2, float[1, {n}] s2, int64[1] k2, int64[1] y) {{
            c2 = Identity(c) \n x = Gather(E, k) \n p = MatMul(x, W) \n q = MatMul(s, R) \n a = Add(p, q) \n s2 = Tanh(a)
            l = MatMul(s2, O) \n k2 = ArgMax<axis = 1, keepdims = 0>(l) \n y = Identity(k2)
        }}>
    }}
"""


EXPERTS = """
    g (float[{t}, {n}] X, float[{n}, {e}] W, {weights}) => (float[{t}, {n}] Y) {{
        m1 = Constant<value = int64[1] {{-1}}>() \n top = Constant<value = int64[1] {{{k}}}>()
        l = MatMul(X, W) \n p = Softmax(l) \n v, i = TopK(p, top) \n s = ReduceSum(v, m1) \n d = Div(v, s)
        shape = Shape(p) \n z = ConstantOfShape(shape) \n shares = ScatterElements<axis = 1>(z, i, d)
        {each}
        Y = Sum({results})
    }}
"""
EXPERT = """
        i{j} = Constant<value = int64 {{{j}}}>() \n s{j} = Gather<axis = 1>(shares, i{j}) \n r{j} = Unsqueeze(s{j}, m1)
        g{j} = MatMul(X, G{j}w) \n a{j} = Sigmoid(g{j}) \n b{j} = Mul(g{j}, a{j}) \n u{j} = MatMul(X, U{j}w)
        h{j} = Mul(b{j}, u{j}) \n d{j} = MatMul(h{j}, D{j}w) \n y{j} = Mul(d{j}, r{j})
"""


def experts(t: int, count: int, chosen: int, width: int) -> str:
    """A layer of gated experts for tokens, each of which is written out."""
    numbers = range(count)
    weights = ", ".join(f"float[{width}, {width}] {name}{j}w" for j in numbers for name in "GUD")
    each = "".join(EXPERT.format(j=j) for j in numbers)
    results = ", ".join(f"y{j}" for j in numbers)
    return EXPERTS.format(t=t, n=width, e=count, k=chosen, weights=weights, each=each, results=results)


def attention(decay: str, update: str) -> Callable[[int], str]:
    """Attention whose state is a matrix for each head."""
    return lambda t: ATTENTION.format(t=t, h=HEADS, k=KEYS, v=VALUES, decay=decay, update=update)


MODELS: dict[str, Callable[[int], str]] = {
    "gated delta rule": attention(DECAY, DELTA),
    "delta rule": attention(STAYS, DELTA),
    "gated linear attention": attention(DECAY, ADDS),
    "linear attention": attention(STAYS, ADDS),
    "minGRU": lambda t: GATED.format(t=t, n=WIDTH),
    "selective scan": lambda t: SELECTIVE.format(t=t, n=2 * WIDTH),
    "LSTM": lambda t: LSTM.format(t=t, n=HIDDEN, m=4 * HIDDEN),
    "GRU": lambda t: GRU.format(t=t, n=HIDDEN, l=3 * HIDDEN),
    "RWKV-7": lambda t: GENERAL.format(t=t, h=HEADS, k=KEYS // 2, v=VALUES // 2),
    "Mamba-2": lambda t: DUAL.format(t=t, h=HEADS, k=KEYS, v=VALUES // 2),
    "streamed convolution": lambda t: STREAMED.format(t=t, n=WIDTH),
    "voice activity": lambda t: VOICE.format(t=t, n=HIDDEN // 2, m=2 * HIDDEN, k=HIDDEN),
    "greedy decoder": lambda t: GREEDY.format(t=t, n=HIDDEN, w=8 * WIDTH),
    "64 experts": lambda t: experts(t, 64, 4, HIDDEN // 2),
}
RULES = {
    "gated delta rule": "gated_delta",
    "delta rule": "delta",
    "gated linear attention": "gated",
    "linear attention": "linear",
}
"""The rules of ONNX Runtime's LinearAttention."""


def with_weights(name: str, t: int) -> onnx.ModelProto:
    """A model whose operands besides sequences and first states are initializers: what the length
    does not change, and whose name has no 0 at its end."""
    model, other = (onnx.parser.parse_model(f"{HEADER}\n{MODELS[name](n)}") for n in (t, t + 1))
    same = {each.name for each, own in zip(model.graph.input, other.graph.input, strict=True) if each == own}
    arrays = {n: a for n, a in inputs(model).items() if n in same and not n.endswith("0")}
    for each in [each for each in model.graph.input if each.name in arrays]:
        model.graph.input.remove(each)
        model.graph.initializer.append(numpy_helper.from_array(arrays[each.name], each.name))
    return model


def inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Rows of length 1, decays below 1."""
    rng, found = np.random.default_rng(0), {}
    for each in model.graph.input:
        shape = [d.dim_value for d in each.type.tensor_type.shape.dim]
        array = rng.normal(size=shape) / shape[-1] ** 0.5
        dtype = helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
        found[each.name] = (-np.abs(array) if each.name == "G" else array).astype(dtype)
    return found


def own_operator(rule: str, t: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of ONNX Runtime's operator for a rule, and inputs for it."""
    shapes = {"q": KEYS, "k": KEYS, "v": VALUES, "s": 0, "g": 1, "b": 1}
    used = [n for n in shapes if not (n == "g" and "gated" not in rule) and not (n == "b" and "delta" not in rule)]
    types = {n: (1, t, HEADS * shapes[n]) if shapes[n] else (1, HEADS, KEYS, VALUES) for n in used}
    names = [n if n in used else "" for n in shapes]
    while not names[-1]:
        names.pop()
    attrs = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "update_rule": rule, "scale": 1.0}
    node = helper.make_node("LinearAttention", names, ["y", "z"], domain="com.microsoft", **attrs)
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in types.items()]
    made = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, t, HEADS * VALUES)),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, HEADS, KEYS, VALUES)),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    rng = np.random.default_rng(0)
    feed = {n: (rng.normal(size=s) / s[-1] ** 0.5).astype(np.float32) for n, s in types.items()}
    return helper.make_model(helper.make_graph([node], "g", given, made), opset_imports=opsets, ir_version=9), feed


def agree(wanted: Iterable[np.ndarray], found: Iterable[np.ndarray]) -> None:
    """Raises AssertionError where results differ."""
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, 1e-3, 1e-4)


def has_loop(model: onnx.ModelProto) -> bool:
    return any(node.op_type in ("Scan", "Loop") for node in model.graph.node)
