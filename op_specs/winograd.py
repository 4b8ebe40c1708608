"""A convolution of 3 x 3 by Winograd's minimal filtering (Lavin and Gray, CVPR'16, section 4.1): only kernels for the CPU have it.

Where an element of the data is infinite or no number, all results of its tiles are no numbers.
"""

from fractions import Fraction
from math import lcm, prod

import numpy as np

from op_specs.activations import relu as rectified
from op_specs.arithmetic import add
from op_specs.conv import check_bias
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped
from taso_mirage.ir import Literal
from taso_mirage.ops import Ints, op

POINTS = {2: (0, 1, -1), 4: (0, Fraction(2, 3), -Fraction(2, 3), Fraction(3, 2), -Fraction(3, 2))}
"""Where the polynomials of a tile of so many results are evaluated, besides infinity. With 2/3 and 3/2 in place of 1 and 2 the error is
less than a third (tests/test_convolutions.py); that the points decide it: Barabasz et al., TOMS 2020."""
KERNEL = 3


@op()
def winograd(
    xp, x, w, b=None, z=None, *, pads: Ints, group: int = 1, tile: int = 2, block: Ints = (16, 1), relu: int = 0
):
    """(n,g*c,h,w), (g*o,c,3,3), (g*o), (n,g*o,h',w') -> (n,g*o,h',w'): conv of x and w with stride 1, then z is added, then relu.

    `tile`: results of a tile along an axis; `block`: how many tiles a block of the grid has, and into how many parts the output channels
    are cut, which changes nothing."""
    (n, c, *sizes), o = xp.shape(x), xp.shape(w)[0]
    if (
        xp.rank(x) != 4
        or xp.shape(w)[1:] != (c // group, KERNEL, KERNEL)
        or c % group
        or o % group
        or len(pads) != 4
        or tile not in POINTS
    ):
        raise IllTyped(f"winograd of {xp.shape(x)} with {xp.shape(w)}, pads {pads} and tile {tile}")
    data, weights, results = (_matrix(xp, rows, x) for rows in transforms(tile))
    counts = [size + pads[i] + pads[i + 2] - KERNEL + 1 for i, size in enumerate(sizes)]
    tiles = [-(-count // tile) for count in counts]
    rest = [m * tile - count for m, count in zip(tiles, counts, strict=True)]
    padded = xp.pad(x, (0, 0, *pads[:2]), (0, 0, pads[2] + rest[0], pads[3] + rest[1]))
    views = xp.window(padded, (2, 3), (tile + KERNEL - 1,) * 2, (tile,) * 2, (1, 1))
    v = xp.contract("jb,nctuib->nctuij", data, xp.contract("ia,nctuab->nctuib", data, views))
    u = xp.contract("jb,ocib->ocij", weights, xp.contract("ia,ocab->ocib", weights, w))
    v = xp.reshape(v, (n, group, c // group, *xp.shape(v)[2:]))
    u = xp.reshape(u, (group, o // group, *xp.shape(u)[1:]))
    m = xp.contract("ngctuij,gocij->ngotuij", v, u)
    m = xp.reshape(m, (n, o, *xp.shape(m)[3:]))
    y = xp.contract("lj,notukj->notukl", results, xp.contract("ki,notuij->notukj", results, m))
    y = xp.reshape(xp.transpose(y, (0, 1, 2, 4, 3, 5)), (n, o, tiles[0] * tile, tiles[1] * tile))
    y = xp.slice(xp.slice(y, 2, 0, counts[0]), 3, 0, counts[1])
    if b is not None:
        check_bias(xp, b, o)
        y = add(xp, y, reshape(xp, b, shape=(1, o, 1, 1)))
    if z is not None:
        if xp.shape(z) != xp.shape(y):
            raise IllTyped(f"{xp.shape(z)} added to results of {xp.shape(y)}")
        y = add(xp, y, z)
    return rectified(xp, y) if relu else y


def transforms(tile: int) -> tuple[list[list[Fraction]], list[list[Fraction]], list[list[Fraction]]]:
    """The matrices of data, weights and results for a tile of so many results: the algorithm of Toom and Cook, transposed."""
    points = [Fraction(p) for p in POINTS[tile]]
    others = [[q for q in points if q != p] for p in points]
    data = [[*_product(rest), Fraction(0)] for rest in others] + [_product(points)]
    scales = [prod((p - q for q in rest), start=Fraction(1)) for p, rest in zip(points, others, strict=True)]
    weights = [[p**k / scale for k in range(KERNEL)] for p, scale in zip(points, scales, strict=True)]
    weights.append([Fraction(k == KERNEL - 1) for k in range(KERNEL)])
    results = [[*(p**k for p in points), Fraction(k == tile - 1)] for k in range(tile)]
    return data, weights, results


def _product(roots: list[Fraction]) -> list[Fraction]:
    """The coefficients of the polynomial with these roots, the constant first."""
    found = [Fraction(1)]
    for root in roots:
        found = [high - root * low for high, low in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def _matrix(xp, rows: list[list[Fraction]], like):
    """Integers over one denominator, so that no meaning rounds what it need not."""
    below = lcm(*(each.denominator for row in rows for each in row))
    above = np.array([[int(each * below) for each in row] for row in rows], xp.dtype(like))
    return xp.div(xp.constant(Literal.of(above)), xp.literal(below, like))


winograd.example("float32[1,2,5,6]", "float32[3,2,3,3]", pads=(1, 1, 1, 1))
winograd.example("float32[2,2,6,7]", "float32[3,2,3,3]", "float32[3]", pads=(0, 1, 0, 1), tile=4)
winograd.example("float32[1,4,5,5]", "float32[6,2,3,3]", pads=(1, 1, 1, 1), group=2)
winograd.example(
    "float32[1,2,5,5]", "float32[3,2,3,3]", "float32[3]", "float32[1,3,5,5]", pads=(1, 1, 1, 1), tile=4, relu=1
)
