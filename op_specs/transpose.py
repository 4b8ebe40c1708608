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
""")
# A change of layout moves towards the outputs.
transpose.laws(
    """
    reduce_mean(transpose(x, perm=p), axes=i, keepdims=1) \
        == transpose(reduce_mean(x, axes=(p[i[0]],), keepdims=1), perm=p) \
        where len(i) == 1
    concat(transpose(x, perm=p), transpose(y, perm=p), transpose(z, perm=p), axis=i) \
        == transpose(concat(x, y, z, axis=p[i]), perm=p)
    slice(transpose(x, perm=p), axes=i, **a) == transpose(slice(x, axes=(p[i[0]],), **a), perm=p)  where len(i) == 1
    pad(transpose(x, perm=p), pads=q, **a) \
        == transpose(pad(x, pads=at(q[:rank(x)], inverse(p)) + at(q[rank(x):], inverse(p)), **a), perm=p)
""",
    moving=True,
)
transpose.laws(each(ELEMENTWISE, "f(transpose(x, perm=p), **a) == transpose(f(x, **a), perm=p)"), moving=True)
transpose.laws(
    each(
        PAIRWISE,
        "f(transpose(x, perm=p), transpose(y, perm=p)) == transpose(f(x, y), perm=p)  where rank(x) == rank(y)",
    ),
    moving=True,
)
transpose.laws(
    each(PAIRWISE, "f(transpose(x, perm=p), c) == transpose(f(x, c), perm=p)  where rank(c) == 0"), moving=True
)
transpose.laws(
    "\n".join(
        f"item(split(transpose(x, perm=p), axis=i, split=s), index={k}) "
        f"== transpose(item(split(x, axis=p[i], split=s), index={k}), perm=p)"
        for k in range(3)
    ),
    moving=True,
)
transpose.laws(
    """
    transpose(x, perm=p) == reshape(x, shape=at(shape(x), p))  where moves_ones(p, shape(x))
    transpose(reshape(x, shape=s), perm=p) == reshape(x, shape=at(s, p))  where moves_ones(p, s)
    reshape(transpose(x, perm=p), shape=s) == reshape(x, shape=s)  where moves_ones(p, shape(x))
""",
    last=True,
)
# The form of PyTorch's attention module, with heads and batch in one dim.
transpose.laws("""
    squeeze(transpose(unsqueeze(x, axes=i), perm=p), axes=j) \
        == transpose(x, perm=without(at(iota(rank(x))[:i[0]] + (0,) + iota(rank(x))[i[0]:], p), j[0])) \
        where len(i) == 1 and len(j) == 1 and p[j[0]] == i[0]
    reshape(transpose(reshape(x, shape=s), perm=p), shape=t) \
        == transpose(reshape(x, shape=(s[0], t[0], t[1], s[2])), perm=(1, 2) + at((0, 1, 3), p[1:])) \
        where len(s) == 3 and len(t) == 4 and p[0] == 1 and t[2:] == at(s, p[1:])
    given x: (m, n*h*d) | s: (m, n*h, d), p: (1, 0, 2), t: (n, h, m, d)
    transpose(reshape(add(matmul(transpose(x, perm=(1, 0, 2)), w), *b), shape=s), perm=p) \
        == transpose(reshape(add(matmul(x, w), *b), shape=at(s, (1, 0, 2, 3))), perm=at((1, 0, 2, 3), p)) \
        where rank(w) == 2 and rank(b) == 1 and len(s) == 4 and s[:2] == (dim(x, 1), dim(x, 0))
    given x: (m, n, k), w: (k, h*d), b: (h*d) | s: (n, m, h, d), p: (1, 2, 0, 3)
    transpose(add(matmul(reshape(transpose(x, perm=(2, 0, 1, 3)), shape=s), w), *b), perm=(1, 0, 2)) \
        == add(matmul(reshape(transpose(x, perm=(0, 2, 1, 3)), shape=(s[1], s[0], s[2])), w), *b) \
        where rank(w) == 2 and rank(b) == 1 and len(s) == 3 and s[:2] == (dim(x, 2), dim(x, 0))
    given x: (m, h, n, d), w: (h*d, k), b: (k) | s: (n, m, h*d)
    transpose(reshape(gemm(reshape(transpose(x, perm=(2, 0, 1, 3)), shape=s), w, *b, transA=0, **a), shape=t), \
            perm=(1, 0, 2)) \
        == reshape(gemm(reshape(transpose(x, perm=(0, 2, 1, 3)), shape=s), w, *b, transA=0, **a), \
            shape=(t[1], t[0], t[2])) \
        where rank(b) == 1 and len(s) == 2 and len(t) == 3 and t[:2] == (dim(x, 2), dim(x, 0)) and \
            s[1] == dim(x, 1) * dim(x, 3)
    given x: (m, h, n, d), w: (h*d, k), b: (k) | s: (m*n, h*d), t: (n, m, k), a: {alpha: 1.0, beta: 1.0, transB: 0}
