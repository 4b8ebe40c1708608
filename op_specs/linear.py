"""A product with a weight that is stored in the order of its use; only kernels for the CPU have
it."""

from op_specs.block_weights import matmul_nbits
from op_specs.epilogues import divided, finished, followed, raised
from op_specs.matmul import matmul
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph
from taso_mirage.operators.ops import Ints, op


@op()
def linear(
    xp,
    x,
    w,
    b=None,
    z=None,
    scales=None,
    zeros=None,
    *others,
    block: Ints = (16, 8, 1),
    bits: int = 4,
    block_size: int = 32,
    digits: int = 3,
    body: Graph | None = None,
    prologue: Graph | None = None,
):
    """(...,m,k), (k,n), (n), (...,m,n), tensors -> (...,m,n): matmul of x and w, then b and z are
    added.

    `body`, `prologue`: the epilogue of the result, and the prologue of x, with the other tensors.

    With scales the weights w are of so many `bits`, in blocks, as `matmul_nbits` has them. `block`:
    the columns that lie side by side in the prepared weights, the rows of a tile at most, and into
    how many parts the rows are cut, which changes nothing; nor do the `digits` that x is rounded to
    where integers are multiplied: three have those of single precision.
    """
    after, before = divided(others, body)
    x = followed(xp, x, before, prologue)
    if xp.rank(w) != (2 if scales is None else 3) or xp.rank(x) < 2:
        raise IllTyped(f"linear of {xp.shape(x)} with {xp.shape(w)}")
    n = xp.shape(w)[1 if scales is None else 0]
    if scales is None:
        y = matmul(xp, x, w)
    else:
        sizes = {"K": xp.shape(x)[-1], "N": n, "bits": bits, "block_size": block_size}
        y = matmul_nbits(xp, x, w, scales, zeros, **sizes)
    return finished(xp, y, b, z, after, body, axis=-1)


linear.example("float32[1,3]", "float32[3,4]")
linear.example("float32[2,1,3]", "float32[3,4]", "float32[4]", "float32[2,1,4]")
linear.example("float32[2,40]", "uint8[5,3,8]", "float32[5]", None, "float32[5,3]", "uint8[5,2]", block_size=16)
linear.example(
    "float32[2,3]",
    "float32[3,4]",
    None,
    None,
    None,
    None,
    "float32[4]",
    "float32[2,1]",
    body=raised(),
    prologue=raised(),
)
