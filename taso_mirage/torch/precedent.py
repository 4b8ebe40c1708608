"""Results of one graph, reused for a graph that differs by sizes or by values of weights: the
optimizer applies the same rules by predicted costs, and repeats no search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch

from taso_mirage.api import Options
from taso_mirage.report.result import Result
from taso_mirage.search.rulesets import RuleSet
from taso_mirage.torch.functionalization import CALLS, Captured, value_of

SHARE = 0.25
"""The share of the budget for a graph like one that got kernels: those are made for its own
sizes."""
PREDICTED = {
    "effort": "quick",
    "measure": False,
    "scheduler": None,
    "kernels": "off",
    "strategy": "best-first",
}
"""Options of `optimize` by which costs are predicted, and nothing is tuned."""
Likeness = tuple[Any, ...]
"""A key that is equal for graphs that are alike."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Precedent:
    """`rules` are those that were applied, all that may be where nothing was decided; `corrected`:
    whether mutants were, too; `fused`: whether there are kernels."""

    rules: RuleSet | None
    corrected: bool
    fused: bool

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of `optimize` for a graph that is alike.

        Rules that a user allows to round by name have to be there, applied or not.
        """
        limited = self.rules is not None and given.get("allow_rounding") is None
        own = {**given, "partial": self.corrected} | ({"rules": self.rules} if limited else {})
        if self.fused:
            return {**own, "budget": SHARE * given.get("budget", Options().budget)}
        return {**own, **PREDICTED}


def precedent_of(results: Sequence[Result]) -> Precedent:
    """The precedent that the results of a graph's parts are."""
    applied = {name for result in results for name in result.equations}
    decided = all(result.changed or result.timing is not None for result in results)
    rules = results[0].rules.where(lambda each: each.name in applied) if results and decided else None
    known = {each.name for result in results for each in result.rules}
    return Precedent(rules, not applied <= known, any(result.kernels for result in results))


def likeness(captured: Captured, weights: Sequence[Any], options: Mapping[str, Any]) -> Likeness:
    """The operators of a graph on floats in their order, the shapes of its weights, and the
    options: no sizes of inputs, and no values."""
    floats = tuple([node.target for node in captured.graph.nodes if node.op in CALLS and _is_float(node)])
    shapes = tuple([(tuple(each.shape), each.dtype, each.device) for each in weights])
    return floats, shapes, repr(sorted(options.items(), key=lambda item: item[0]))


def _is_float(node: Any) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.is_floating_point()


PRECEDENTS: WeakValueDictionary[Likeness, Precedent] = WeakValueDictionary()
"""The precedents of live graphs: each graph keeps its own."""
