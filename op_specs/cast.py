"""Changes of dtype, and operators that are the identity at run time."""

from op_specs.families import each
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import ABSENT, Node, constant, is_float
from taso_mirage.operators.ops import Call, op, term

DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}
"""ONNX's numbers of the dtypes that convert as in C."""
FLOAT8 = {"float8_e4m3fn": 17, "float8_e5m2": 19}
"""Dtypes that convert to floats in this way; a conversion to them is a quantization with scale
1."""
QUANTIZED = ("float32", "float16", "bfloat16")
"""Dtypes that are quantized."""


@op(onnx="Cast", since=6, converts=True)
def cast(xp, x, *, to: str):
    """x -> x in the dtype `to`"""
    return xp.cast(x, to)


@cast.importer
def _(call: Call) -> Node:
    names = DTYPES | {number: name for name, number in FLOAT8.items()}
    if call.attrs["to"] not in names:
        raise Unsupported(f"Cast to ONNX data type {call.attrs['to']}")
    return _cast(call, names[call.attrs["to"]])


@cast.exporter
def _(node: Node, opset: int) -> Call:
    numbers = {name: number for number, name in DTYPES.items()}
    return Call("Cast", node.args, {"to": numbers[node.attr("to")]}, opset)


def _cast(call: Call, to: str) -> Node:
    x = call.arg(0)
    known = is_float(to) if x.dtype in FLOAT8 else x.dtype in DTYPES.values()
    if not known or (to in FLOAT8 and x.dtype not in (to, *QUANTIZED)):
        raise Unsupported(f"Cast from {x.dtype} to {to}")
    if x.dtype == to:
        return x
    if to in FLOAT8:
        return term("quantize", x, constant(1.0, x.dtype), dtype=to, saturate=read_saturate(call))
    return cast.term(x, to=to)


def read_saturate(call: Call) -> int:
    """Check the attribute, which must be 1. Otherwise the runtime deviates from ONNX for numbers
    that are slightly too large (480 becomes 448 instead of NaN, and 61,440 becomes NaN instead of
    infinite in e5m2)."""
    if not call.attrs.get("saturate", 1):
        raise Unsupported(f"{call.op_type} without saturation")
    return 1


@op(onnx="CastLike", since=15)
def cast_like(xp, x, like):
    """x, y -> x in the dtype of y; read as a cast"""
    return cast(xp, x, to=xp.dtype(like))


@cast_like.importer
def _(call: Call) -> Node:
    if call.arg(1).dtype not in (*DTYPES.values(), *FLOAT8):
        raise Unsupported(f"CastLike to {call.arg(1).dtype}")
    return _cast(call, call.arg(1).dtype)


@op(onnx="Identity", since=1)
def identity(xp, x):
    """x -> x; read as x itself"""
    return x


@identity.importer
def _(call: Call) -> Node:
    return call.arg(0)


@op(onnx="Dropout", since=7)
def dropout(xp, x):
    """x -> x, in inference; read as x itself"""
    return x


@dropout.importer
def _(call: Call) -> Node:
    if call.outputs > 1:
        raise Unsupported("Dropout whose mask is used")
    if call.arg(2) is not ABSENT and call.scalar(2, 0):
        raise Unsupported("Dropout in training mode")
    return call.arg(0)


cast.example("float16[2,3]", to="float32")
cast.example("float32[2,3]", to="int64")
cast.example("float32[2,3]", to="bool")
cast.example("int64[2,3]", to="float32")
cast.example("bool[2,3]", to="float32")
cast.example("float32[2,3]", to="float64")
cast.example("float16[2,3,4]", to="float64")
cast.example("float16[3,1]", to="float64")
cast_like.example("float32[2,3]", "int64[1]")
identity.example("float32[2,3]")
dropout.example("float32[2,3]")

_NO_HALF = 't not in ("float16", "bfloat16")'
"""The runtime may compute half precision in single, without a rounding of -1e9 to -inf. A weight
that is converted alone would become infinite."""
cast.laws(f"""
    cast(x, to=t) == x  where dtype(x) == t
    cast(cast(x, to=w), to=t) \
        == cast(x, to=t) \
        where dtype(x) in ("float16", "bfloat16") and w in ("float32", "float64") \
            or dtype(x) == "float32" and w == "float64"
    cast(where(c, x, y), to=t) \
        == where(c, cast(x, to=t), cast(y, to=t)) \
        where {_NO_HALF} or not is_weight(x) and not is_weight(y)
    concat(cast(x, to=t), cast(y, to=t), axis=i) == cast(concat(x, y, axis=i), to=t)
    concat(cast(x, to=t), cast(y, to=t), cast(z, to=t), axis=i) == cast(concat(x, y, z, axis=i), to=t)
    gather(cast(x, to=t), j, axis=i) == cast(gather(x, j, axis=i), to=t)
""")
cast.laws(
    each(
        ("transpose", "reshape", "slice", "expand"),
        f"cast(f(x, **a), to=t) == f(cast(x, to=t), **a)  where {_NO_HALF} or not is_weight(x)",
    )
)
_WIDER = 'where dtype(x) in ("float16", "bfloat16") and t == "float32"'
cast.laws(each(("neg", "abs", "relu"), f"cast(f(x), to=t) == f(cast(x, to=t))  {_WIDER}"))
cast.laws(each(("max", "min"), f"cast(f(x, y), to=t) == f(cast(x, to=t), cast(y, to=t))  {_WIDER}"))
