"""Containment of errors: an error with one region costs that region only; the error is reported,
and the other regions go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from taso_mirage.errors import OutOfTime
from taso_mirage.ir.terms import Node, is_part

ErrorReport = Callable[[str, Exception], None]
"""Called with the operators of a region, and its error."""


def raised(region: str, error: Exception) -> None:
    """An error handler that raises the error."""
    raise error


@contextmanager
def contained(region: str, report: ErrorReport) -> Iterator[None]:
    """Around the work on one region."""
    try:
        yield
    except OutOfTime:
        raise
    except Exception as error:
        report(region, error)


def operators_of(nodes: Iterable[Node]) -> str:
    """The operators of a region, as a user is told them."""
    return " ".join(n.op for n in nodes if n.args and not is_part(n))
