"""The behaviour of an ONNX node without a definition, as a value that is equal for equal nodes of
two files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Draw:
    """A node that draws random numbers: the path to its body, its operator, and the name of its
    first result."""

    path: tuple[tuple[str, str], ...]
    domain: str
    operator: str
    name: str

    @property
    def kind(self) -> Any:
        """A key that is equal for interchangeable draws, whose numbers have the same distribution
        for equal operands."""
        return tuple(attribute for _, attribute in self.path), self.domain, self.operator


@dataclass(frozen=True, slots=True)
class NodeContent:
    """The function that a node applies to its operands.

    `digest`: a digest of its operator and version, its attributes, and the function that it calls.
    `bodies`: the bodies that are no part of the digest, with the number of their outputs. `draw`:
    the draw that it is; None for a node whose results depend on its operands alone.
    """

    operator: str
    digest: str
    bodies: tuple[tuple[str, int], ...] = ()
    draw: Draw | None = None

    def __repr__(self) -> str:
        return self.operator
