"""The matrix product of BLAS."""

from op_specs.arithmetic import add, mul
from op_specs.matmul import matmul
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import ABSENT, Node, constant
from taso_mirage.operators.expressions import uniform_value
from taso_mirage.operators.ops import Call, op


@op(onnx="Gemm", since=7)
def gemm(xp, a, b, c=None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0):
    """(m,k), (k,n), (m,n) -> alpha * a b + beta * c, with a or b transposed first; c broadcasts to
    (m,n)"""
    if xp.rank(a) != 2 or xp.rank(b) != 2:
        raise IllTyped(f"operands of rank {xp.rank(a)} and {xp.rank(b)}; gemm takes matrices")
    left = transpose(xp, a, perm=(1, 0)) if transA else a
    right = transpose(xp, b, perm=(1, 0)) if transB else b
    product = matmul(xp, left, right)
    scaled = product if alpha == 1 else mul(xp, product, xp.literal(alpha, product))
    if c is None or beta == 0:
        return scaled
    result = add(xp, scaled, c if beta == 1 else mul(xp, c, xp.literal(beta, c)))
    if xp.shape(result) != xp.shape(product):
        raise IllTyped(f"c of shape {xp.shape(c)} does not broadcast to {xp.shape(product)}")
    return result


@gemm.importer
def _(call: Call) -> Node:
    args = call.args
    if call.opset < 11 and uniform_value(args[2]) == 0:  # exporters write 0 where c may not be left out
        args = args[:2]
    return gemm.term(*args, **call.attrs)


@gemm.exporter
def _(node: Node, opset: int) -> Call:
    args = node.args
    if opset < 11 and len(args) == 2:
        args = (*args, constant(0.0, node.dtype))
    return Call("Gemm", tuple(a for a in args if a is not ABSENT), dict(node.attrs), opset)


gemm.example("float32[3,4]", "float32[4,5]")
gemm.example("float32[3,4]", "float32[4,5]", "float32[5]")
gemm.example("float32[4,3]", "float32[4,5]", "float32[3,1]", transA=1)
gemm.example("float32[3,4]", "float32[5,4]", "float32[3,5]", transB=1, alpha=0.5, beta=2.0)
gemm.example("float32[4,3]", "float32[5,4]", "float32[()]", transA=1, transB=1)

gemm.laws("""
    add(gemm(x, y, alpha=a, beta=b, transA=p, transB=q), c) \
        == gemm(x, y, c, alpha=a, transA=p, transB=q) \
        where rank(c) <= 2
    gemm(transpose(x, perm=(1, 0)), y, *c, transA=p, **r) == gemm(x, y, *c, transA=1 - p, **r)
    gemm(x, transpose(y, perm=(1, 0)), *c, transB=q, **r) == gemm(x, y, *c, transB=1 - q, **r)
    gemm(x, y, c, transB=1) == gemm(x, transpose(y, perm=(1, 0)), c)  where is_weight(y)
    mul(gemm(x, w, *c, alpha=a, beta=b, **r), d) \
        == gemm(x, mul(w, d), mul(*c, d), alpha=a, beta=b, **r) \
        where is_weight(w) and is_weight(c) and is_weight(d) and size(d) == 1
    add(gemm(x, w, c, **r), d) \
        == gemm(x, w, add(c, d), **r) \
        where is_weight(c) and is_weight(d) and r[1] == ("beta", 1.0)
    gemm(mul(x, d), w, *c, **r) == gemm(x, mul(w, d), *c, **r)  where is_weight(w) and is_weight(d) and size(d) == 1
    gemm(x, w, c) == add(matmul(x, w), c)
    sub(gemm(x, w, c, **r), d) \
        == gemm(x, w, sub(c, d), **r) \
        where is_weight(c) and is_weight(d) and r[1] == ("beta", 1.0)
    mul(gemm(x, w, *c, transB=q, **r), d) \
        == gemm(x, mul(w, reshape(d, shape=(dim(w, 0),) * q + (1,) * q + (dim(w, 1),) * (1 - q))), mul(*c, d), transB=q, **r) \
        where shape(d) in ((dim(w, 1 - q),), (1, dim(w, 1 - q))) and is_weight(w) and is_weight(c) and is_weight(d)
    given x: (m, k), w: (n, k), c: (n), d: (n) | q: 1, r: {alpha: 0.5, beta: 2.0, transA: 0}
""")
