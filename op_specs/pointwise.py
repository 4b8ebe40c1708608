"""A convolution with a kernel of one element as a product of weights and pixels; only kernels for
the CPU have it."""

from op_specs.activations import relu as rectified
from op_specs.arithmetic import add
from op_specs.conv import check_bias
from op_specs.epilogues import divided, followed, raised
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph
from taso_mirage.operators.ops import Ints, op


@op()
def pointwise(
    xp,
    x,
    w,
    b=None,
    z=None,
    *others,
    block: Ints = (32, 1),
    relu: int = 0,
    body: Graph | None = None,
    prologue: Graph | None = None,
):
    """(n,c,h,w), (o,c,1,1), (o), (n,o,h,w), tensors -> (n,o,h,w): conv of x and w with stride 1 and
    without padding, then z is added, then relu.

    `body`, `prologue`: the epilogue of the result, and the prologue of x, with the other tensors.
    `block`: how many pixels a block of the grid has, and into how many parts the output channels
    are cut, which changes nothing.
    """
    after, before = divided(others, body)
    x = followed(xp, x, before, prologue)
    if xp.rank(x) != 4 or xp.shape(w) != (xp.shape(w)[0], xp.shape(x)[1], 1, 1):
        raise IllTyped(f"pointwise of {xp.shape(x)} with {xp.shape(w)}")
    o, c = xp.shape(w)[:2]
    y = xp.contract("nchw,oc->nohw", x, xp.reshape(w, (o, c)))
    if b is not None:
        check_bias(xp, b, o)
        y = add(xp, y, reshape(xp, b, shape=(1, o, 1, 1)))
    if z is not None:
        if xp.shape(z) != xp.shape(y):
            raise IllTyped(f"{xp.shape(z)} added to results of {xp.shape(y)}")
        y = add(xp, y, z)
    return followed(xp, rectified(xp, y) if relu else y, after, body)


pointwise.example("float32[1,3,5,6]", "float32[4,3,1,1]")
pointwise.example("float32[2,3,2,3]", "float32[4,3,1,1]", "float32[4]", "float32[2,4,2,3]", relu=1)
pointwise.example(
    "float32[1,2,3,3]",
    "float32[3,2,1,1]",
    None,
    None,
    "float32[3,1,1]",
    "float32[1,2,1,1]",
    body=raised(),
    prologue=raised(),
)
