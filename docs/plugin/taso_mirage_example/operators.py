"""Distances between rows: an operator of ONNX Runtime with one definition and a law."""

from op_specs.arithmetic import mul, sqrt, sub
from op_specs.reductions import reduce_sum
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped
from taso_mirage.operators.ops import Ints, op


@op(onnx="CDist", domain="com.microsoft", since=1)
def cdist(xp, a, b, *, metric: str = "euclidean"):
    """(m,k), (n,k) -> (m,n), the distance of each row of a from each of b; `metric` is euclidean or
    its square, sqeuclidean"""
    if xp.rank(a) != 2 or xp.rank(b) != 2:
        raise IllTyped(f"operands of ranks {xp.rank(a)} and {xp.rank(b)}, expected matrices")
    if metric not in ("euclidean", "sqeuclidean"):
        raise IllTyped(f"metric {metric!r}, expected euclidean or sqeuclidean")
    (m, k), (n, _) = xp.shape(a), xp.shape(b)
    difference = sub(xp, reshape(xp, a, shape=(m, 1, k)), reshape(xp, b, shape=(1, n, k)))
    squares = reduce_sum(xp, mul(xp, difference, difference), axes=(2,), keepdims=0)
    return sqrt(xp, squares) if metric == "euclidean" else squares


cdist.example("float32[3,4]", "float32[5,4]")
cdist.example("float32[3,4]", "float32[2,4]", metric="sqeuclidean")
cdist.laws("""
    # a distance is the same both ways
    transpose(cdist(x, y, metric=d), perm=(1, 0)) == cdist(y, x, metric=d)
""")


@op()
def distances(xp, a, b, *, block: Ints = (16, 1)):
    """(m,k), (n,k) -> (m,n), the distances of `cdist`: the term of the kernel in `form.py`. `block`:
    how many rows of b lie side by side, and into how many parts the rows of a are cut, which
    changes nothing"""
    return cdist(xp, a, b)


distances.example("float32[3,4]", "float32[5,4]")
