"""Operators and laws that plug-ins add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taso_mirage.plugins import OPERATOR_GROUP, plugins

ADDED = frozenset("law_texts law_typings law_plugins together last moving examples".split())
"""The fields of a foreign operator to which a plug-in may add: laws, which are proved, and
examples."""


def add_from_plugins(registry: Mapping[str, Any]) -> None:
    """Load the plug-ins, which register their operators, and record which laws they add.

    Raises InvalidOption, with the next step, if one cannot be loaded, or changes the meaning of an
    existing operator.
    """
    for plugin in plugins(OPERATOR_GROUP):
        stated = {name: len(each.law_texts) for name, each in registry.items()}
        known = {name: _meaning(each) for name, each in registry.items()}
        plugin.load()
        for name, meant in known.items():
            if name not in registry or _meaning(registry[name]) != meant:
                raise plugin.refused(f"changes the operator {name}, which is not its own; give it another name")
        for name, each in registry.items():
            each.law_plugins |= dict.fromkeys(range(stated.get(name, 0), len(each.law_texts)), plugin)


def _meaning(op: Any) -> dict[str, Any]:
    """The data that decide an operator's meaning and its form in ONNX."""
    said = {name: value for name, value in vars(op).items() if name not in ADDED}
    return {**said, "traits": dict(vars(op.traits)), "attributes": dict(op.attributes)}
