"""Types of nodes that stay opaque: every rule against the results of ONNX's node tests, and against
ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from conformance_cases import bind, binding_choices, collected
from onnx_texts import parse, read, same
from opaque_types import misfit, opaque

from taso_mirage.ir.dims import evaluate, symbols
from taso_mirage.ir.terms import Tensor
from taso_mirage.onnx_io.types_of_refused import REFUSED_TYPES as REFUSED
from taso_mirage.onnx_io.types_of_shapes import SHAPE_TYPES as SHAPES
from taso_mirage.onnx_io.types_onnx import ONNX_TYPES as ONNX

FREE = {
    "Compress": "the elements that a condition keeps",
    "NonMaxSuppression": "the boxes that are kept",
    "NonZero": "the elements that are not zero",
    "StringNormalizer": "the words that are kept",
    "StringSplit": "the most parts of a text",
    "Unique": "the elements that differ",
}
"""Operators whose results have a size that depends on values, and the counted elements."""


def undeclared(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the declared types of its results: no rank, no dtype."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for info in copy.graph.output:
        info.ClearField("type")
        info.type.tensor_type.elem_type = 0
    del copy.graph.value_info[:]
    return copy


def single() -> list[Any]:
    """The node tests of one node that a rule speaks of."""
    rules = {name for _, name in (*ONNX.rules, *REFUSED.rules, *SHAPES.rules)}
    cases = [c for c in collected() if len(c.model.graph.node) == 1 and not c.model.functions]
    return [c for c in cases if c.model.graph.node[0].op_type in rules and c.model.graph.node[0].domain == ""]


@pytest.mark.sampled(2)
def test_rules_give_the_types_of_the_node_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing known before the run, with the operands known that say sizes, and with all."""
    wrong, exact = [], set()
    for case in single():
        inputs, expected = [[_array(v) for v in values] for values in case.data_sets[0]]
        every = dict(zip((i.name for i in case.model.graph.input), map(np.asarray, inputs), strict=False))
        tensors = all(i.type.HasField("tensor_type") for i in case.model.graph.input)
        for bound in [*binding_choices(case.model.graph, inputs), *([every] if tensors else [])]:
            types = opaque(undeclared(bind(case.model, bound)), monkeypatch)
            pairs = [(t, v) for t, v in zip(types, expected, strict=True) if isinstance(v, np.ndarray)]
            known = [(t, v) for t, v in pairs if t.shape is not None or bound]  # axes may be operands
            wrong += [f"{case.name} {sorted(bound)}: {c}" for c in (misfit(t, v) for t, v in known) if c is not None]
            if all(t.shape is not None and all(isinstance(n, int) for n in t.shape) for t, _ in pairs):
                exact.add(case.model.graph.node[0].op_type)
    assert not wrong, "\n".join(wrong)
    assert {c.model.graph.node[0].op_type for c in single()} - exact == FREE.keys()


@pytest.mark.sampled(2)
def test_rules_hold_at_free_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every dim of the inputs has a name of its own, results evaluate to the sizes that the
    tests expect."""
    wrong, symbolic = [], set()
    for case in single():
        inputs, expected = [[_array(v) for v in values] for values in case.data_sets[0]]
        for bound in binding_choices(case.model.graph, inputs):
            proto, sizes = freed(undeclared(bind(case.model, bound)))
            pairs = zip(opaque(proto, monkeypatch), expected, strict=True)
            known = [(t, v) for t, v in pairs if isinstance(v, np.ndarray) and t.shape is not None]
            for type, want in known:
                complaint = misfit(evaluated(type, sizes), want)
                wrong += [] if complaint is None else [f"{case.name} {sorted(bound)}: {type}: {complaint}"]
                if any(not isinstance(n, int) and symbols(n) <= sizes.keys() for n in type.shape or ()):
                    symbolic.add(case.model.graph.node[0].op_type)
    assert not wrong, "\n".join(wrong)
    assert len(symbolic) >= 120


def freed(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The model whose inputs have free dims, and their sizes; how many axes or sizes an operand
    lists is fixed."""
    sizes: dict[str, int] = {}
    vectors = {i.name for i in proto.graph.input if i.type.tensor_type.elem_type == onnx.TensorProto.INT64}
    lists = {i.name for i in proto.graph.input if i.name in vectors and len(i.type.tensor_type.shape.dim) == 1}
    for info in (i for i in proto.graph.input if i.name not in lists):
        for i, dim in enumerate(info.type.tensor_type.shape.dim):
            sizes[f"size_of_{info.name}_{i}"] = dim.dim_value
            dim.dim_param = f"size_of_{info.name}_{i}"
    return proto, sizes


