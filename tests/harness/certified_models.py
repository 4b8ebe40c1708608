"""Small models that `optimize` changes, with everything that their certificates have to lead
through: attributes at their defaults, nodes without a definition, bodies, functions, draws, old
versions, many types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_texts
from onnx import helper, numpy_helper

RNG = np.random.default_rng(0)
VARIANCE = RNG.uniform(0.5, 2, 4).astype(np.float32)


def weights(**shapes: Sequence[int]) -> dict[str, np.ndarray]:
    """Random arrays that are equal at every call."""
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def text(
    body: str, arrays: Mapping[str, np.ndarray] | None = None, opset: int = 18, ir: int = 8, more: str = ""
) -> onnx.ModelProto:
    """A model of onnx's text form."""
    return onnx_texts.parse(body, f'<ir_version: {ir}, opset_import: ["" : {opset}{more}]>', arrays)


def after_conv(call: str, opset: int = 18) -> onnx.ModelProto:
    """An operator behind a convolution and a batch normalization."""
    body = f"""
        g (float[1, 3, 6, 6] x) => (y) {{
            t = Conv<pads = [1, 1, 1, 1]>(x, w, b)
            n = BatchNormalization(t, s, b, m, v)
            {call}
        }}
    """
    arrays = weights(w=(4, 3, 3, 3), s=(4,), b=(4,), m=(4,)) | {"v": VARIANCE}
    return typed(text(body, arrays, opset))


def after_turns(
    call: str, type: str = "float[4, 4] x", opset: int = 18, more: str = "", **arrays: np.ndarray
) -> onnx.ModelProto:
    """An operator between two transpositions and a double negation."""
    body = f"""
        g ({type}) => (y) {{
            t1 = Transpose<perm = [1, 0]>(x) \n t = Transpose<perm = [1, 0]>(t1)
            {call}
        }}
    """
    return typed(text(body, arrays, opset, more=more))


