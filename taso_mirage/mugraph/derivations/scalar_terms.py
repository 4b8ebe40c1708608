"""The terms of a goal over scalars and folds, which `Labels` derives from its operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from taso_mirage.ir.terms import Node
from taso_mirage.mugraph.axis_classes import AxisLabels, Label, LabelledAxes
from taso_mirage.mugraph.derivations.kind import DerivationKind


class TermForm(Enum):
    """The form of a term that no derivation makes."""

    LEAF = auto()
    """An input: `node`, `axes`."""
    CONSTANT = auto()
    """A number: `value`."""
    SCALAR = auto()
    """A numpy function that is no arithmetic of the search, or a fold's count (over `labels`)."""
    FUNCTION = auto()
    """An opaque operator: `node`."""
    RENAME = auto()
    """Labels are renamed: `pairs`, all at once."""


@dataclass(frozen=True, eq=False, slots=True)
class ScalarTerm:
    """A form, or a derivation kind: arithmetic, or a reduction over `labels`."""

    kind: TermForm | DerivationKind
    args: tuple[ScalarTerm, ...] = ()
    node: Node | None = None
    axes: LabelledAxes = ()
    labels: AxisLabels = ()
    pairs: tuple[tuple[Label, Label], ...] = ()
    value: float = 0.0


def below(term: ScalarTerm) -> Iterator[ScalarTerm]:
    """All terms of a term, each once."""
    seen: dict[int, ScalarTerm] = {}
    stack = [term]
    while stack:
        each = stack.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            stack += each.args
            yield each


def seen(term: ScalarTerm) -> ScalarTerm:
    """A term without the renamings of its labels."""
    while term.kind is TermForm.RENAME:
        term = term.args[0]
    return term
