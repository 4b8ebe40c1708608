"""Matrix products."""

from math import prod

from op_specs.arithmetic import add, div, mul, sub
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.operators.ops import op, term
from taso_mirage.operators.slicing import sizes, under, whole


@op(onnx="MatMul", since=1, lowering=Lowering.CONTRACT)
def matmul(xp, a, b):
    """(...,m,k), (...,k,n) -> (...,m,n); numpy's rule for vectors"""
    left = "k" if xp.rank(a) == 1 else "...mk"
    right = "k" if xp.rank(b) == 1 else "...kn"
    if xp.rank(a) == 1:
        return xp.contract(f"{left},{right}->" + ("" if right == "k" else "...n"), a, b)
    return xp.contract(f"{left},{right}->" + ("...m" if right == "k" else "...mn"), a, b)


@matmul.traits.batching
def _(node) -> bool:
    """Whether a term is a product of rows with a matrix."""
    return len(sizes(node.args[1])) == 2 < 1 + len(sizes(node))


@matmul.traits.restriction
def _(inner, node, box):
    a, b = node.args
    if min(len(sizes(a)), len(sizes(b))) < 2:
        raise Unsupported("a product with a vector has no restriction; make it a matrix")
    *batch, rows, columns = box
    left, right = (under(x, (*batch, (0, 1), (0, 1)))[:-2] for x in (a, b))
    return matmul.term(inner(a, (*left, rows, whole(a)[-1])), inner(b, (*right, whole(b)[-2], columns)))