def typed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the type of its outputs, where onnx infers it."""
    found = {v.name: v for v in onnx.shape_inference.infer_shapes(proto).graph.output}
    for value in proto.graph.output:
        if not value.HasField("type") and found[value.name].HasField("type"):
            value.CopyFrom(found[value.name])
    return proto


DEFAULTS = {
    **{
        op: f"y = {op}(n)" for op in "LeakyRelu Elu Selu HardSigmoid Celu ThresholdedRelu Shrink HardSwish Mish".split()
    },
    "LRN": "y = LRN<size = 3>(n)",
    "InstanceNormalization": "y = InstanceNormalization(n, s, b)",
    "LayerNormalization": "p = Reshape(n, r)\n y = LayerNormalization(n, l)",
    "Gemm": "f = Flatten(n)\n y = Gemm(f, h, k)",
    "LpNormalization": "y = LpNormalization(n)",
    "Softplus": "y = Softplus(n)",
    "Resize": 'y = Resize<mode = "cubic">(n, , z)',
    "PRelu": "y = PRelu(n, a)",
    "Dropout": "y = Dropout(n)",
}
"""Operators with their attributes left out, behind a convolution."""
NEWER = {
    "GroupNormalization": (21, "y = GroupNormalization<num_groups = 2>(n, s, b)"),
    "Gelu": (20, "y = Gelu(n)"),
    "RMSNormalization": (23, "y = RMSNormalization(n, l)"),
    "Swish": (24, "y = Swish(n)"),
}
MORE = {
    "l": RNG.normal(size=6).astype(np.float32),
    "r": np.array([1, -1], np.int64),
    "h": RNG.normal(size=(144, 2)).astype(np.float32),
    "k": RNG.normal(size=2).astype(np.float32),
    "a": RNG.normal(size=(4, 1, 1)).astype(np.float32),
    "z": np.array([1, 1, 2, 2], np.float32),
}


def defaults() -> dict[str, onnx.ModelProto]:
    found = {}
    for op, (opset, call) in {**{op: (18, call) for op, call in DEFAULTS.items()}, **NEWER}.items():
        made = after_conv(call, opset)
        used = {name for n in made.graph.node for name in n.input}
        made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in MORE.items() if n in used)
        found[f"default {op}"] = typed(made)
    return found


WINDOW = "kernel_shape = [2, 2], strides = [2, 2]"
OPAQUE = {
    "Hardmax": "y = Hardmax(t)",
    "Det": "y = Det(t)",
    "RandomNormalLike": "q = RandomNormalLike(t)\n z = Shape(q)\n y = Reshape(t, z)",
    "two draws": "q = RandomNormalLike(t)\n p = RandomNormalLike(t)\n e = Sub(q, p)\n l = Less(e, most)\n y = Where(l, t, e)",
    "Dropout": "y, mask = Dropout(t)",
    "Multinomial": "q = Multinomial<sample_size = 4>(t)\n z = Shape(q)\n y = Reshape(t, z)",
    "Bernoulli": "q = Bernoulli(t)\n z = Shape(q)\n y = Reshape(t, z)",
    "EyeLike": "q = EyeLike(t)\n y = Add(q, t)",
    "NonZero": "q = NonZero(t)\n y = Transpose<perm = [1, 0]>(q)",
    "Unique": "y, f, g, h = Unique(t)",
    "TopK": "y, i = TopK(t, two)",
    "Trilu": "y = Trilu(t)",
    "CumSum": "y = CumSum(t, zero)",
    "Compress": "y = Compress<axis = 0>(t, some)",
    "GatherND": "y = GatherND(t, at)",
    "ScatterND": "y = ScatterND(t, at, up)",
    "ScatterElements": "y = ScatterElements(t, at, up2)",
    "ReverseSequence": "y = ReverseSequence(t, lens)",
    "Einsum": 'y = Einsum<equation = "ij,kj->ik">(t, t)',
    "DynamicQuantizeLinear": "y, a, b = DynamicQuantizeLinear(t)",
    "MaxUnpool": f"u = Unsqueeze(t, two2)\n p, i = MaxPool<{WINDOW}>(u)\n y = MaxUnpool<{WINDOW}>(p, i)",
    "GridSample": "u = Unsqueeze(t, two2)\n y = GridSample(u, grid)",
    "RoiAlign": "u = Unsqueeze(t, two2)\n y = RoiAlign(u, rois, one)",
    "MaxRoiPool": "u = Unsqueeze(t, two2)\n y = MaxRoiPool<pooled_shape = [2, 2]>(u, rois5)",
    "LSTM": "u = Unsqueeze(t, zero1)\n y, h, c = LSTM<hidden_size = 2>(u, wl, rl)",
    "GRU": "u = Unsqueeze(t, zero1)\n y, h = GRU<hidden_size = 2>(u, wg, rg)",
    "Binarizer": "y = ai.onnx.ml.Binarizer(t)",
    "Imputer": "y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0]>(t)",
    "sequence": "q = SequenceConstruct(t, t)\n e = SequenceAt(q, zero)\n n = Neg(e)\n y = Neg(n)",
    "SplitToSequence": "q = SplitToSequence<axis = 0>(t)\n y = ConcatFromSequence<axis = 0>(q)",
    "optional": "q = Optional(t)\n y = OptionalGetElement(q)",
    "as string": "q = Cast<to = 8>(t)\n y = Identity(q)",
    "IsInf": "q = IsInf(t)\n y = Where(q, t, t)",
    "RandomUniform": "q = RandomUniform<shape = [4, 4]>()\n z = Shape(q)\n y = Reshape(t, z)",
    "two Hardmax": "p = Hardmax(t)\n q = Hardmax<axis = 0>(t)\n y = Sub(p, q)",
    "Hardmax of two sizes": "v = Concat<axis = 0>(t, t)\n n = Neg(v)\n m = Neg(n)\n p = Hardmax(t)\n q = Hardmax(m)\n"
    " r = Neg(q)\n s = Neg(r)\n u = Neg(p)\n w = Neg(u)\n y = Concat<axis = 0>(w, s)",
    "same Hardmax": "p = Hardmax(t)\n q = Hardmax(t)\n y = Add(p, q)",
}
ARRAYS: dict[str, np.ndarray] = {
    "most": np.float32(1e30),
    "two": np.array([2], np.int64),
    "two2": np.array([0, 1], np.int64),
    "zero": np.array(0, np.int64),
    "zero1": np.array([0], np.int64),
    "one": np.array([0], np.int64),
    "some": np.array([True, False, True]),
    "at": np.array([[0, 1], [2, 3]], np.int64),
    "up": np.array([1, 2], np.float32),
    "up2": np.array([[1, 2], [3, 4]], np.float32),
    "lens": np.array([1, 2, 3, 4], np.int64),
    "grid": RNG.uniform(-1, 1, (1, 2, 2, 2)).astype(np.float32),
    "rois": np.array([[0, 0, 2, 2]], np.float32),
    "rois5": np.array([[0, 0, 0, 2, 2]], np.float32),
    **weights(wl=(1, 8, 4), rl=(1, 8, 2), wg=(1, 6, 4), rg=(1, 6, 2)),
}


def opaque() -> dict[str, onnx.ModelProto]:
    found = {}
    for name, call in OPAQUE.items():
        used = {
            n: a for n, a in ARRAYS.items() if n in call.replace("(", " ").replace(")", " ").replace(",", " ").split()
        }
        more = ', "ai.onnx.ml" : 3' if "ai.onnx.ml" in call else ""
        found[f"opaque {name}"] = after_turns(call, more=more, **used)
    return found


BODIES = {
    "If": """
        g (float[n, 4] x, bool c) => (float[n, 4] y) {
            r = Relu(x)
            y = If(c) <
                then_branch = t () => (float[n, 4] p) { a = Transpose<perm = [1, 0]>(r)
                    b = Transpose<perm = [1, 0]>(a)
                    p = Hardmax(b) },
                else_branch = e () => (float[n, 4] s) { d = Neg(x) \n f = Neg(d) \n s = LeakyRelu(f) }
            >
        }
    """,
    "If that captures what is rewritten": """
        g (float[4, 4] x, bool c) => (float[4, 4] y) {
            t1 = Transpose<perm = [1, 0]>(x) \n r = Transpose<perm = [1, 0]>(t1)
            y = If(c) <
                then_branch = t () => (float[4, 4] p) { p = Hardmax(r) },
                else_branch = e () => (float[4, 4] s) { s = Neg(r) }
            >
        }
    """,
    "Loop": """
        g (float[4, 4] x, int64 k, bool c) => (float[4, 4] y, float[l, 4, 4] z) {
            t1 = Transpose<perm = [1, 0]>(x) \n r = Transpose<perm = [1, 0]>(t1)
            y, z = Loop(k, c, r) <
                body = b (int64 i, bool go, float[4, 4] s) => (bool on, float[4, 4] o, float[4, 4] q) {
                    on = Identity(go) \n a = Neg(s) \n d = Neg(a) \n e = Exp(r) \n o = Add(d, e) \n q = Elu(o)
                }
            >
        }
    """,
    "Scan": """
        g (float[4] x, float[5, 4] xs) => (float[4] y, float[5, 4] ys) {
            n1 = Neg(x) \n n = Neg(n1)
            y, ys = Scan<
                num_scan_inputs = 1,
                body = b (float[4] s, float[4] e) => (float[4] o, float[4] q) { a = Neg(e)
                    d = Neg(a)
                    o = Add(s, d)
                    q = Selu(o) }
            >(n, xs)
        }
    """,
    "Scan, with a sum of weights that nothing reads": """
        g (float[2] s, float[3, 4] x) => (float[2] y) {
            y, z = Scan<
                num_scan_inputs = 1,
                body = b (float[2] o, float[4] r) => (float[2] n, float[4] t)
                    <float[4] w = {1.0, 2.0, 3.0, 4.5}> {
                    a = Neg(o) \n c = Neg(a) \n n = Selu(c)
                    m = ReduceMean<keepdims = 0>(w)
                    t = Add(r, m) }
            >(s, x)
        }
    """,
    "Scan over one of several results, with a sum that nothing reads": """
        g (float[2] s, float[4, 4] x) => (float[2] y, float[1, 4] rest)
            <int64[2] parts = {3, 1}> {
            a, rest = Split<axis = 0>(x, parts)
            y, z = Scan<
                num_scan_inputs = 1,
                body = b (float[2] o, float[4] r) => (float[2] n, float[4] t) {
                    d = Neg(o) \n c = Neg(d) \n n = Selu(c)
                    m = Sub(r, r)
                    t = Tanh(m) }
            >(s, a)
        }
    """,
    "a branch inside of a loop": """
        g (float[4, 4] x, int64 k, bool c) => (float[4, 4] y) {
            y = Loop(k, c, x) <
                body = b (int64 i, bool go, float[4, 4] s) => (bool on, float[4, 4] o) {
                    on = Identity(go)
                    n1 = Neg(s) \n n2 = Neg(n1)
                    o = If(go) <
                        then_branch = t () => (float[4, 4] p) { d = Transpose<perm = [1, 0]>(n2)
                            e = Transpose<perm = [1, 0]>(d)
                            p = Hardmax(e) },
                        else_branch = f () => (float[4, 4] q) { q = Celu(n2) }
                    >
                }
            >
        }
    """,
    "draws in a loop": """
        g (float[4, 4] x, int64 k, bool c) => (float[4, 4] y) {
            t1 = Transpose<perm = [1, 0]>(x) \n r = Transpose<perm = [1, 0]>(t1)
            y = Loop(k, c, r) <
                body = b (int64 i, bool go, float[4, 4] s) => (bool on, float[4, 4] o) {
                    on = Identity(go)
                    w = RandomNormalLike(s)
                    most = Constant<value_float = 1e30>()
                    l = Less(w, most)
                    a = Neg(s)
                    d = Neg(a)
                    o = Where(l, d, w)
                }
            >
        }
    """,
    "two loops alike": """
        g (float[4, 4] x, int64 k, bool c) => (float[4, 4] y) {
            a1 = Loop(k, c, x) < body = b (int64 i, bool go, float[4, 4] s) => (bool on, float[4, 4] o) { on = Identity(go)
                n = Neg(s)
                m = Neg(n)
                o = Tanh(m) } >
            a2 = Loop(k, c, x) < body = b2 (int64 i2, bool go2, float[4, 4] s2) => (bool on2, float[4, 4] o2) { on2 = Identity(go2)
                o2 = Tanh(s2) } >
            y = Add(a1, a2)
        }
    """,
    "a sequence in a body": """
        g (float[4, 4] x, bool c) => (float[4, 4] y) {
            t1 = Transpose<perm = [1, 0]>(x) \n r = Transpose<perm = [1, 0]>(t1)
            q = SequenceConstruct(r, x)
            y = If(c) <
                then_branch = t () => (float[4, 4] p) { z = Constant<value_int = 0>() \n p = SequenceAt(q, z) },
                else_branch = e () => (float[4, 4] s) { z1 = Constant<value_int = 1>() \n s = SequenceAt(q, z1) }
            >
        }
    """,
    "two sequences that become one": """
        g (float[4, 4] x, bool c) => (seq(float[1, 4]) y, seq(float[1, 4]) k) {
            r = Relu(x) \n a = SplitToSequence<axis = 0>(r) \n b = SplitToSequence<axis = 0>(r)
            k = SplitToSequence<axis = 0>(r)
            y = If(c) <
                then_branch = t () => (seq(float[1, 4]) p) { p = Identity(a) },
                else_branch = e () => (seq(float[1, 4]) q) { q = Identity(b) }
            >
        }
    """,
    "a loop without a condition that nobody reads": """
        g (float[4] x, bool c) => (float[4] v, bool d) {
            q = SequenceConstruct(x) \n v = ConcatFromSequence<axis = 0>(q) \n two = Constant<value_int = 2>()
            b = If(c) <
                then_branch = t () => (bool p) { p = Identity(c) }, else_branch = e () => (bool s) { s = Identity(c) }
            >
            d = If(b) <
                then_branch = t2 () => (bool p2) { p2 = Identity(c) }, else_branch = e2 () => (bool s2) { s2 = Identity(b) }
            >
            r = Loop(two, , q) <
                body = l (int64 i, bool go, seq(float[4]) s3) => (bool on, seq(float[4]) t3) {
                    on = Identity(go) \n t3 = SequenceInsert(s3, x)
                }
            >
        }
    """,
    "a size that is declared for an equal value": """
        g (float[2, 3] x) => (float[3, 2, 3] y, float[3, 2, 3] z) {
            q = SequenceConstruct(x, x, x) \n a = ConcatFromSequence<axis = 0, new_axis = 1>(q)
            t = Sub(a, a) \n n = Neg(t) \n y = Neg(n)
            z = ConcatFromSequence<axis = 0, new_axis = 1>(q)
        }
    """,
    "two sequences": """
        g (float[4, 4] x, bool c) => (seq(float[1, 4]) y, seq(float[1, 4]) k, seq(float[1, 4]) l) {
            t1 = Transpose<perm = [1, 0]>(x) \n r = Transpose<perm = [1, 0]>(t1) \n n = Neg(x)
            k = SplitToSequence<axis = 0>(r) \n l = SplitToSequence<axis = 0>(n)
            y = If(c) <
                then_branch = t () => (seq(float[1, 4]) p) { p = Identity(k) },
                else_branch = e () => (seq(float[1, 4]) q) { q = Identity(l) }
            >
        }
    """,
}


def bodies() -> dict[str, onnx.ModelProto]:
    return {f"body {name}": text(body) for name, body in BODIES.items()}


def functions() -> dict[str, onnx.ModelProto]:
    local = ', "local" : 1'
    called = """
        g (float[4, 4] x) => (float[4, 4] y) { n = Neg(x) \n m = Neg(n) \n y = local.F(m) }
        <domain: "local", opset_import: ["" : %d]>
        F (a) => (b) { r = LeakyRelu(a)
            t = Transpose<perm = [1, 0]>(r)
            u = Transpose<perm = [1, 0]>(t)
            b = Hardmax(u) }
    """
    standard = """
        g (float[4, 4] x) => (float[4, 4] y) { n = Neg(x) \n m = Neg(n) \n y = Elu(m) }
        <domain: "", opset_import: ["" : 18]>
        Elu (a) => (b) { b = Exp(a) }
    """
    return {
        "function": text(called % 18, more=local),
        "function of another opset": text(called % 13, more=local),
        "function for a standard operator": text(standard),
    }


def old() -> dict[str, onnx.ModelProto]:
    found = {}
    for opset in (7, 9, 11, 13):
        made = after_conv("p = LeakyRelu(n)\n q = GlobalAveragePool(p)\n y = Flatten(q)", opset)
        made.ir_version = 3 if opset == 7 else 6
        if made.ir_version < 4:
            for tensor in made.graph.initializer:
                made.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        found[f"opset {opset}"] = made
    return found


TURNS = "t1 = Transpose<perm = [1, 0]>(x) \n t = Transpose<perm = [1, 0]>(t1)"
LINEAR = f"{{ {TURNS} \n p = MatMul(t, w) \n a = Add(p, c) \n y = LeakyRelu(a) }}"
QUANTIZED = """
    p = QuantizeLinear(t, s, z)
    d = DequantizeLinear(p, s, z)
    e = DequantizeLinear(q, s, z)
    y = MatMul(d, e)
