"""A convolution with channels last as a sum over the kernel's elements of products of matrices
(implicit GEMM; cuDNN, Chetlur et al. 2014, section 3): only kernels for a GPU have it."""

import numpy as np

from op_specs.epilogues import divided, finished, followed, raised
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph, Literal, numpy_dtype
from taso_mirage.operators.ops import Ints, op


@op()
def implicit_gemm(
    xp,
    x,
    w,
    b=None,
    z=None,
    *others,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    group: int = 1,
    merged: int = 1,
    block: Ints = (64, 64, 64, 0),
    relu: int = 0,
    body: Graph | None = None,
    prologue: Graph | None = None,
):
    """(n,h,w,g*c), (i,j,c,g*o), (g*o), (n,h',w',g*o), tensors -> (n,h',w',g*o): conv of x and w
    with channels last, then z is added, then relu, then the epilogue `body` of the result and other
    tensors; x is the `prologue` of the data and the remaining ones.

    `merged`: so many groups are one matrix, with zeros where a group would see the channels of
    another. `block`, which changes nothing: how many results' pixels and columns a block of the
    grid has, how many channels a step of its sum, and whether the steps are written one by one.
    """
    after, before = divided(others, body)
    x = followed(xp, x, before, prologue)
    (*_, channels), (*kernel, c, o) = xp.shape(x), xp.shape(w)
    if (
        xp.rank(x) != 4
        or len(kernel) != 2
        or channels != group * c
        or o % group
        or group % merged
        or [len(each) for each in (strides, pads, dilations, block)] != [2, 4, 2, 4]
    ):
        raise IllTyped(f"implicit_gemm of {xp.shape(x)} with {xp.shape(w)}, {group} groups and {merged} of them merged")
    padded = xp.pad(x, (0, *pads[:2], 0), (0, *pads[2:], 0))
    views = xp.window(padded, (1, 2), kernel, strides, dilations)
    n, high, wide = xp.shape(views)[:3]
    views = xp.reshape(views, (n, high, wide, group // merged, merged * c, *kernel))
    y = xp.contract("nhwgcij,ijcgo->nhwgo", views, _dense(xp, w, group, merged))
    y = xp.reshape(y, (n, high, wide, o))
    return finished(xp, y, b, z, after, body, axis=-1, rectified=relu)


def _dense(xp, w, group: int, merged: int):
    """(i,j,c,g*o) -> (i,j,merged*c,g/merged,merged*o): each `merged` groups as a block-diagonal
    matrix."""
    *kernel, c, o = xp.shape(w)
    apart = xp.reshape(w, (*kernel, 1, c, group // merged, merged, o // group))
    shape = (*kernel, merged, *xp.shape(apart)[3:])
    own = np.eye(merged, dtype=numpy_dtype(xp.dtype(w))).reshape(1, 1, merged, 1, 1, merged, 1)
    dense = xp.mul(xp.expand(apart, shape), xp.expand(xp.constant(Literal.of(own)), shape))
    return xp.reshape(dense, (*kernel, merged * c, group // merged, merged * (o // group)))


_SAME = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
implicit_gemm.example("float32[1,5,6,2]", "float32[3,3,2,3]", **_SAME)
implicit_gemm.example("float32[2,5,5,4]", "float32[3,3,1,4]", "float32[4]", **_SAME, group=4, relu=1)
implicit_gemm.example("float32[1,5,5,4]", "float32[3,3,2,6]", **_SAME, group=2, merged=2)
implicit_gemm.example(
    "float32[1,6,5,8]",
    "float32[3,2,2,4]",
    "float32[4]",
    "float32[1,3,3,4]",
    strides=(2, 2),
    pads=(1, 1, 0, 0),
    dilations=(1, 1),
    group=4,
    merged=2,
    relu=1,
)
implicit_gemm.example("float32[1,7,7,2]", "float32[3,3,2,2]", strides=(1, 1), pads=(2, 0, 1, 2), dilations=(2, 2))
implicit_gemm.example(
    "float32[2,5,5,4]", "float32[3,3,1,4]", "float32[4]", None, "float32[2,1,1,4]", **_SAME, group=4, body=raised()
)
implicit_gemm.example("float32[1,5,6,2]", "float32[3,3,2,3]", None, None, "float32[2]", **_SAME, prologue=raised())
