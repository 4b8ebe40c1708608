"""Patterns of terms in the syntax of a law's side: operators over operands and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from taso_mirage.ir.terms import Node
from taso_mirage.rewriting.equation import Equation, Match, match
from taso_mirage.rewriting.text import parse_equation


@dataclass(frozen=True, slots=True)
class RegionPattern:
    """A term in which names stand for operands and attributes; operands may commute."""

    text: str

    def match(self, node: Node) -> Mapping[str, Any] | None:
        """Match a term with this form: the values of its names; None for another form."""
        found = match(_equation(self.text), node)
        return {**found.operands, **found.attributes} if isinstance(found, Match) else None


ADDED = RegionPattern("add(y, z)")


@cache
def _equation(text: str) -> Equation:
    return parse_equation(f"{text} == {text}")