"""
GIVEN = "n = Neg(u) \n m = Neg(n) \n y = Add(e, m)"
FIRST = "z = Constant<value_int = 0>() \n e = SequenceAt(x, z)"
TYPES = {
    "half": f"g (float16[n, 4] x) => (float16[n, 4] y) {LINEAR}",
    "double": f"g (double[n, 4] x) => (double[n, 4] y) {LINEAR}",
    "quantized": f"g (float[n, 4] x) => (float[n, 4] y) {{ {TURNS} {QUANTIZED} }}",
    "integers": f"g (int64[n, 4] x) => (int64[n, 4] y) {{ {TURNS} \n y = Mul(t, k) }}",
    "strings": f"g (string[4, 4] x) => (string[4, 4] t) {{ {TURNS} }}",
    "a sequence is given": f"g (seq(float[4, 4]) x, float[4, 4] u) => (float[4, 4] y) {{ {FIRST} {GIVEN} }}",
    "an optional is given": f"g (optional(float[4, 4]) x, float[4, 4] u) => (float[4, 4] y) {{ e = OptionalGetElement(x) {GIVEN} }}",
}


def types() -> dict[str, onnx.ModelProto]:
    linear = weights(w=(4, 4), c=(4,))
    arrays: dict[str, dict[str, np.ndarray]] = {
        "half": {n: a.astype(np.float16) for n, a in linear.items()},
        "double": {n: a.astype(np.float64) for n, a in linear.items()},
        "quantized": {"s": np.float32(0.02), "z": np.uint8(3), "q": np.arange(16, dtype=np.uint8).reshape(4, 4)},
        "integers": {"k": np.array([2, 3, -1, 0])},
    }
    return {f"type {name}": text(body, arrays.get(name)) for name, body in TYPES.items()}


def listed() -> dict[str, onnx.ModelProto]:
    """An input with a default, which stays one."""
    made = text(
        "g (float[2, 4] x, float[4, 4] w) => (float[2, 4] y) { n = Neg(x) \n m = Neg(n) \n y = MatMul(m, w) }",
        weights(w=(4, 4)),
    )
    return {"a default": made}


def read_otherwise() -> dict[str, onnx.ModelProto]:
    """Models of which the optimized file is read as other terms than were written: dims whose names
    are no identifiers, an operator that the opset lacks, weights whose results the reader folds."""
    names = text("g (float[b, n, 6] x) => (float[b, n, 6] y) { a = Neg(x) \n c = Neg(a) \n e = Exp(c) \n y = Selu(e) }")
    for value in (*names.graph.input, *names.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch.0"
        value.type.tensor_type.shape.dim[1].dim_param = ""
    numbers = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    swish = "a = Add(x, three) \n c = Clip(a, zero, six) \n m = Mul(x, c) \n y = Div(m, six)"
    folded = """
        g (float[2, 3] x) => (float[2, 3] y) {
            l = Less(w, c) \n i = Cast<to = 7>(l) \n s = ReduceSum<keepdims = 1>(i, axis)
            t = Greater(s, one) \n z = Not(t) \n n = Neg(x) \n m = Neg(n) \n y = Where(z, m, c)
        }
    """
    given = {"w": RNG.normal(size=(2, 3)), "c": RNG.normal(size=3)}
    arrays = {n: a.astype(np.float32) for n, a in given.items()}
    integers = {"axis": np.array([1], np.int64), "one": np.array(1, np.int64)}
    return {
        "dims without a name": names,
        "hard swish before its operator": text(f"g (float[n, 4] x) => (float[n, 4] y) {{ {swish} }}", numbers, 11, 6),
        "weights that the reader folds": text(folded, arrays | integers),
    }


KINDS: tuple[Callable[[], dict[str, onnx.ModelProto]], ...] = (
    defaults, opaque, bodies, functions, old, types, listed, read_otherwise,
)  # fmt: skip


def models() -> dict[str, onnx.ModelProto]:
    """All models, by name."""
    return {name: made for kind in KINDS for name, made in kind().items()}
