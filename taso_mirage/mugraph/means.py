"""Weighted means that one kernel hands to another, in the model's own float type instead of fp32.

A part of attention is a sum of exponentials times values, relative to a maximum. Divided by the sum
of the same exponentials, which is passed on as well, it is a mean of the values, with their range
and rounding. This halves the memory of partial results (FlashInfer, MLSys'25, stores them in this
way).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taso_mirage.ir.terms import numpy_dtype, topological
from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.reductions import DOT, SUM_KIND
from taso_mirage.mugraph.stabilised import Stabilisation
from taso_mirage.rewriting.derived_traits import exponentiates, multiplies

NARROW = 2
"""Bytes of an element of a type that is narrower than fp32."""
NONE = 1e-30
"""The summand of a sum of exponentials: no effect in fp32, for with their maximum the sum is 1 or
more; where a mask leaves none of them, the mean is 0."""


def weights(closure: Closure, targets: Iterable[int], safe: Stabilisation, dtype: str) -> dict[int, int]:
    """The classes that a kernel hands over as means, each with the class that is the sum of its
    weights. In a model of half precision these are sums of exponentials times an input, relative to
    the maximum that the sum of weights is relative to."""
    if numpy_dtype(dtype).itemsize > NARROW:
        return {}
    classes = [t for t in targets if safe.degrees[t] and t in safe.stable and t not in safe.bare]
    alike = [(t, d) for t in classes for d in classes if safe.degrees[t] == safe.degrees[d]]
    return {t: d for t, d in alike if _is_mean(closure, t, d, dtype)}


def _is_mean(closure: Closure, total: int, weight: int, dtype: str) -> bool:
    sums = {(e.args[0], e.label) for e in closure.edges[weight] if e.kind is SUM_KIND and _exponential(closure, e.args)}
    dots = [(e.args, e.label) for e in closure.edges[total] if e.kind is DOT]
    return any(
        (of, label) in sums
        and any(e.kind.reads is not None and _multiplied(closure, e.kind.reads, dtype) for e in closure.edges[value])
        for args, label in dots
        for of, value in (args, args[::-1])
    )


def _exponential(closure: Closure, classes: Sequence[int]) -> bool:
    return all(any(e.kind.exponential for e in closure.edges[c]) for c in classes)


def _multiplied(closure: Closure, view: str, dtype: str) -> bool:
    """Whether the model multiplies exponentials with a view as it is, in its own float type.

    The mean of a difference (values less a zero) may be small beside the mean that it is made of.
    """
    goal = closure.goal
    views = {goal.views[each] for each, leaf in goal.leaves.items() if leaf is goal.leaves.get(view)}
    known = {each.node: each.sketch for each in goal.known}
    products = [each.node for each in goal.known if multiplies(each.node.op) and each.node.dtype == dtype]
    return any(
        known.get(value) in views and any(exponentiates(each.op) for each in topological([weight]) if each.args)
        for node in products
        for weight, value in (node.args[:2], node.args[1::-1])
    )