def evaluated(type: Tensor, sizes: dict[str, int]) -> Tensor:
    shape = [evaluate(n, sizes) if symbols(n) <= sizes.keys() else n for n in type.shape or ()]
    return Tensor(type.dtype, tuple(shape))


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


# ------------------------------------------------------------ ONNX Runtime's own operators

FLOAT, INT, BYTE = np.float32, np.int32, np.uint8
HEADS = {"num_heads": 2}
GROUPS = {"num_heads": 4, "kv_num_heads": 2}


def some(*shape: int, dtype: Any = FLOAT) -> Any:
    """Small numbers."""
    return (np.arange(int(np.prod(shape))) % 5 / 4).reshape(shape).astype(dtype)


def scalar(value: float, dtype: Any = FLOAT) -> Any:
    return np.array(value, dtype)


MICROSOFT: dict[str, tuple[str, list[Any], dict[str, Any], int]] = {
    "gelu": ("Gelu", [some(2, 3)], {}, 1),
    "bias gelu": ("BiasGelu", [some(2, 3), some(3)], {}, 1),
    "fast gelu": ("FastGelu", [some(2, 3), some(3)], {}, 1),
    "quick gelu": ("QuickGelu", [some(2, 3)], {}, 1),
    "skip norm": ("SkipLayerNormalization", [some(2, 3, 4), some(2, 3, 4), some(4), some(4)], {}, 4),
    "skip rms norm": ("SkipSimplifiedLayerNormalization", [some(2, 3, 4), some(2, 3, 4), some(4)], {}, 4),
    "embedding": (
        "EmbedLayerNormalization",
        [some(2, 3, dtype=INT), some(2, 3, dtype=INT), some(5, 8), some(5, 8), some(5, 8), some(8), some(8)],
        {},
        2,
    ),
    "product": ("FusedMatMul", [some(2, 4, 3), some(2, 5, 4)], {"transA": 1, "transB": 1}, 1),
    "gemm": ("FusedGemm", [some(4, 3), some(4, 5), some(5)], {"transA": 1, "activation": "Relu"}, 1),
    "conv": ("FusedConv", [some(1, 2, 5, 6), some(3, 2, 3, 3)], {"activation": "Relu", "strides": [2, 1]}, 1),
    "nbits": (
        "MatMulNBits",
        [some(2, 3, 32), some(8, 1, 16, dtype=BYTE), some(8)],
        {"K": 32, "N": 8, "bits": 4, "block_size": 32},
        1,
    ),
    "dynamic product": ("DynamicQuantizeMatMul", [some(2, 3, 4), some(4, 5, dtype=BYTE), scalar(0.1)], {}, 1),
    "integer product": (
        "MatMulIntegerToFloat",
        [some(2, 3, 4, dtype=BYTE), some(4, 5, dtype=BYTE), scalar(0.1), scalar(0.1)],
        {},
        1,
    ),
    "quantized sum": (
        "QLinearAdd",
        [
            some(2, 3, dtype=BYTE),
            scalar(1),
            scalar(0, BYTE),
            some(1, 3, dtype=BYTE),
            scalar(1),
            scalar(0, BYTE),
            scalar(1),
            scalar(0, BYTE),
        ],
        {},
        1,
    ),
    "quantized concat": (
        "QLinearConcat",
        [scalar(1), scalar(0, BYTE), *(some(2, 3, dtype=BYTE), scalar(1), scalar(0, BYTE)) * 2],
        {"axis": 1},
        1,
    ),
    "quantized recurrence": (
        "DynamicQuantizeLSTM",
        [some(6, 2, 3), some(2, 3, 16, dtype=BYTE), some(2, 4, 16, dtype=BYTE), some(2, 32), *[None] * 4]
        + [some(2), some(2, dtype=BYTE)] * 2,
        {"hidden_size": 4, "direction": "bidirectional"},
        3,
    ),
    "quantized attention and past": (
        "QAttention",
        [
            *(some(1, 3, 8, dtype=BYTE), some(8, 24, dtype=BYTE), some(24), scalar(0.1), scalar(0.1), None),
            *(scalar(0, BYTE), scalar(0, BYTE), some(2, 1, 2, 5, 4)),
        ],
        {"num_heads": 2, "unidirectional": 1},
        2,
    ),
    "heads": ("MultiHeadAttention", [some(1, 3, 8), some(1, 5, 8), some(1, 5, 12)], HEADS, 1),
    "heads and past": (
        "MultiHeadAttention",
        [*[some(1, 3, 8)] * 3, None, None, None, *[some(1, 2, 4, 4)] * 2],
        HEADS,
        3,
    ),
    "heads apart": ("MultiHeadAttention", [some(1, 3, 8), some(1, 2, 5, 4), some(1, 2, 5, 4)], HEADS, 1),
    "attention": ("Attention", [some(1, 3, 8), some(8, 24), some(24)], HEADS, 2),
    "attention and past": ("Attention", [some(1, 3, 8), some(8, 24), some(24), None, some(2, 1, 2, 5, 4)], HEADS, 2),
    "attention of sizes": (
        "Attention",
        [some(1, 3, 8), some(8, 28), some(28)],
        {**HEADS, "qkv_hidden_sizes": [8, 8, 12]},
        1,
    ),
    "groups": (
        "GroupQueryAttention",
        [some(1, 3, 32), some(1, 3, 16), some(1, 3, 16), None, None, np.array([2], INT), scalar(3, INT)],
        GROUPS,
        3,
    ),
    "groups and past": (
        "GroupQueryAttention",
        [some(1, 1, 32), *[some(1, 1, 16)] * 2, *[some(1, 2, 4, 8)] * 2, np.array([4], INT), scalar(5, INT)],
        GROUPS,
        3,
    ),
    "groups, shared": (
        "GroupQueryAttention",
        [some(1, 1, 32), *[some(1, 1, 16)] * 2, *[some(1, 2, 9, 8)] * 2, np.array([4], INT), scalar(5, INT)],
        GROUPS,
        3,
    ),
    "packed groups": (
        "GroupQueryAttention",
        [some(1, 3, 64), None, None, None, None, np.array([2], INT), scalar(3, INT)],
        GROUPS,
        3,
    ),
}
"""An operator, its operands, attributes, and how many outputs."""


