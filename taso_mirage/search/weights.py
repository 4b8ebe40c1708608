"""Weights: terms that depend on weights only are computed in advance, and facts about their values
are written into the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from taso_mirage.devices.machine import cores
from taso_mirage.ir.model import Model, StoredWeight, Weight
from taso_mirage.ir.terms import (
    ABSENT,
    Node,
    Tensor,
    is_computed,
    is_float,
    numpy_dtype,
    substitute,
    topological,
    weight,
)
from taso_mirage.meanings.reals import EXACT, REALS
from taso_mirage.operators.exactness import differs
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get, traits
from taso_mirage.operators.work import size
from taso_mirage.rewriting.derived_traits import moves
from taso_mirage.search.steps import FOLDING, RewriteStep

FOLDED_GROWTH = 1 << 16
"""The largest number of bytes by which a folded weight-only term may exceed its leaves (an Expand
stays an Expand)."""
FEW, MODERATE = 1 << 16, 4
"""The size from which only the largest number of a weight is looked at, and how many factors of a
usual size fit into the range of a dtype."""
LAST_DIGITS = 4
"""The largest error of a number in units of its dtype, for terms whose declared dtypes matter."""
HALVES = "equal halves of a weight"
"""The name of such a weight among the equations of a step."""
HALVED = 1 << 22
"""The largest number of bytes of a weight that is tested for equal halves; tables of angles are
small."""


def split_halves(model: Model, taken: Mapping[str, Any]) -> tuple[Model, list[RewriteStep]]:
    """Every small weight whose halves along its last axis are equal, as their concatenation: the
    tables of angles of a rotary embedding are exported so. The halves are equal bit by bit in this
    model, and the step records this."""
    weights, table = dict(model.weights), dict[Node, Node]()
    for node in model.nodes():
        if node.op != "weight" or not is_float(node.dtype) or node.tensor.rank < 3 or size(node.tensor) > HALVED:
            continue
        array = model.weights[node.attr("name")].numpy()
        half = array.shape[-1] // 2
        if half == 0 or array.shape[-1] % 2 or array[..., :half].tobytes() != array[..., half:].tobytes():
            continue
        name = _fresh_name(f"half_{node.attr('name')}", {**taken, **weights})
        weights[name] = StoredWeight(np.ascontiguousarray(array[..., :half]))
        part = weight(name, Tensor(node.dtype, (*node.shape[:-1], half)))
        table[node] = get("concat").term(part, part, axis=node.tensor.rank - 1)
    if not table:
        return model, []
    outputs = substitute(model.graph.outputs, table)
    kept = _names(outputs)
    halved = model.with_graph(outputs, {k: v for k, v in weights.items() if k in kept})
    return halved, [RewriteStep((HALVES,), tuple(table), tuple(table.values()))]


def fold_weights(
    model: Model, taken: Mapping[str, Any] | None = None, needed: bool = False
) -> tuple[Model, list[RewriteStep]]:
    """Compute every term that depends on weights only, in float64, and keep it as a weight of its
    own dtype. A term with a conversion that rounds to another number stays.

    `needed`: Compute only those that the runtime takes as initializers only.

    A term of the same weights that `taken` has computed already is that weight, so that equal
    graphs are one graph. Others get names that are neither in the model nor in `taken`.
    """
    targets = _foldable(model, needed)
    if not targets:
        return model, []
    weights, names, taken = dict(model.weights), dict(model.names), taken or {}
    known = _computed(targets, model.weights, taken)
    values = _values([t for t in targets if t not in known], model.weights)
    table: dict[Node, Node] = {}
    for target in [t for t in targets if t in known or t in values]:
        name = known.get(target) or _fresh_name(model.names.get(target, f"folded_{target.op}"), {**taken, **weights})
        weights[name] = taken[name] if target in known else StoredWeight(values[target], target)
        table[target] = weight(name, target.tensor)
        names[table[target]] = name
    steps = [RewriteStep((FOLDING,), tuple(table), tuple(table.values()))]
    outputs = substitute(model.graph.outputs, table)
    kept = _names(outputs)
    folded = model.with_graph(outputs, {k: v for k, v in weights.items() if k in kept})
    return replace(folded, names=names), steps


def _computed(targets: list[Node], weights: Mapping[str, Weight], taken: Mapping[str, Any]) -> dict[Node, str]:
    """The names of the terms that are weights of `taken`, computed from the given weights."""
    made = {each.of: name for name, each in taken.items() if isinstance(each, StoredWeight) and each.of is not None}
    found = {t: made[t] for t in targets if t in made and weights.get(made[t], taken[made[t]]) is taken[made[t]]}
    return {t: name for t, name in found.items() if all(taken.get(w) is weights[w] for w in _names([t]))}


def _values(targets: list[Node], weights: Mapping[str, Weight]) -> dict[Node, Any]:
    """The arrays of terms over weights, except terms with a conversion that rounds, and those with
    a finite element that is infinite in its dtype. Elements that only move keep their dtype on the
    way."""
    moved = [t for t in targets if all(moves(n.op) for n in topological([t]) if n.args)]
    kept = interpret(moved, REALS, {n: weights[n.attr("name")].numpy() for n in _leaves(moved)})
    with ThreadPoolExecutor(cores()) as threads:  # a copy in another order waits for memory
        copies = threads.map(np.ascontiguousarray, [kept[t] for t in moved])
        found = {t: copy.reshape([int(d) for d in t.shape]) for t, copy in zip(moved, copies, strict=True)}
    targets = [t for t in targets if t not in found]
    exact = interpret(targets, EXACT, {n: EXACT.load(weights[n.attr("name")].numpy()) for n in _leaves(targets)})
    for target in targets:
        if _converts_within(target) and not _as_declared(target, exact[target], weights):
            continue
        array = np.ascontiguousarray(np.broadcast_to(exact[target], exact[target].shape))
        with np.errstate(over="ignore"):
            rounded = array.astype(numpy_dtype(target.tensor.dtype))
        if is_float(target.tensor.dtype) and not np.array_equal(np.isfinite(rounded), np.isfinite(array)):
            continue  # the runtime may compute half precision in single, where it is finite
        found[target] = rounded.reshape([int(d) for d in target.shape])
    return found


def _leaves(nodes: Iterable[Node]) -> list[Node]:
    return [n for n in topological(nodes) if n.op == "weight"]


def _names(nodes: Iterable[Node]) -> set[str]:
    return {n.attr("name") for n in _leaves(nodes)}


def _converts_within(node: Node) -> bool:
    """Whether an intermediate value is converted, or the result is converted to integers."""
    return any(traits(n).converts and (n is not node or not is_float(node.dtype)) for n in topological([node]))


def _as_declared(node: Node, exact: Any, weights: Mapping[str, Weight]) -> bool:
    """Whether the result in the declared dtypes is that of float64, up to the last digits."""
    leaves = {n: weights[n.attr("name")].numpy() for n in _leaves([node])}
    declared, dtype = np.asarray(interpret([node], REALS, leaves)[node]), numpy_dtype(node.tensor.dtype)
    if not is_float(node.tensor.dtype):
        return np.array_equal(declared, exact)
    with np.errstate(all="ignore"):
        rounded = np.asarray(exact).astype(dtype).astype(np.float64)
    within = LAST_DIGITS * float(ml_dtypes.finfo(dtype).eps)
    return np.allclose(rounded, declared.astype(np.float64), within, 0, equal_nan=True)


def dtype_holds(node: Node, weights: Mapping[str, Weight]) -> bool:
    """Whether a term's dtype holds its values: every one of a vector rounds as normal numbers do,
    and of a tensor every slice along an axis (a channel of a kernel) does against its largest. In
    single and double precision the values may be subnormal where a weight is. False where a weight
    is not known."""
    leaves = [n for n in topological([node]) if n.op in ("weight", "constant")]
    if any(n.op == "weight" and n.attr("name") not in weights for n in leaves):
        return False
    dtype, limits = numpy_dtype(node.tensor.dtype), ml_dtypes.finfo(node.tensor.dtype)
    if dtype == np.float64 and not all(moderate(n, weights) for n in leaves):
        return False
    given = {n: EXACT.load(weights[n.attr("name")].numpy()) for n in leaves if n.op == "weight"}
    exact = np.asarray(interpret([node], EXACT, given)[node], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(dtype).astype(np.float64)
        error = np.abs(rounded - exact, out=np.zeros_like(exact), where=np.isfinite(exact))
    if not np.array_equal(np.isfinite(rounded), np.isfinite(exact)):
        return False
    rough = dtype.itemsize > 2 and any(_least(_numbers(n, weights)) < limits.smallest_normal for n in leaves)
    unit, least = float(limits.eps), float(limits.smallest_subnormal) if rough else 0.0
    slices = [tuple(j for j in range(exact.ndim) if j != i) for i in range(exact.ndim)]
    sizes = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    allowed = (unit * sizes.max(axis=s, initial=0) + least for s in slices or [()])
    return all((error.max(axis=s, initial=0) <= most).all() for s, most in zip(slices or [()], allowed, strict=True))


def moderate(node: Node, weights: Mapping[str, Weight]) -> bool:
    """Whether products of a few numbers of a weight, or of a constant, are normal numbers of its
    dtype; of a large one, whether those of its largest number are."""
    if not is_computed(node.tensor.dtype):
        return True
    sizes = np.abs(_numbers(node, weights))
    largest = float(sizes.max(initial=0, where=np.isfinite(sizes)))
    least = largest if sizes.size > FEW else _least(sizes)
    bound = 2.0 ** (ml_dtypes.finfo(node.tensor.dtype).maxexp // MODERATE)
    return largest < bound and (least > 1 / bound or largest == 0)


def _numbers(node: Node, weights: Mapping[str, Weight]) -> Any:
    """The numbers of a weight or a constant."""
    return weights[node.attr("name")].numpy() if node.op == "weight" else node.attr("value").numpy()


def _least(numbers: Any) -> float:
    """The smallest size of numbers that are not zero; infinity if there are none."""
    sizes = np.abs(numbers).astype(np.float64)
    return float(sizes.min(initial=np.inf, where=sizes > 0))


def _foldable(model: Model, needed: bool) -> list[Node]:
    """The largest weight-only terms below other terms whose folding does not enlarge the model too
    much.

    An operand of an operator with a kernel is folded at any size, because the search chose a kernel
    with zeros for other groups for its speed.
    """
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    for node in model.nodes():
        if is_weight(node) or (needed and not traits(node).initializer):
            continue
        for arg in node.args:
            if arg.args and arg is not ABSENT and is_weight(arg):
                found.update(dict.fromkeys([arg] if traits(node).kernel is not None else _worth_folding(arg, seen)))
    for output in model.graph.outputs:
        if output.args and is_weight(output) and not needed:
            found.update(dict.fromkeys(_worth_folding(output, seen)))
    return list(found)


def _worth_folding(node: Node, seen: set[Node]) -> list[Node]:
    """`node`, or, if it is larger than its operands, the terms below it that are not."""
    pending, kept = [node], []
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if not each.args or (not isinstance(each.type, Tensor) and each.op != "item"):
            pending += [a for a in each.args if a.args]
            continue
        below = topological([each])
        leaves = {n for n in below if n.op in ("weight", "constant")}
        fits = size(each.type) <= sum(size(n.type) for n in leaves) + FOLDED_GROWTH
        if fits and not any(differs(n) for n in below):
            kept.append(each)
        else:
            pending += [a for a in each.args if a.args]
    return kept


def _fresh_name(wanted: str, taken: Mapping[str, Any]) -> str:
    name, i = wanted, 1
    while name in taken:
        i += 1
        name = f"{wanted}_{i}"
    return name