""")
# Operators between convolutions with channels last, as TensorFlow writes them.
WITH_WEIGHT = "transpose(reshape(c, shape=(1,) * (rank(x) - rank(c)) + shape(c)), perm=inverse(p))"
transpose.laws(
    each(
        PAIRWISE,
        f"f(transpose(x, perm=p), c) == transpose(f(x, {WITH_WEIGHT}), perm=p) "
        "where is_weight(c) and 1 <= rank(c) and rank(c) <= rank(x)",
    ),
    moving=True,
)
transpose.laws(
    each(
        ("sub", "div"),
        f"f(c, transpose(x, perm=p)) == transpose(f({WITH_WEIGHT}, x), perm=p) "
        "where is_weight(c) and rank(c) <= rank(x)",
    ),
    moving=True,
)
transpose.laws(
    """
    clip(transpose(x, perm=p), *c, *d) == transpose(clip(x, *c, *d), perm=p)  where rank(c) == 0 and rank(d) == 0
    hard_sigmoid(transpose(x, perm=p), **a) == transpose(hard_sigmoid(x, **a), perm=p)
    concat(transpose(x, perm=p), transpose(y, perm=p), axis=i) == transpose(concat(x, y, axis=p[i]), perm=p)
""",
    moving=True,
)
# Parts of a model with channels last on a GPU: images as rows, sums with a vector for each image,
# and joins with an operand in the other layout.
transpose.laws("""
    transpose(reshape(transpose(x, perm=(0, 3, 1, 2)), shape=s), perm=(0, 2, 1)) \
        == reshape(x, shape=(s[0], s[2], s[1])) \
        where rank(x) == 4 and len(s) == 3 and s[:2] == at(shape(x), (0, 3))
    given x: (n, h, w, c) | s: (n, c, h*w)
    transpose(unsqueeze(x, axes=(2, 3)), perm=(0, 2, 3, 1)) == unsqueeze(x, axes=(1, 2))  where rank(x) == 2
    given x: (n, c)
""")
transpose.laws(
    """
    reshape(transpose(x, perm=(0, 2, 1)), shape=s) \
        == transpose(reshape(x, shape=(s[0], s[2], s[3], s[1])), perm=(0, 3, 1, 2)) \
        where rank(x) == 3 and len(s) == 4 and s[:2] == at(shape(x), (0, 2)) and dtype(x) == "float16"
    given x: float16(n, h*w, c) | s: (n, c, h, w)
    resize(transpose(x, perm=p), factors=f) == transpose(resize(x, factors=at(f, inverse(p))), perm=p)
    given x: (n, h, w, c) | p: (0, 3, 1, 2), f: (1, 1, 2, 2)
    add(transpose(x, perm=(0, 3, 1, 2)), y) \
        == transpose(add(x, transpose(y, perm=(0, 2, 3, 1))), perm=(0, 3, 1, 2)) \
        where rank(x) == rank(y) == 4 and dtype(x) == "float16"
    given x: float16(n, h, w, c), y: float16(n, c, h, w)
    concat(transpose(x, perm=(0, 3, 1, 2)), y, axis=1) \
        == transpose(concat(x, transpose(y, perm=(0, 2, 3, 1)), axis=3), perm=(0, 3, 1, 2)) \
        where rank(x) == 4 and dtype(x) == "float16"
    given x: float16(n, h, w, c), y: float16(n, k, h, w)
    concat(y, transpose(x, perm=(0, 3, 1, 2)), axis=1) \
        == transpose(concat(transpose(y, perm=(0, 2, 3, 1)), x, axis=3), perm=(0, 3, 1, 2)) \
        where rank(x) == 4 and dtype(x) == "float16"
    given x: float16(n, h, w, c), y: float16(n, k, h, w)
""",
    moving=True,
)
