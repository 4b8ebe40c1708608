"""A convolution with channels first whose products are shifted and added: only kernels for a GPU
have it.

A row of the data is loaded once for all elements of the kernel's row: their products with it lie
beside each other, each a few pixels further, and the sum of these is the convolution (the implicit
GEMM of cuDNN, Chetlur et al. 2014, section 3, loads the data once for each). Of a transposed
convolution the elements that a pixel of the result sees depend on the pixel (its phase): they are
sums of other products of the same row.
"""

from op_specs.conv import conv
from op_specs.conv_transpose import conv_transpose
from op_specs.epilogues import followed, nothing_follows, squared
from op_specs.reductions import reduce_sum
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph
from taso_mirage.operators.ops import Ints, op


@op()
def shifted_conv(
    xp,
    x,
    w,
    *others,
    body: Graph,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    extra: Ints = (),
    block: Ints = (128, 64, 16, 1),
):
    """(n,c,h,w), (p,j,o,i,c), tensors -> (n,o,h',w'): conv of x and the sum of the p parts of the
    weights, whose last kernel axis comes first, and its epilogue; one to three axes.

    `body`: the epilogue, element by element, from the convolution of one image and the others, each
    (o,1,1), (1,o,1,1) or (n,o,h',w'), where an image has one of its own. `extra`: the
    output_padding of a transposed convolution; empty for the other. `block`, which changes nothing:
    how many pixels and columns a block of the grid has, how much of the sum a step, and how many
    elements of the kernel's row share a load.
    """
    spatial = xp.rank(x) - 2
    if xp.rank(w) != spatial + 3 or len(block) != 4:
        raise IllTyped(f"shifted_conv of {xp.shape(x)} with {xp.shape(w)} and {len(others)} others")
    kernel = (*range(2, spatial + 1), 0)
    natural = (spatial + 1, 1, *kernel) if extra else (1, spatial + 1, *kernel)
    whole = transpose(xp, reduce_sum(xp, w, axes=(0,), keepdims=0), perm=natural)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations}
    y = conv_transpose(xp, x, whole, **attrs, output_padding=extra) if extra else conv(xp, x, whole, **attrs)
    return followed(xp, y, others, body)


_SAME = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
shifted_conv.example("float32[2,3,5,6]", "float32[2,3,4,2,3]", body=nothing_follows(4, 6, 6), **_SAME)
shifted_conv.example("float32[2,3,5,6]", "float32[1,3,4,3,3]", "float32[1,4,1,1]", body=squared(4, 5, 6), **_SAME)
shifted_conv.example(
    "float32[1,2,7,6]",
    "float32[2,3,3,3,2]",
    body=nothing_follows(3, 2, 3),
    strides=(2, 2),
    pads=(0, 1, 0, 1),
    dilations=(2, 1),
)
shifted_conv.example(
    "float32[1,2,3,4]",
    "float32[2,3,4,3,2]",
    "float32[1,4,1,1]",
    body=squared(4, 6, 8),
    **{**_SAME, "strides": (2, 2)},
    extra=(1, 1),
)
shifted_conv.example(
    "float32[1,2,9]", "float32[2,3,4,2]", body=nothing_follows(4, 7), strides=(1,), pads=(0, 0), dilations=(1,)
)
