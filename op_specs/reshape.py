"""Reshape, and the three operators that are a reshape: flatten, squeeze, unsqueeze."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from op_specs.families import ELEMENTWISE, PAIRWISE, each
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import Dim, Symbolic, dim_product, symbol
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.meanings.boxes import regrouped_runs
from taso_mirage.operators.ops import Call, Dims, Ints, extents, known_elements, op
from taso_mirage.operators.slicing import cut, join, sizes, whole
from taso_mirage.operators.static_values import partly_known
from taso_mirage.operators.traits import Box, TraitInterval


@op(onnx="Reshape", since=5, lowering=Lowering.RESHAPE, domains={"shape": "regrouped"})
def reshape(xp, x, *, shape: Dims):
    """(...) -> shape, of as many elements; `shape` holds neither 0 for a copied dim nor -1"""
    return xp.reshape(x, shape)


@reshape.importer
def _(call: Call):
    x, allowzero = call.arg(0), bool(call.attrs.get("allowzero", 0))
    return reshape.term(x, shape=_resolve(x.shape, _wanted(call), allowzero))


def _wanted(call: Call) -> Dims:
    """The shape that is asked for. One size of it that only a run can tell is as good as -1: it is
    the quotient of the others, or the model does not run there. A shape that the user gives is
    read."""
    if known_elements(call.arg(1)) is None and call.arg(1).op != "input":
        partly = partly_known(call.arg(1)) or []
        if partly.count(None) == 1 and -1 not in partly:
            return tuple(-1 if n is None else n for n in partly)
    return call.extents(1)


def _resolve(have: Dims, want: Dims, allowzero: bool) -> Dims:
    """The result's dims: 0 copies the operand's dim (unless `allowzero`), one -1 is the rest."""
    if not allowzero and any(n == 0 and i >= len(have) for i, n in enumerate(want)):
        raise IllTyped(f"reshape to {want} copies a dim that {have} does not have")
    shape = tuple(have[i] if n == 0 and not allowzero else n for i, n in enumerate(want))
    if -1 not in shape:
        return shape
    others = dim_product(n for n in shape if n != -1)
    if others == 0:
        raise Unsupported(f"reshape of {have} to {want}: -1 beside a dim of 0 is not determined")
    return tuple(dim_product(have) // others if n == -1 else n for n in shape)


@reshape.exporter
def _(node, opset: int) -> Call:
    (x,), shape = node.args, node.attr("shape")
    created = any(n == 0 and x.shape[i : i + 1] != (0,) for i, n in enumerate(shape))
    if created and opset < 14:
        raise Unsupported(f"reshape of {x.shape} to {shape} needs allowzero, which begins at opset 14")
    if created:
        return Call("Reshape", (x, extents(shape)), {"allowzero": 1}, opset)
    written = _written(x.shape, shape)
    computed = any(isinstance(n, Symbolic) for n in written)  # a run may have one as 0, which is no copy
    return Call("Reshape", (x, extents(written)), {"allowzero": 1} if computed and opset >= 14 else {}, opset)


def _written(have: Dims, want: Dims) -> Dims:
    """`want` without computed sizes where ONNX can copy all of them (0), or work out the only one
    (-1), which beside one that a run may have as 0 it cannot."""
    sizes = sum(isinstance(n, Symbolic) for n in want)
    written = tuple(0 if isinstance(n, Symbolic) and have[i : i + 1] == (n,) else n for i, n in enumerate(want))
    if not any(isinstance(n, Symbolic) for n in written):
        return written
    return tuple(-1 if isinstance(n, Symbolic) else n for n in want) if sizes == 1 else want


@reshape.traits.restriction
def _(inner, node, box):
    """The smallest boxes of both shapes that hold the same elements; surplus elements are cut away
    from the result. A range that crosses rows of the operand is its first row, whole rows and its
    last row, beside each other."""
    (x,) = node.args
    around, result = list(whole(x)), list(box)
    for old, new in regrouped_runs(sizes(x), sizes(node)):
        shapes = [sizes(x)[i] for i in old], [sizes(node)[i] for i in new]
        left, right = _matching(*shapes, [box[i] for i in new])
        if right != tuple(box[i] for i in new):
            for at, cuts in _rows(*shapes, [box[i] for i in new]):
                ends = pairwise((box[new[at]][0], *cuts, box[new[at]][1]))
                return join([inner(node, (*box[: new[at]], e, *box[new[at] + 1 :])) for e in ends], new[at])
        for i, interval in zip(old, left, strict=True):
            around[i] = interval
        for i, interval in zip(new, right, strict=True):
            result[i] = interval
    part = reshape.term(inner(x, tuple(around)), shape=[b - a for a, b in result])
    return cut(part, tuple((a - c, b - c) for (a, b), (c, _) in zip(box, result, strict=True)))


def _rows(old: Sequence[int], new: Sequence[int], box: Sequence[TraitInterval]) -> Iterator[tuple[int, list[int]]]:
    """For dims whose interval crosses rows of the other shape, the longest rows first: where the
    first ends and the last begins."""
    for row in (prod(old[i:]) for i in range(1, len(old))):
        for at, (a, b) in enumerate(box):
            step, rest = divmod(row, prod(new[at + 1 :]))
            if rest or step <= 1:
                continue
            first, last = a + -a % step, b - b % step
            if cuts := sorted({c for c in (first, last) if a < c < b}):
                yield at, cuts


def _matching(old: Sequence[int], new: Sequence[int], box: Sequence[TraitInterval]) -> tuple[Box, Box]:
    right: Box = tuple(box)
    while True:
        left = _enclosing(new, right, old)
        if prod(b - a for a, b in left) == prod(b - a for a, b in right):
            return left, right
        right = _enclosing(old, left, new)


def _enclosing(shape: Sequence[int], box: Box, other: Sequence[int]) -> Box:
    """The smallest box of another shape that has all elements of a box of `shape`."""
    flat = np.zeros([1] * len(shape), np.int64)
    for axis, (a, b) in enumerate(box):
        at = np.arange(a, b) * prod(shape[axis + 1 :])
        flat = flat + at.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    places = np.unravel_index(flat.reshape(-1), tuple(other)) if other else ()
    return tuple((int(p.min()), int(p.max()) + 1) for p in places)


@reshape.traits.resizing
def _(attrs, old, new, names):
    return {"shape": _regrouped(old[0], new[0], attrs["shape"], names)}


def _regrouped(
    have: tuple[Dim, ...], lifted: tuple[Dim, ...], want: tuple[Dim, ...], names: Mapping[Dim, Dim]
) -> tuple[Dim, ...]:
    """The dims of a reshape's result, run by run of equal products: kept, multiplied, or divided
    among the new ones."""
    result: list[Dim] = list(want)
    i = j = 0
    while i < len(have) or j < len(want):
        a, b = i, j
        left = have[i] if i < len(have) else 1
        right = want[j] if j < len(want) else 1
        i, j = min(i + 1, len(have)), min(j + 1, len(want))
        while left != right:
            if left < right and i < len(have):
                left, i = left * have[i], i + 1
            elif j < len(want):
                right, j = right * want[j], j + 1
            else:
                raise IllTyped("no regrouping")
        result[b:j] = _shared(lifted[a:i], have[a:i], want[b:j], names)
    return tuple(result)


def _shared(
    lifted: tuple[Dim, ...], have: tuple[Dim, ...], want: tuple[Dim, ...], names: Mapping[Dim, Dim]
) -> list[Dim]:
    total = dim_product(lifted)
    wide = [k for k, n in enumerate(want) if n != 1]
    kept = [m for m, n in zip(lifted, have, strict=True) if n != 1]
    if len(wide) <= 1 or total == dim_product(have):
        return [total if wide and k == wide[0] and total != dim_product(have) else n for k, n in enumerate(want)]
    if [n for n in have if n != 1] == [want[k] for k in wide]:
        values = iter(kept)
        return [next(values) if k in wide else n for k, n in enumerate(want)]
    if isinstance(total, Symbolic) and len(wide) == 2 and len(total.terms) == 1:
        atoms = [symbol(str(a)) for a, _ in total.terms[0][0]]
        if len(atoms) == 2 and total == atoms[0] * atoms[1]:
            values = iter(atoms)
            return [next(values) if k in wide else n for k, n in enumerate(want)]
    named = [names.get(n, n) for n in want]
    if dim_product(named) == total:
        return named
    known: list[Dim] = list(want)
    for old, new in zip(have, lifted, strict=True):  # a dim that is there before and after keeps its symbol
        if isinstance(new, Symbolic) and old in want and known.count(old) == 1:
            known[known.index(old)] = new
    if dim_product(known) == total:
        return known
    for some in (list(want), known):
        for k in reversed(wide):
            rest = dim_product(n for m, n in enumerate(some) if m != k)
            found = total // rest
            if found * rest == total:
                return [found if m == k else n for m, n in enumerate(some)]
    raise IllTyped("no sharing")


reshape.example("float32[2,3,4]", shape=(6, 4))
reshape.example("float32[2,3,4]", shape=(2, 2, 3, 2))
reshape.example("float32[6]", shape=(1, 6, 1))
reshape.example("float32[2,3]", shape=(2, 3))
reshape.example("float32[3,5]", shape=(1, 3, 5))
reshape.example("float32[2,3,5]", shape=(6, 5))
reshape.example("float32[1]", shape=())
reshape.example("int64[4,2]", shape=(8,))
reshape.example("bool[4,2]", shape=(2, 4))
reshape.example("float32[0,3]", shape=(3, 0))


@op(onnx="Flatten", since=1)
def flatten(xp, x, *, axis: int = 1):
    """(a..., b...) -> (prod a, prod b), split before `axis`"""
    shape = xp.shape(x)
    return reshape(xp, x, shape=(dim_product(shape[:axis]), dim_product(shape[axis:])))


@flatten.importer
def _(call: Call):
    x, axis = call.arg(0), call.attrs.get("axis", 1)
    if not -x.tensor.rank <= axis <= x.tensor.rank:
        raise IllTyped(f"flatten at axis {axis} of {x.shape}")
    return flatten.term(x, axis=axis + x.tensor.rank if axis < 0 else axis)


flatten.example("float32[2,3,4]")
flatten.example("float32[2,3,4]", axis=0)
flatten.example("float32[2,3,4]", axis=3)
flatten.example("float32[2,3,4,5]", axis=2)


def resolved(axes: Ints, rank: int) -> Ints:
    """Axes counted from the front, ascending; IllTyped if one is out of range or given twice."""
    found = tuple(sorted(int(a) + rank if a < 0 else int(a) for a in axes))
    if len(set(found)) != len(found) or any(not 0 <= a < rank for a in found):
        raise IllTyped(f"axes {tuple(axes)} of a tensor of rank {rank}")
    return found


@op(onnx="Squeeze", since=1, from_inputs={"axes": 13})
def squeeze(xp, x, *, axes: Ints):
    """(..., 1, ...) -> (..., ...), without the dims at `axes`"""
    shape = xp.shape(x)
    if any(shape[axis] != 1 for axis in axes):
        raise IllTyped(f"squeeze of axes {axes} of {shape}: a dim is not 1")
    return reshape(xp, x, shape=tuple(n for i, n in enumerate(shape) if i not in axes))


@squeeze.importer
def _(call: Call):
    x = call.arg(0)
    axes = call.extents(1) if call.opset >= 13 else call.attrs.get("axes")
    if axes is None:
        axes = [i for i, n in enumerate(x.shape) if _is_one(n)]
    return squeeze.term(x, axes=resolved(axes, x.tensor.rank))


def _is_one(n) -> bool:
    if isinstance(n, Symbolic):
        raise Unsupported(f"squeeze without axes: whether {n} is 1 depends on the size")
    return n == 1


@squeeze.exporter
def _(node, opset: int) -> Call:
    return _with_axes("Squeeze", node, opset)


def _with_axes(name: str, node, opset: int) -> Call:
    x, axes = node.args[0], node.attr("axes")
    if not axes:  # to ONNX an empty list of axes is none given
        return Call("Identity", (x,), {}, opset)
    if opset < 13:
        return Call(name, (x,), {"axes": axes}, opset)
    return Call(name, (x, extents(axes)), {}, opset)


squeeze.example("float32[1,3,1,2]", axes=(0, 2))
squeeze.example("float32[1,3,1,2]", axes=(2,))
squeeze.example("float32[2,3]", axes=())
squeeze.example("int64[1]", axes=(0,))


@op(onnx="Unsqueeze", since=1, from_inputs={"axes": 13})
def unsqueeze(xp, x, *, axes: Ints):
    """(..., ...) -> (..., 1, ...), with a 1 at each of `axes` of the result"""
    left = list(xp.shape(x))
    rank = len(left) + len(axes)
    if any(not 0 <= axis < rank for axis in axes) or len(set(axes)) != len(axes):
        raise IllTyped(f"unsqueeze at {axes} of a result of rank {rank}")
    return reshape(xp, x, shape=tuple(1 if i in axes else left.pop(0) for i in range(rank)))


@unsqueeze.importer
def _(call: Call):
    x = call.arg(0)
    axes = call.extents(1) if call.opset >= 13 else call.attrs["axes"]
    return unsqueeze.term(x, axes=resolved(axes, x.tensor.rank + len(axes)))


@unsqueeze.exporter
def _(node, opset: int) -> Call:
    return _with_axes("Unsqueeze", node, opset)


unsqueeze.example("float32[3,2]", axes=(0,))
unsqueeze.example("float32[3,2]", axes=(1, 3))
unsqueeze.example("float32[3,2]", axes=())
unsqueeze.example("int64[()]", axes=(0,))

reshape.laws("""
    reshape(x, shape=s) == x  where shape(x) == s
    reshape(reshape(x, shape=s), shape=t) == reshape(x, shape=t)
    matmul(reshape(x, shape=s), w) \
        == reshape(matmul(x, w), shape=s[:len(s) - 1] + (dim(w, 1),)) \
        where rank(w) == 2 and rank(x) >= 1 and dim(x, -1) == s[-1]
    reshape(matmul(x, w), shape=s) \
        == matmul(reshape(x, shape=s[:len(s) - 1] + (dim(x, -1),)), w) \
        where rank(w) == 2 and rank(x) >= 1 and s[-1] == dim(w, 1)
""")
reshape.laws(each(ELEMENTWISE, "f(reshape(x, shape=s), **a) == reshape(f(x, **a), shape=s)"))
reshape.laws(
    each(
        PAIRWISE, "f(reshape(x, shape=s), reshape(y, shape=s)) == reshape(f(x, y), shape=s)  where shape(x) == shape(y)"
    )
)
reshape.laws(each(PAIRWISE, "f(reshape(x, shape=s), c) == reshape(f(x, c), shape=s)  where rank(c) == 0"))
squeeze.laws("""
    squeeze(x, axes=()) == x
    squeeze(unsqueeze(x, axes=i), axes=i) == x
    squeeze(squeeze(x, axes=i), axes=j) == squeeze(x, axes=nested(j, i, rank(x)))
""")
unsqueeze.laws("""
    unsqueeze(x, axes=()) == x
    unsqueeze(squeeze(x, axes=i), axes=i) == x
    unsqueeze(unsqueeze(x, axes=i), axes=j) == unsqueeze(x, axes=nested(i, j, rank(x) + len(i) + len(j)))
""")
