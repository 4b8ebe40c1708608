"""Transpose."""

from taso_mirage.ops import Call, Ints, op


@op(onnx="Transpose", since=1)
def transpose(xp, x, *, perm: Ints):
    """axis i of the result is axis perm[i] of the operand"""
    return xp.transpose(x, perm)


@transpose.importer
def _(call: Call):
    x = call.arg(0)
    return transpose.term(x, perm=call.attrs.get("perm", range(x.tensor.rank)[::-1]))


transpose.example("float32[2,3]", perm=(1, 0))
transpose.example("float32[2,3,4]", perm=(2, 0, 1))
transpose.example("float32[2,3,4]", perm=(0, 1, 2))
transpose.example("float32[2,3,4,5]", perm=(0, 2, 1, 3))
transpose.example("int64[2,3]", perm=(1, 0))
transpose.example("float16[2,3,2]", perm=(0, 2, 1))