@pytest.mark.parametrize("name", MICROSOFT)
def test_rules_give_the_types_of_the_runtime(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op_type, operands, attributes, count = MICROSOFT[name]
    outputs = [f"y{i}" for i in range(count)]
    blank = {1, 2} if op_type.startswith("Skip") else set()
    given = {f"x{i}": v for i, v in enumerate(operands) if v is not None}
    node = onnx.helper.make_node(
        op_type,
        ["" if v is None else f"x{i}" for i, v in enumerate(operands)],
        ["" if i in blank else y for i, y in enumerate(outputs)],
        domain="com.microsoft",
        **attributes,
    )
    dtypes = onnx.helper.np_dtype_to_tensor_dtype
    infos = [onnx.helper.make_tensor_value_info(k, dtypes(v.dtype), v.shape) for k, v in given.items()]
    results = [onnx.helper.make_tensor_value_info(y, 0, None) for i, y in enumerate(outputs) if i not in blank]
    for info in results:
        info.type.Clear()
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", infos, results), opset_imports=opsets, ir_version=8
    )
    want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)
    for bound in ({}, given):
        types = opaque(bind(model, bound), monkeypatch)
        assert [c for c in map(misfit, types, want) if c is not None] == []
    assert all(isinstance(n, int) for t in types for n in t.shape or ())


# ------------------------------------------------------------ whole graphs


def test_what_is_behind_an_opaque_node_has_our_dims() -> None:
    """A skip path of an image network: whether both have one size only a run can tell, but behind
    the concatenation it is known, by the names that the inputs have."""
    proto = parse("""
        g (float[1, 2, h, w] x, float[2, 2, 3, 3] k) => (float[a, b] y) {
            small = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, k)
            scales = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
            large = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(small, , scales)
            both = Concat<axis = 1>(large, x)
            target = Constant<value_ints = [4, -1]>()
            rows = Reshape(both, target)
            y = Relu(rows)
        }
    """)
    model = read(proto)
    assert [str(n.attr("call")) for n in model.nodes() if n.op == "opaque"] == ["Concat"]
    (y,) = model.graph.outputs
    assert y.op == "relu"
    assert {s for n in y.shape for s in symbols(n)} == {"h", "w"}
    for h, w in ((2, 4), (4, 2), (6, 6)):
        same(proto, x=some(1, 2, h, w), k=some(2, 2, 3, 3))


