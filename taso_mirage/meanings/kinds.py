"""The kinds of atoms in normal forms: a text, which is the key of a kind, and its content as a
record.

Kinds with dtypes are calls of scalar functions: `name:float` of floats, `name:float:bool` where the
result is none, and `name:int32,float:int32` where an operand is none. `wrap:int32` is a value
modulo 2^32, `cast:float32` a rounding to that type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

FLOAT = "float"
"""Stands for every float type."""
_WRAP, _CAST = "wrap", "cast"


@dataclass(frozen=True, slots=True)
class AtomKind:
    """The content of a kind's text: the function, and the dtypes of its operands and its result;
    these are empty where the kind is no call of a function."""

    name: str
    operands: tuple[str, ...] = ()
    result: str = ""

    @property
    def of_floats(self) -> bool:
        """Whether it is a function from floats to floats."""
        return self.operands == (FLOAT,) and self.result == FLOAT

    @property
    def wraps(self) -> bool:
        """Whether it is a value modulo 2^n, of the result's dtype."""
        return self.name == _WRAP

    @property
    def converts(self) -> bool:
        """Whether it is a conversion to the result's dtype."""
        return self.name == _CAST


@cache
def atom_kind(kind: str) -> AtomKind:
    """Parse the text of a kind."""
    name, *dtypes = kind.split(":")
    return AtomKind(name, tuple(dtypes[0].split(",")), dtypes[-1]) if dtypes else AtomKind(name)


def of_floats(name: str, result: str = "") -> str:
    """The kind of a function of floats, whose result is a float unless it is said."""
    return f"{name}:{FLOAT}:{result}" if result else f"{name}:{FLOAT}"


def of_dtypes(name: str, operands: Sequence[str], result: str) -> str:
    """The kind of a function whose operands are not all floats."""
    return f"{name}:{','.join(operands)}:{result}"


def wrapping(dtype: str) -> str:
    """The kind of a value modulo 2^n."""
    return f"{_WRAP}:{dtype}"


def rounding(dtype: str) -> str:
    """The kind of a conversion from a float type to another one."""
    return f"{_CAST}:{dtype}"


def conversion(old: str, new: str) -> str:
    """The kind of a conversion from or to integers."""
    return f"{_CAST}:{old}:{new}"
