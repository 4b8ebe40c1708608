"""Models in which the runtime rounds operands to few digits, as an attribute of theirs lets it, and
the same models where it does not: the check compares the latter first."""

from __future__ import annotations

from dataclasses import dataclass

from taso_mirage.ir.model import Model
from taso_mirage.measure.session import Session, open_in_child
from taso_mirage.measure.target import Target
from taso_mirage.operators.ops import traits


@dataclass(frozen=True, slots=True)
class Fine:
    """How the runtime rounds no operands of a model: `without` attributes of these names."""

    without: frozenset[str]

    @staticmethod
    def of(model: Model) -> Fine | None:
        """None where it rounds none in any case."""
        names = [(node, traits(node).coarse) for node in model.nodes() if node.args]
        found = frozenset(name for node, name in names if name is not None and node.attr(name) > 1)
        return Fine(found) if found else None

    def opened(self, model: Model, target: Target, source: bool = False) -> Session:
        """A session on a model, or on it as it was read."""
        return open_in_child(model, target, source, without=self.without)