def test_sizes_in_int32() -> None:
    """tf2onnx computes the shape of a reshape so."""
    proto = parse("""
        g (float[n, 6] x) => (float[a, b, c] y) {
            s = Shape(x)
            narrow = Cast<to = 6>(s)
            zero = Constant<value_ints = [0]>()
            one = Constant<value_ints = [1]>()
            batch = Slice(narrow, zero, one, zero)
            twice = Add(batch, batch)
            rest64 = Constant<value_ints = [3]>()
            rest = Cast<to = 6>(rest64)
            t = Concat<axis = 0>(rest, twice, one32)
            wide = Cast<to = 7>(t)
            y = Reshape(x, wide)
        }
    """)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int32), "one32"))
    model = read(proto)
    assert not model.opaque
    assert str(model.graph.outputs[0].type) == "float32[3, 2*n, 1]"
    for n in (1, 2, 5):
        same(proto, x=some(n, 6))


def test_a_slice_from_the_first_position_of_a_dim_that_may_be_empty() -> None:
    """Silero's: position 0 lies within every dim."""
    proto = parse("""
        g (float[1, 1, n] x, float[2, 1, 4] k) => (float[a, b, c] y) {
            c = Conv<strides = [2]>(x, k)
            first = Constant<value_ints = [0]>()
            last = Constant<value_ints = [9223372036854775807]>()
            axis = Constant<value_ints = [2]>()
            y = Slice(c, first, last, axis)
        }
    """)
    assert not read(proto).opaque
    for n in (4, 9):
        same(proto, x=some(1, 1, n), k=some(2, 1, 4))


def test_one_unknown_size_of_a_reshape_is_what_the_others_leave() -> None:
    proto = parse("""
        g (float[n, m, 6] x, int64[1] k) => (float[a, b, c, d] y) {
            first = Shape<end = 1>(x)
            rest = Constant<value_ints = [2, 3]>()
            t = Concat<axis = 0>(first, k, rest)
            y = Reshape(x, t)
        }
    """)
    model = read(proto)
    assert not model.opaque
    assert str(model.graph.outputs[0].type) == "float32[n, m, 2, 3]"
    for n, m in ((1, 1), (2, 5), (3, 4)):
        for k in (m, -1, 0):
            same(proto, x=some(n, m, 6), k=np.array([k]))


def test_a_range_of_floats_up_to_a_size() -> None:
    """Detectors number the cells of an image so."""
    proto = parse("""
        g (float[n, m] x) => (float[a] y) {
            s = Shape<start = 1>(x)
            none = Constant<value_ints = [0]>()
            scalar = Squeeze(s, none)
            limit = Cast<to = 1>(scalar)
            zero = Constant<value_float = 0.0>()
            one = Constant<value_float = 1.0>()
            y = Range(zero, limit, one)
        }
    """)
    model = read(proto)
    assert not model.opaque
    assert str(model.graph.outputs[0].type) == "float32[m]"
    for m in (1, 7):
        same(proto, x=some(2, m))


ENDLESS = """
    r = Loop(two, , q) <
        body = l (int64 i, bool go, seq(float[4]) s) => (bool on, seq(float[4]) t) {
            on = Identity(go) \n t = SequenceInsert(s, x)
        }
    >
"""


def test_a_node_that_the_inference_refuses_costs_its_own_types_alone() -> None:
    """ONNX allows a Loop without a condition, the library does not."""
    before = "q = SequenceConstruct(x) \n two = Constant<value_int = 2>() \n z = Constant<value_int = 0>()"
    model = read(
        parse(f"g (float[4] x) => (float[4] y) {{ {before} {ENDLESS} a = SequenceAt(q, z) \n y = Hardmax(a) }}")
    )
    (y,) = model.graph.outputs
    assert y.args[0].tensor.dtype == "float32"


@pytest.mark.parametrize("declared", ["a", "b", "c"])
def test_equal_values_have_the_types_that_one_of_them_declares(declared: str) -> None:
    """Two nodes do the same, and an Identity passes on the result of one: the file says the sizes
    of one of the three values."""
    nodes = "a = ConcatFromSequence<axis = 0>(q) \n b = ConcatFromSequence<axis = 0>(q) \n c = Identity(b)"
    used = "y = Sub(a, b) \n w = Neg(c)"
    told = f"<float[6, 3] {declared}>"
    border = "(float[2, 3] x) => (float[m, n] y, float[m, n] w)"
    model = read(parse(f"g {border} {told} {{ q = SequenceConstruct(x, x, x) \n {nodes} \n {used} }}"))
    assert [n.type for n in model.graph.outputs] == [Tensor("float32", (6, 3))] * 2
    assert [n.op for n in model.graph.outputs] == ["sub", "neg"]
