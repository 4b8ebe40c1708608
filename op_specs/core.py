"""Terms besides operators: constants, sizes, and one part of a value that has several."""

from taso_mirage.operators.ops import Dims, Literal, op


@op()
def constant(xp, *, value: Literal):
    """() -> the array itself"""
    return xp.constant(value)


@op()
def extents(xp, *, values: Dims, scalar: int = 0):
    """() -> the int64 vector (or scalar) of sizes, which may be symbolic"""
    return xp.extents(values, bool(scalar))


@op()
def item(xp, x, *, index: int):
    """(a, b, ...) -> the part at `index`"""
    return x[index]
