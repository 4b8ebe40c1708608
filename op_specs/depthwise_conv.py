"""A convolution of each channel alone, with channels first and its epilogue: only kernels for a GPU
have it.

Results of neighbouring rows see the same rows of the image, so a thread has several of them (Howard
et al., MobileNets, 2017, section 3.1, has the operator; nothing in it is a product of matrices).
"""

from op_specs.conv import conv
from op_specs.epilogues import followed, nothing_follows, squared
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph
from taso_mirage.operators.ops import Ints, op


@op()
def depthwise_conv(
    xp, x, w, *others, body: Graph, strides: Ints, pads: Ints, dilations: Ints, block: Ints = (1, 256, 1)
):
    """(n,c,h,w), (m*c,1,i,j), tensors -> (n,m*c,h',w'): conv with a group for each channel of x,
    and its epilogue; one to three axes.

    `body`: the epilogue, as of a `shifted_conv`. `block`, which changes nothing: how many channels
    and positions of a plane a block of the grid has, and how many rows each position has results
    in.
    """
    channels = xp.shape(x)[1]
    if not isinstance(channels, int) or len(block) != 3:
        raise IllTyped(f"depthwise_conv of {xp.shape(x)} with blocks {block}")
    y = conv(xp, x, w, strides=strides, pads=pads, dilations=dilations, group=channels)
    return followed(xp, y, others, body)


_SAME = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
depthwise_conv.example("float32[2,3,5,6]", "float32[3,1,3,3]", body=nothing_follows(3, 5, 6), **_SAME)
depthwise_conv.example("float32[2,3,5,6]", "float32[6,1,2,3]", "float32[1,6,1,1]", body=squared(6, 6, 6), **_SAME)
depthwise_conv.example(
    "float32[1,2,7,6]",
    "float32[2,1,3,2]",
    body=nothing_follows(2, 2, 3),
    strides=(2, 2),
    pads=(0, 1, 0, 1),
    dilations=(2, 1),
)
depthwise_conv.example(
    "float32[1,2,9]", "float32[2,1,4]", body=nothing_follows(2, 7), strides=(1,), pads=(1, 0), dilations=(1,)
)
