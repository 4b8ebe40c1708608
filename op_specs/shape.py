"""Sizes, and tensors that depend on sizes and positions only."""

import math

import numpy as np

from op_specs.cast import DTYPES, cast
from op_specs.expand import expand
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Symbolic, dim_product
from taso_mirage.ir.terms import Literal, constant, is_float, numpy_dtype
from taso_mirage.operators.ops import Call, Dim, Dims, extents, op

SMALL = 1024
"""Ranges of up to this many elements become constants."""


@op(onnx="Shape", since=1)
def shape_of(xp, x, *, start: int = 0, end: int | None = None):
    """(n,m,...) -> the vector n, m, ... from `start` to `end`; read as known sizes"""
    return xp.extents(xp.shape(x)[start:end])


@shape_of.importer
def _(call: Call):
    return extents(call.arg(0).shape[call.attrs.get("start", 0) : call.attrs.get("end")])


@shape_of.exporter
def _(node, opset: int) -> Call:
    start, end = node.attr("start"), node.attr("end")
    if opset < 15 and (start, end) != (0, None):
        raise Unsupported("Shape of some dims only begins at opset 15")
    given = {name: value for name, value in (("start", start), ("end", end)) if opset >= 15 and value is not None}
    return Call("Shape", node.args, given, opset)


shape_of.example("float32[2,3]")
shape_of.example("float32[2,3,4]", start=1)
shape_of.example("float32[2,3,4]", start=-2, end=-1)


@op(onnx="Size", since=1)
def size_of(xp, x):
    """(n,m,...) -> n*m*..., a scalar; read as a known size"""
    return xp.extents([dim_product(xp.shape(x))], scalar=True)


@size_of.importer
def _(call: Call):
    return extents([dim_product(call.arg(0).shape)], scalar=True)


size_of.example("float32[2,3]")
size_of.example("float32[()]")


@op(onnx="ConstantOfShape", since=9)
def constant_of_shape(xp, *, shape: Dims, value: Literal):
    """() -> `value` everywhere; read as the expansion of a constant"""
    return expand(xp, xp.constant(value), shape=shape)


@constant_of_shape.importer
def _(call: Call):
    value = np.asarray(call.attrs.get("value", np.zeros(1, np.float32)))
    return expand.term(constant(value.reshape(())), shape=call.extents(0))


@constant_of_shape.exporter
def _(node, opset: int) -> Call:
    value = constant(node.attr("value").numpy())
    return Call("Expand", (value, extents(node.attr("shape"))), {}, opset)


constant_of_shape.example(shape=(2, 3), value=Literal.of(np.float32(1.5)))
constant_of_shape.example(shape=(2,), value=Literal.of(np.int64(7)))


@op(onnx="Range", since=11)
def range_(xp, *, n: Dim, start: Dim = 0, step: int = 1, dtype: str = "int64"):
    """() -> start, start + step, ...: n elements"""
    result = xp.iota(n, dtype)
    if step != 1:
        result = xp.mul(result, xp.literal(step, result))
    if start == 0:
        return result
    return xp.add(result, xp.cast(xp.extents([start], scalar=True), dtype))


