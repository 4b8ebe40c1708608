"""A pool with channels last: only kernels for a GPU have it."""

from op_specs.epilogues import followed, raised
from op_specs.pool import max_pool
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph
from taso_mirage.operators.ops import Ints, op


@op()
def max_pool_last(
    xp,
    x,
    *others,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    block: Ints = (16, 64),
    body: Graph | None = None,
):
    """(n,h,w,c), tensors -> (n,h',w',c), the largest of each window; padding is below everything

    `body`: the epilogue of the result and the other tensors. `block`, which changes nothing: how
    many pixels and channels of the result a block of the grid has.
    """
    if xp.rank(x) != 4 or [len(each) for each in (kernel, block)] != [2, 2]:
        raise IllTyped(f"max_pool_last of {xp.shape(x)} with a kernel of {kernel} and blocks of {block}")
    first = transpose(xp, x, perm=(0, 3, 1, 2))
    y = max_pool(xp, first, kernel=kernel, strides=strides, pads=pads, dilations=dilations)
    return followed(xp, transpose(xp, y, perm=(0, 2, 3, 1)), others, body)


_SAME = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
max_pool_last.example("float32[2,5,6,3]", **_SAME)
max_pool_last.example("float32[1,6,5,2]", kernel=(2, 3), strides=(2, 2), pads=(0, 1, 1, 0), dilations=(1, 1))
max_pool_last.example("float32[1,7,7,2]", kernel=(2, 2), strides=(1, 2), pads=(0, 0, 0, 0), dilations=(2, 3))
max_pool_last.example("float32[2,5,6,3]", "float32[2,1,1,3]", **_SAME, body=raised())
