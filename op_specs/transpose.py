"""Transpose."""

from op_specs.families import ELEMENTWISE, PAIRWISE, each
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.operators.ops import Call, Ints, op


@op(onnx="Transpose", since=1, lowering=Lowering.TRANSPOSE)
def transpose(xp, x, *, perm: Ints):
    """axis i of the result is axis perm[i] of the operand"""
    return xp.transpose(x, perm)


@transpose.importer
def _(call: Call):
    x = call.arg(0)
    return transpose.term(x, perm=call.attrs.get("perm", range(x.tensor.rank)[::-1]))


@transpose.traits.restriction
def _(inner, node, box):
    perm = node.attr("perm")
    around = tuple(box[perm.index(i)] for i in range(len(perm)))
    return transpose.term(inner(node.args[0], around), perm=perm)


transpose.example("float32[2,3]", perm=(1, 0))
transpose.example("float32[2,3,4]", perm=(2, 0, 1))
transpose.example("float32[2,3,4]", perm=(0, 1, 2))
transpose.example("float32[2,3,4,5]", perm=(0, 2, 1, 3))
transpose.example("int64[2,3]", perm=(1, 0))
transpose.example("float16[2,3,2]", perm=(0, 2, 1))

transpose.laws("""
    transpose(x, perm=p) == x  where p == iota(rank(x))
    transpose(transpose(x, perm=p), perm=q) == transpose(x, perm=compose(p, q))
    transpose(x, perm=(1, 0)) == reshape(x, shape=(dim(x, 1), dim(x, 0)))  where dim(x, 0) == 1 or dim(x, 1) == 1
    transpose(x, perm=(0, 2, 1, 3)) \
        == reshape(x, shape=at(shape(x), (0, 2, 1, 3))) \
        where dim(x, 1) == 1 or dim(x, 2) == 1
    transpose(matmul(x, y), perm=p) \
        == matmul(transpose(y, perm=p), transpose(x, perm=p)) \
        where rank(x) == rank(y) and rank(x) >= 2 and p == iota(rank(x) - 2) + (rank(x) - 1, rank(x) - 2)
    matmul(transpose(x, perm=p), transpose(y, perm=p)) \
        == transpose(matmul(x, y), perm=p) \
        where rank(x) == rank(y) and rank(x) >= 2 and p[rank(x) - 2:] == (rank(x) - 2, rank(x) - 1)
    reduce_mean(transpose(x, perm=p), axes=i, keepdims=1) \
        == transpose(reduce_mean(x, axes=(p[i[0]],), keepdims=1), perm=p) \
        where len(i) == 1
    concat(transpose(x, perm=p), transpose(y, perm=p), transpose(z, perm=p), axis=i) \
        == transpose(concat(x, y, z, axis=p[i]), perm=p)
    slice(transpose(x, perm=p), axes=i, **a) == transpose(slice(x, axes=(p[i[0]],), **a), perm=p)  where len(i) == 1
    pad(transpose(x, perm=p), pads=q, **a) \
        == transpose(pad(x, pads=at(q[:rank(x)], inverse(p)) + at(q[rank(x):], inverse(p)), **a), perm=p)
""")
transpose.laws(each(ELEMENTWISE, "f(transpose(x, perm=p), **a) == transpose(f(x, **a), perm=p)"))
transpose.laws(
    each(
        PAIRWISE,
        "f(transpose(x, perm=p), transpose(y, perm=p)) == transpose(f(x, y), perm=p)  where rank(x) == rank(y)",
    )
)
transpose.laws(each(PAIRWISE, "f(transpose(x, perm=p), c) == transpose(f(x, c), perm=p)  where rank(c) == 0"))
transpose.laws(
    "\n".join(
        f"item(split(transpose(x, perm=p), axis=i, split=s), index={k}) "
        f"== transpose(item(split(x, axis=p[i], split=s), index={k}), perm=p)"
        for k in range(3)
    )
)
transpose.laws(
    """
    transpose(x, perm=p) == reshape(x, shape=at(shape(x), p))  where moves_ones(p, shape(x))
    transpose(reshape(x, shape=s), perm=p) == reshape(x, shape=at(s, p))  where moves_ones(p, s)
    reshape(transpose(x, perm=p), shape=s) == reshape(x, shape=s)  where moves_ones(p, shape(x))
""",
    last=True,
)