@range_.importer
def _(call: Call):
    if is_float(call.arg(0).dtype):
        size = _size_as_float(call)
        return _floats(call) if size is None else range_.term(n=size, dtype=call.arg(0).dtype)
    (start,), (limit,), (step,) = (call.extents(i) for i in range(3))
    if isinstance(step, Symbolic) or step == 0:
        raise Unsupported(f"Range with the step {step}")
    n = limit - start if step == 1 else start - limit if step == -1 else -((start - limit) // step)
    if isinstance(n, int):
        n = max(n, 0)
    dtype = call.arg(0).dtype
    if isinstance(n, int) and isinstance(start, int) and n <= SMALL:
        return constant(np.arange(n) * step + start, dtype)
    return range_.term(n=n, start=start, step=step, dtype=dtype)


def _size_as_float(call: Call) -> Dim | None:
    """The limit of a range of floats from 0 in steps of 1, where it is a size: exporters number the
    cells of images so. It has as many elements where they are no more than the digits count."""
    limit = call.arg(1)
    converted = limit.op == "cast" and limit.args[0].op == "extents" and limit.dtype in ("float32", "float64")
    if not converted or (call.scalar(0, 0.0), call.scalar(2, 0.0)) != (0.0, 1.0):
        return None
    return limit.args[0].attr("values")[0]


def _floats(call: Call):
    start, limit, step = (call.scalar(i, 0.0) for i in range(3))
    n = max(math.ceil((limit - start) / step), 0)
    if n > SMALL:
        raise Unsupported(f"Range of {n} floats")
    dtype = numpy_dtype(call.arg(0).dtype)
    values = np.full(n, step, dtype)
    values[:1] = start
    return constant(np.add.accumulate(values, dtype=dtype), call.arg(0).dtype)  # the runtime adds step by step


def _as_float(v: Dim, dtype: str):
    """A bound of a range of floats within the digits of its type, so that the written range has as
    many elements as the one that was read."""
    return cast.term(extents([v], scalar=True), to=dtype) if isinstance(v, Symbolic) else constant(float(v), dtype)


@range_.exporter
def _(node, opset: int) -> Call:
    start, step, dtype = node.attr("start"), node.attr("step"), node.attr("dtype")
    bounds = (start, start + step * node.attr("n"), step)
    if dtype == "int64":
        return Call("Range", tuple(extents([v], scalar=True) for v in bounds), {}, opset)
    if is_float(dtype):
        return Call("Range", tuple(_as_float(v, dtype) for v in bounds), {}, opset)
    if any(isinstance(v, Symbolic) for v in bounds):
        numbers = {name: number for number, name in DTYPES.items()}
        return Call("Cast", (range_.term(n=node.attr("n"), start=start, step=step),), {"to": numbers[dtype]}, opset)
    return Call("Range", tuple(constant(v, dtype) for v in bounds), {}, opset)


range_.example(n=5)
range_.example(n=4, start=2, step=3)
range_.example(n=3, start=5, step=-2)
range_.example(n=4, dtype="int32")


@op(onnx="EyeLike", since=9)
def eye_like(xp, x, *, k: int = 0, dtype: str | None = None):
    """(n,m) -> (n,m): 1 where column - row is `k`, else 0; in the dtype of x unless one is given"""
    n, m = xp.shape(x)
    return xp.cast(xp.map(np.equal, _column_minus_row(xp, n, m), _size(xp, k)), dtype or xp.dtype(x))


def _column_minus_row(xp, n: Dim, m: Dim):
    return xp.sub(xp.iota(m), xp.reshape(xp.iota(n), (n, 1)))


def _size(xp, n: Dim):
    return xp.extents([n], scalar=True)


@eye_like.importer
def _(call: Call):
    number = call.attrs.get("dtype")
    if number is not None and number not in DTYPES:
        raise Unsupported(f"EyeLike of ONNX data type {number}")
    return eye_like.term(call.arg(0), k=call.attrs.get("k", 0), dtype=None if number is None else DTYPES[number])


@eye_like.exporter
def _(node, opset: int) -> Call:
    numbers = {name: number for number, name in DTYPES.items()}
    dtype = node.attr("dtype")
    given = {} if dtype is None else {"dtype": numbers[dtype]}
    return Call("EyeLike", node.args, {"k": node.attr("k"), **given}, opset)


eye_like.example("float32[3,4]")
eye_like.example("float32[3,3]", k=1)
eye_like.example("float32[4,2]", k=-1, dtype="int64")


@op(onnx="Trilu", since=14)
def trilu(xp, x, *, k: int = 0, upper: int = 1):
    """(...,n,m) -> (...,n,m): x where column - row >= k (upper) or <= k (lower), else 0"""
    n, m = xp.shape(x)[-2:]
    compare = np.greater_equal if upper else np.less_equal
    return xp.map(np.where, xp.map(compare, _column_minus_row(xp, n, m), _size(xp, k)), x, xp.literal(0, x))


@trilu.importer
def _(call: Call):
    (k,) = call.extents(1) or (0,)
    if isinstance(k, Symbolic):
        raise Unsupported(f"Trilu with the diagonal {k}")
    return trilu.term(call.arg(0), k=k, upper=call.attrs.get("upper", 1))


@trilu.exporter
def _(node, opset: int) -> Call:
    k = node.attr("k")
    diagonal = (extents([k], scalar=True),) if k else ()
    return Call("Trilu", (*node.args, *diagonal), {"upper": node.attr("upper")}, opset)


trilu.example("float32[3,4]")
trilu.example("float32[2,3,3]", k=1, upper=0)
trilu.example("float32[4,3]", k=-1)
trilu.example("int64[3,3]", upper=0)


@op(onnx="OneHot", since=9)
def one_hot(xp, indices, values, *, depth: Dim, axis: int):
    """(i...), (2,) -> (i..., depth, ...): values[1] where the position along `axis` is the index,
    else values[0]"""
    index = xp.cast(indices, "int64")
    index = xp.map(np.where, xp.map(np.less, index, xp.literal(0, index)), xp.add(index, _size(xp, depth)), index)
    shape = xp.shape(index)
    index = xp.reshape(index, (*shape[:axis], 1, *shape[axis:]))
    position = xp.reshape(xp.iota(depth), (depth, *(1,) * (len(shape) - axis)))
    off, on = (xp.reshape(xp.slice(values, 0, i, i + 1), ()) for i in range(2))
    return xp.map(np.where, xp.map(np.equal, index, position), on, off)


@one_hot.importer
def _(call: Call):
    indices, axis = call.arg(0), call.attrs.get("axis", -1)
    depth = call.extents(1) if not is_float(call.arg(1).dtype) else (int(call.scalar(1, 0)),)
    return one_hot.term(indices, call.arg(2), depth=depth[0], axis=axis + indices.tensor.rank + 1 if axis < 0 else axis)


@one_hot.exporter
def _(node, opset: int) -> Call:
    indices, values = node.args
    depth = extents([node.attr("depth")])
    return Call("OneHot", (indices, depth, values), {"axis": node.attr("axis")}, opset)


one_hot.example([0, 2, -1], "float32[2]", depth=3, axis=1)
one_hot.example([[0, 2], [1, 1]], "float32[2]", depth=4, axis=1)
one_hot.example([0, 2], "int64[2]", depth=3, axis=0)
