"""Models in which an attribute lets the runtime round operands to few digits, and the same models
without that attribute, which the check compares first."""

from __future__ import annotations

from dataclasses import dataclass

from taso_mirage.ir.model import Model
from taso_mirage.measure.session import Session, open_in_child
from taso_mirage.measure.target import Target
from taso_mirage.operators.ops import traits


@dataclass(frozen=True, slots=True)
class Fine:
    """The change after which the runtime rounds no operands of a model: `without` attributes of
    these names."""

    without: frozenset[str]

    @staticmethod
    def of(model: Model) -> Fine | None:
        """None if the runtime rounds none in any case."""
        names = [(node, traits(node).coarse) for node in model.nodes() if node.args]
        found = frozenset(name for node, name in names if name is not None and node.attr(name) > 1)
        return Fine(found) if found else None

    def opened(self, model: Model, target: Target, source: bool = False) -> Session:
        """A session on a model, or on it as it was read."""
        return open_in_child(model, target, source, without=self.without)
