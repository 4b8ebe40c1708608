"""A convolution by Winograd's minimal filtering (Lavin and Gray, CVPR'16, section 4.1): only
kernels for the CPU have it.

If an element of the data is infinite or NaN, all results of its tiles are NaN.
"""

from fractions import Fraction
from math import prod

import numpy as np

from op_specs.epilogues import divided, finished, followed, raised
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph, Literal
from taso_mirage.operators.ops import Ints, op

HALVES = {0: "", 3: "1", 5: "2/3 3/2", 9: "2/5 4/5 5/4 5/2"}
POINTS = {n: [Fraction(p) * s for p in own.split() for s in (1, -1)] for n, own in HALVES.items()}
"""Where the polynomials of a tile with a kernel are evaluated, by tile + kernel - 2, which is how
many points there are with 0, where there is any; and at infinity. With 2/3 and 3/2 in place of 1
and 2 the error is less than a third (tests/forms/test_convolutions.py); that the points decide
it: Barabasz et al., TOMS 2020."""


@op()
def winograd(
    xp,
    x,
    w,
    b=None,
    z=None,
    *others,
    pads: Ints,
    group: int = 1,
    tile: Ints = (2, 2),
    block: Ints = (16, 1),
    relu: int = 0,
    body: Graph | None = None,
    prologue: Graph | None = None,
):
    """(n,g*c,h,w), (g*o,c,p,q), (g*o), (n,g*o,h',w'), tensors -> (n,g*o,h',w'): conv of x and w
    with stride 1, then z is added, then relu.

    `body`, `prologue`: the epilogue of the result, and the prologue of x, with the other tensors.
    `tile`: results of a tile along either axis; `block`: how many tiles a block of the grid has,
    and into how many parts the output channels are cut, which changes nothing.
    """
    after, before = divided(others, body)
    x = followed(xp, x, before, prologue)
    (n, c, *sizes), (o, d, *kernel) = xp.shape(x), xp.shape(w)
    if (
        xp.rank(x) != 4
        or len(kernel) != 2
        or d != c // group
        or c % group
        or o % group
        or len(pads) != 4
        or len(tile) != 2
        or any(m + k - 2 not in POINTS for m, k in zip(tile, kernel, strict=True))
    ):
        raise IllTyped(f"winograd of {xp.shape(x)} with {xp.shape(w)}, pads {pads} and tile {tile}")
    down, across = ([_matrix(xp, rows, x) for rows in transforms(m, k)] for m, k in zip(tile, kernel, strict=True))
    counts = [size + pads[i] + pads[i + 2] - kernel[i] + 1 for i, size in enumerate(sizes)]
    tiles = [-(-count // m) for count, m in zip(counts, tile, strict=True)]
    rest = [t * m - count for t, m, count in zip(tiles, tile, counts, strict=True)]
    padded = xp.pad(x, (0, 0, *pads[:2]), (0, 0, pads[2] + rest[0], pads[3] + rest[1]))
    views = xp.window(padded, (2, 3), [m + k - 1 for m, k in zip(tile, kernel, strict=True)], tile, (1, 1))
    v = xp.contract("jb,nctuib->nctuij", across[0], xp.contract("ia,nctuab->nctuib", down[0], views))
    u = xp.contract("jb,ocib->ocij", across[1], xp.contract("ia,ocab->ocib", down[1], w))
    v = xp.reshape(v, (n, group, c // group, *xp.shape(v)[2:]))
    u = xp.reshape(u, (group, o // group, *xp.shape(u)[1:]))
    m = xp.contract("ngctuij,gocij->ngotuij", v, u)
    m = xp.reshape(m, (n, o, *xp.shape(m)[3:]))
    y = xp.contract("lj,notukj->notukl", across[2], xp.contract("ki,notuij->notukj", down[2], m))
    y = xp.reshape(xp.transpose(y, (0, 1, 2, 4, 3, 5)), (n, o, *(t * m for t, m in zip(tiles, tile, strict=True))))
    y = xp.slice(xp.slice(y, 2, 0, counts[0]), 3, 0, counts[1])
    return finished(xp, y, b, z, after, body, axis=1, rectified=relu)


def transforms(tile: int, kernel: int) -> tuple[list[list[Fraction]], list[list[Fraction]], list[list[Fraction]]]:
    """The matrices of data, weights and results for a tile of so many results: the algorithm of
    Toom and Cook, transposed."""
    points = [Fraction(0)][: tile + kernel - 2] + POINTS[tile + kernel - 2]
    others = [[q for q in points if q != p] for p in points]
    data = [[*_product(rest), Fraction(0)] for rest in others] + [_product(points)]
    scales = [prod((p - q for q in rest), start=Fraction(1)) for p, rest in zip(points, others, strict=True)]
    weights = [[p**k / scale for k in range(kernel)] for p, scale in zip(points, scales, strict=True)]
    weights.append([Fraction(k == kernel - 1) for k in range(kernel)])
    results = [[*(p**k for p in points), Fraction(k == tile - 1)] for k in range(tile)]
    return data, weights, results


def _product(roots: list[Fraction]) -> list[Fraction]:
    """The coefficients of the polynomial with these roots, the constant first."""
    found = [Fraction(1)]
    for root in roots:
        found = [high - root * low for high, low in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def _matrix(xp, rows: list[list[Fraction]], like):
    """Quotients of integers that floats represent exactly, so that no meaning rounds
    unnecessarily."""
    above, below = ([[getattr(each, part) for each in row] for row in rows] for part in ("numerator", "denominator"))
    return xp.div(*(xp.constant(Literal.of(np.array(part, xp.dtype(like)))) for part in (above, below)))


winograd.example("float32[1,2,5,6]", "float32[3,2,3,3]", pads=(1, 1, 1, 1))
winograd.example("float32[2,2,6,7]", "float32[3,2,3,3]", "float32[3]", pads=(0, 1, 0, 1), tile=(4, 4))
winograd.example("float32[1,4,5,5]", "float32[6,2,3,3]", pads=(1, 1, 1, 1), group=2)
winograd.example(
    "float32[1,2,5,5]", "float32[3,2,3,3]", "float32[3]", "float32[1,3,5,5]", pads=(1, 1, 1, 1), tile=(4, 4), relu=1
)
winograd.example("float32[1,2,5,6]", "float32[3,2,5,5]", pads=(2, 2, 2, 2))
winograd.example("float32[1,2,3,6]", "float32[3,2,1,7]", pads=(0, 3, 0, 3), tile=(1, 4))
winograd.example(
    "float32[1,2,5,5]",
    "float32[3,2,3,3]",
    None,
    None,
    "float32[3,1,1]",
    "float32[1,2,1,1]",
    pads=(1, 1, 1, 1),
    body=raised(),
    prologue=raised(),
)