@matmul.traits.mutant("matmul to batched")
def _(node):
    """The rows, or the columns, of one product as a batch of products."""
    if any(len(a.shape) != 2 for a in node.args):
        return
    (a, b), (m, n) = node.args, sizes(node)
    k = sizes(a)[1]
    for f in (2, 4, 8):
        if m % f == 0 and m > f:
            rows = term("reshape", a, shape=(f, m // f, k))
            yield term("reshape", matmul.term(rows, b), shape=(m, n))
        if n % f == 0 and n > f:
            columns = term("transpose", term("reshape", b, shape=(k, f, n // f)), perm=(1, 0, 2))
            product = matmul.term(a, columns)
            yield term("reshape", term("transpose", product, perm=(1, 0, 2)), shape=(m, n))


@matmul.traits.mutant("batched to matmul")
def _(node):
    """A batch of products with one matrix as one product."""
    if len(node.args[0].shape) < 3 or len(node.args[1].shape) != 2:
        return
    a, b = node.args
    *batch, k = sizes(a)
    yield term("reshape", matmul.term(term("reshape", a, shape=(prod(batch), k)), b), shape=sizes(node))


matmul.example("float32[3,4]", "float32[4,5]")
matmul.example("float32[2,3,4]", "float32[4,5]")
matmul.example("float32[2,1,3,4]", "float32[5,4,2]")
matmul.example("float32[4]", "float32[2,4,3]")
matmul.example("float32[2,3,4]", "float32[4]")
matmul.example("float64[3,4]", "float64[4,2]")
for _each in (add, sub, mul, div):  # uses on columns, for the laws below
    _each.example("float32[3,5]", "float32[5]")
    _each.example("float32[2,3,5]", "float32[5]")
matmul.example("float32[2,2,3,4]", "float32[4,5]")
matmul.example("int32[3,4]", "int32[4,2]")

matmul.laws("""
    # scales go into the weights, which folds them away
    mul(matmul(x, w), c) == matmul(x, mul(w, c))  where is_weight(w) and is_weight(c) and size(c) == 1
    mul(matmul(w, x), c) == matmul(mul(w, c), x)  where is_weight(w) and is_weight(c) and size(c) == 1
    matmul(mul(x, c), w) == matmul(x, mul(w, c))  where is_weight(w) and is_weight(c) and size(c) == 1
    matmul(mul(x, c), mul(y, d)) \
        == mul(matmul(x, y), mul(c, d)) \
        where is_weight(c) and is_weight(d) and size(c) == 1 and size(d) == 1
    div(matmul(x, w), c) == matmul(x, div(w, c))  where is_weight(w) and is_weight(c) and size(c) == 1
    div(matmul(x, w), c) \
        == matmul(x, div(w, c)) \
        where is_weight(w) and is_weight(c) and rank(c) == 1 and rank(w) > 1 and rank(x) > 1
    matmul(neg(x), w) == matmul(x, neg(w))  where is_weight(w)
    neg(matmul(x, w)) == matmul(x, neg(w))  where is_weight(w)
""")

matmul.laws("""
    # linear on both sides
    matmul(add(x, y), w) == add(matmul(x, w), matmul(y, w))  where shape(x) == shape(y)
    matmul(sub(x, y), w) == sub(matmul(x, w), matmul(y, w))  where shape(x) == shape(y)
    matmul(x, add(v, w)) == add(matmul(x, v), matmul(x, w))  where shape(v) == shape(w)
    matmul(x, sub(v, w)) == sub(matmul(x, v), matmul(x, w))  where shape(v) == shape(w)
    matmul(matmul(x, y), z) == matmul(x, matmul(y, z))  where rank(x) >= 2 and rank(y) >= 2 and rank(z) >= 2
    matmul(neg(x), y) == neg(matmul(x, y))
    matmul(x, neg(y)) == neg(matmul(x, y))
    matmul(mul(x, c), w) == mul(matmul(x, w), c)  where size(c) == 1
    matmul(x, mul(w, c)) == mul(matmul(x, w), c)  where size(c) == 1
    matmul(div(x, c), w) == div(matmul(x, w), c)  where size(c) == 1
    matmul(x, div(w, c)) == div(matmul(x, w), c)  where size(c) == 1

    # scale and shift of rows and columns go into the weights
    matmul(mul(x, c), w) \
        == matmul(x, mul(w, reshape(c, shape=(dim(w, 0), 1)))) \
        where rank(w) == 2 and shape(c) == (dim(x, -1),) and is_weight(w) and is_weight(c)
    matmul(add(x, c), w) \
        == add(matmul(x, w), matmul(c, w)) \
        where rank(w) == 2 and shape(c) == (dim(x, -1),) and is_weight(w) and is_weight(c)
    matmul(sub(x, c), w) \
        == sub(matmul(x, w), matmul(c, w)) \
        where rank(w) == 2 and shape(c) == (dim(x, -1),) and is_weight(w) and is_weight(c)

    # one product for several
    (matmul(x, u), matmul(x, v), matmul(x, w)) \
        == (item(split(matmul(x, concat(u, v, w, axis=1)), axis=rank(x) - 1, split=(dim(u, 1), dim(v, 1), dim(w, \
            1))), index=0), item(split(matmul(x, concat(u, v, w, axis=1)), axis=rank(x) - 1, split=(dim(u, 1), dim(v, \
            1), dim(w, 1))), index=1), item(split(matmul(x, concat(u, v, w, axis=1)), axis=rank(x) - 1, split=(dim(u, \
            1), dim(v, 1), dim(w, 1))), index=2)) \
        where rank(u) == 2 and rank(v) == 2 and rank(w) == 2 and is_weight(u) and is_weight(v) and is_weight(w)
    (add(matmul(x, v), c), add(matmul(x, w), d)) \
        == (item(split(add(matmul(x, concat(v, w, axis=1)), concat(c, d, axis=0)), axis=rank(x) - 1, split=(dim(v, \
            1), dim(w, 1))), index=0), item(split(add(matmul(x, concat(v, w, axis=1)), concat(c, d, axis=0)), \
            axis=rank(x) - 1, split=(dim(v, 1), dim(w, 1))), index=1)) \
        where rank(v) == 2 and rank(w) == 2 and is_weight(v) and is_weight(w) and shape(c) == (dim(v, 1),) \
            and shape(d) == (dim(w, 1),)
    (add(matmul(x, u), b), add(matmul(x, v), c), add(matmul(x, w), d)) \
        == (item(split(add(matmul(x, concat(u, v, w, axis=1)), concat(b, c, d, axis=0)), axis=rank(x) - 1, \
            split=(dim(u, 1), dim(v, 1), dim(w, 1))), index=0), item(split(add(matmul(x, concat(u, v, w, axis=1)), \
            concat(b, c, d, axis=0)), axis=rank(x) - 1, split=(dim(u, 1), dim(v, 1), dim(w, 1))), index=1), \
            item(split(add(matmul(x, concat(u, v, w, axis=1)), concat(b, c, d, axis=0)), axis=rank(x) - 1, \
            split=(dim(u, 1), dim(v, 1), dim(w, 1))), index=2)) \
        where rank(u) == 2 and rank(v) == 2 and rank(w) == 2 and is_weight(u) and is_weight(v) and is_weight(w) \
            and shape(b) == (dim(u, 1),) and shape(c) == (dim(v, 1),) and shape(d) == (dim(w, 1),)
    concat(matmul(x, w), matmul(y, w), axis=i) \
        == matmul(concat(x, y, axis=i), w) \
        where rank(w) == 2 and i < rank(x) - 1
""")
# The normalization of features is merged into the first layer.
matmul.laws("""
    add(matmul(add(x, c), w), d) \
        == add(matmul(x, w), add(d, matmul(c, w))) \
        where rank(w) == 2 and shape(c) == (dim(x, -1),) and is_weight(w) and is_weight(c) and is_weight(d)
    add(matmul(sub(x, c), w), d) \
        == add(matmul(x, w), sub(d, matmul(c, w))) \
        where rank(w) == 2 and shape(c) == (dim(x, -1),) and is_weight(w) and is_weight(c) and is_weight(d)
    matmul(div(x, c), w) \
        == matmul(x, div(w, reshape(c, shape=(dim(w, 0), 1)))) \
        where rank(w) == 2 and shape(c) == (dim(x, -1),) and is_weight(w) and is_weight(c)
""")
