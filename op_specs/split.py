"""Cutting a tensor into consecutive parts."""

from op_specs.families import ELEMENTWISE, each
from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.dims import Symbolic
from taso_mirage.operators.ops import Call, Dims, extents, op


@op(onnx="Split", since=2, parts="split")
def split(xp, x, *, axis: int, split: Dims):
    """(...,n+m+...,...) -> ((...,n,...), (...,m,...), ...), the parts along `axis`"""
    total, whole = sum(split), xp.shape(x)[axis]
    if total != whole:
        kind = IllTyped if isinstance(total, int) and isinstance(whole, int) else Undecidable
        raise kind(f"parts {split} of dimension {axis}, which is {whole}")
    starts = [sum(split[:i]) for i in range(len(split))]
    return tuple(xp.slice(x, axis, start, start + n) for start, n in zip(starts, split, strict=True))


@split.importer
def _(call: Call):
    x, axis = call.arg(0), call.attrs.get("axis", 0)
    axis = axis + x.tensor.rank if axis < 0 else axis
    parts = call.extents(1) if call.opset >= 13 else call.attrs.get("split")
    if parts is None:
        parts = _equal(x.shape[axis], call)
    return split.term(x, axis=axis, split=parts)


def _equal(n, call: Call) -> Dims:
    """The sizes of parts that are not given: all equal, the last one smaller where opset 18 allows
    it."""
    if call.opset < 18:
        count = max(call.outputs, call.listed)
        return (_exactly(n, count),) * count
    count = call.attrs["num_outputs"]
    if isinstance(n, Symbolic):
        return (_exactly(n, count),) * count
    size = -(-n // count)
    if size * (count - 1) > n:
        raise Unsupported(f"Split of {n} into {count} parts leaves some empty")
    return (*(size,) * (count - 1), n - size * (count - 1))


def _exactly(n, count: int):
    if n // count * count != n:
        raise Unsupported(f"Split of {n} into {count} equal parts")
    return n // count


@split.exporter
def _(node, opset: int) -> Call:
    (x,), axis, parts = node.args, node.attr("axis"), node.attr("split")
    if any(isinstance(n, Symbolic) for n in parts) and len(set(parts)) == 1:
        count = {"num_outputs": len(parts)} if opset >= 18 else {}
        return Call("Split", (x,), {"axis": axis, **count}, opset, outputs=len(parts))
    if opset >= 13:
        return Call("Split", (x, extents(parts)), {"axis": axis}, opset, outputs=len(parts))
    if any(isinstance(n, Symbolic) for n in parts):
        raise Unsupported(f"Split into parts of computed sizes {parts} begins at opset 13")
    return Call("Split", (x,), {"axis": axis, "split": parts}, opset, outputs=len(parts))


@split.traits.restriction
def _(inner, node, box):
    (parts,) = node.args
    axis = parts.attr("axis")
    start = sum(int(n) for n in parts.attr("split")[: node.attr("index")])
    return inner(parts.args[0], (*box[:axis], (box[axis][0] + start, box[axis][1] + start), *box[axis + 1 :]))


@split.traits.resizing
def _(attrs, old, new, names):
    axis, parts = attrs["axis"], list(attrs["split"])
    n, m = old[0][axis], new[0][axis]
    if n == m:
        return {}
    lifted = [names.get(v, v) for v in parts]
    if sum(lifted[1:], lifted[0]) != m:
        lifted = [*lifted[:-1], m - sum(lifted[:-1])]
    return {"split": tuple(lifted)}


split.example("float32[5,2]", axis=0, split=(2, 3))
split.example("float32[2,6]", axis=1, split=(1, 2, 3))
split.example("float32[2,6]", axis=1, split=(3, 3))
split.example("float32[2,4,3,3]", axis=1, split=(1, 1, 2))
split.example("float32[3]", axis=0, split=(3,))
split.example("float32[2,4]", axis=1, split=(4,))
split.example("float32[2,3,4]", axis=1, split=(3,))
split.example("int64[4]", axis=0, split=(2, 2))

split.laws("""
    item(split(x, axis=i, split=s), index=0) == x  where len(s) == 1
    concat(item(split(x, axis=i, split=s), index=0), item(split(x, axis=i, split=s), index=1), axis=i) \
        == x \
        where len(s) == 2
    concat(item(split(x, axis=i, split=s), index=0), item(split(x, axis=i, split=s), index=1), item(split(x, axis=i, \
            split=s), index=2), axis=i) \
        == x \
        where len(s) == 3
    item(split(concat(x, y, axis=i), axis=i, split=s), index=0) == x  where s == (dim(x, i), dim(y, i))
    item(split(concat(x, y, axis=i), axis=i, split=s), index=1) == y  where s == (dim(x, i), dim(y, i))
""")
for _k in range(3):
    _part = f"item(split(x, axis=i, split=s), index={_k})"
    _bounds = f"starts=(sum(s[:{_k}]),), ends=(sum(s[:{_k} + 1]),), axes=(i,), steps=(1,)"
    split.laws(f"{_part} == slice(x, {_bounds})")
    split.laws(each(ELEMENTWISE, f"item(split(f(x, **a), axis=i, split=s), index={_k}) == f({_part}, **a)"))
