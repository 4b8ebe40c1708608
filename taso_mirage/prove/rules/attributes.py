"""Random values for the attributes of a rule's terms, legal for the operands that were drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from taso_mirage.errors import IllTyped
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.operators.expressions import Expr
from taso_mirage.operators.ops import Op, get
from taso_mirage.rewriting.patterns import REST

REGROUPED = "regrouped"
"""The domain of a shape of as many elements as the operand has."""


@dataclass(frozen=True, slots=True)
class AttributeSite:
    """Where an attribute is drawn: its operator, the operands' shapes, the known values of the
    other attributes, and its given value."""

    op: Op
    shapes: tuple[tuple[int, ...], ...]
    known: Mapping[str, Any]
    given: Any
    rng: Random

    @property
    def rank(self) -> int:
        return len(self.shapes[0])


def draw_attributes(
    node: Node, operands: Sequence[Node], names: dict[str, Any], given: Mapping[str, Any], rng: Random
) -> None:
    """Values for the names of one pattern term's attributes, into `names`; `given` has those at the
    given typing."""
    op = get(node.op)
    shapes = tuple(tuple(int(n) for n in o.shape) if isinstance(o.type, Tensor) else () for o in operands)
    known: dict[str, Any] = {k: v(names) if isinstance(v, Expr) and v.name is None else v for k, v in node.attrs}
    known = {k: names.get(v.source, v) if isinstance(v, Expr) else v for k, v in known.items()}
    rest = known.pop(REST, None)
    if isinstance(rest, Expr):
        at_given = dict(given.get(rest.source, ()))
        values: dict[str, Any] = {}
        for key in sorted(op.attributes.keys() - known.keys(), key=_order):
            values[key] = known[key] = _drawn(AttributeSite(op, shapes, known, at_given.get(key), rng), key)
        names[rest.source] = tuple(sorted(values.items()))
    for key in sorted((k for k, v in known.items() if isinstance(v, Expr)), key=_order):
        name = known[key].source
        names[name] = known[key] = _drawn(AttributeSite(op, shapes, known, given.get(name), rng), key)


def _order(key: str) -> tuple[bool, str]:
    """Axes and starts first: the others depend on them."""
    return key not in ("axes", "axis", "kernel", "starts", "strides"), key


def _drawn(site: AttributeSite, key: str) -> Any:
    domain = site.op.traits.domains.get(key, key)
    how = domain if callable(domain) else DRAWN.get(domain)
    return how(site) if how else _from_examples(site, key)


def _from_examples(site: AttributeSite, key: str) -> Any:
    choices = examples_of(site.op.name, key)
    if site.given is not None and (not choices or site.rng.random() < 0.5):
        return site.given
    return site.rng.choice(choices)


@cache
def examples_of(name: str, key: str) -> tuple[Any, ...]:
    """The values of an attribute in the examples of an operator, and usual numbers."""
    op = get(name)
    found = dict.fromkeys(op.normalise(dict(e.attrs))[key] for e in op.examples)
    kind, _ = op.attributes[key]
    return tuple(dict.fromkeys([*found, 0.5, 2.0, 1e-3])) if kind is float else tuple(found)


def _axis(site: AttributeSite) -> int:
    rank = max(site.rank, 1)
    if isinstance(site.given, int) and site.given < rank and site.rng.random() < 0.3:
        return site.given
    return site.rng.randrange(rank)


def _any_axis(site: AttributeSite) -> int:
    """An axis that may count from the end."""
    axis = _axis(site)
    return axis - site.rank if site.rng.random() < 0.2 else axis


def _axes(site: AttributeSite) -> tuple[int, ...]:
    given = site.given or ()
    if given and max(given) < site.rank and site.rng.random() < 0.3:
        return tuple(given)
    count = len(given) if given and site.rng.random() < 0.5 else site.rng.randint(1, 3)
    return tuple(sorted(site.rng.sample(range(site.rank), min(count, site.rank))))


def _perm(site: AttributeSite) -> tuple[int, ...]:
    if site.given is not None and len(site.given) == site.rank and site.rng.random() < 0.4:
        return tuple(site.given)
    return tuple(site.rng.sample(range(site.rank), site.rank))


def _per_axis(low: int, high: int, times: int = 1, change: float = 0.25) -> Callable[[AttributeSite], tuple[int, ...]]:
    """A number for every spatial axis (`times` of them), most of them as given."""

    def draw(site: AttributeSite) -> tuple[int, ...]:
        spatial = site.rank - 2
        given = tuple(site.given or (max(low, 0),) * (spatial * times))
        each = len(given) // times
        kept = [given[t * each + min(i, each - 1)] for t in range(times) for i in range(spatial) if each]
        kind = site.rng.random()
        if kind < 0.4:
            return tuple(kept)
        if kind < 0.7:  # equal on all axes, because a rule may be wrong only for a stride of 3 with a dilation of 2
            return (site.rng.randint(low, high),) * len(kept)
        return tuple(site.rng.randint(low, high) if site.rng.random() < change * 2 else n for n in kept)

    return draw


def _group(site: AttributeSite) -> int:
    """The number of groups that the shapes of data and kernel imply."""
    if len(site.shapes) < 2 or min(len(s) for s in site.shapes[:2]) < 2:
        return 1
    groups, rest = divmod(site.shapes[0][1], max(site.shapes[1][1], 1))
    return max(groups, 1) if rest == 0 else 1


def _pads(site: AttributeSite) -> tuple[int, ...]:
    count = 2 * site.rank
    if site.given is not None and len(site.given) == count and site.rng.random() < 0.4:
        return tuple(site.given)
    low = -1 if site.rng.random() < 0.2 else 0
    return tuple(site.rng.randint(low, 2) if site.rng.random() < 0.5 else 0 for _ in range(count))


def _parts(site: AttributeSite) -> tuple[int, ...]:
    """The parts of an axis, sometimes more than given, because a rule for two of three parts may be
    wrong."""
    count = len(site.given) if site.given and site.rng.random() < 0.7 else site.rng.randint(2, 4)
    total = site.shapes[0][site.known["axis"]]
    if site.given and sum(site.given) == total and site.rng.random() < 0.5:
        return tuple(site.given)
    if total < count:
        raise IllTyped(f"{count} parts of {total}")
    cuts = sorted(site.rng.sample(range(1, total), count - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def _shape(site: AttributeSite) -> tuple[int, ...]:
    have = site.shapes[0]
    if site.given is not None and dim_product(site.given) == dim_product(have) and site.rng.random() < 0.6:
        return tuple(site.given)
    splits = [(i, f) for i, n in enumerate(have) for f in range(1, n + 1) if n % f == 0]
    if splits and site.rng.random() < 0.5:
        i, factor = site.rng.choice(splits)
        return (*have[:i], factor, have[i] // factor, *have[i + 1 :])
    i = site.rng.randrange(max(len(have) - 1, 1))
    return (*have[:i], have[i] * have[i + 1], *have[i + 2 :]) if i + 1 < len(have) else have


def _wider(site: AttributeSite) -> tuple[int, ...]:
    """A shape to which the operand broadcasts."""
    have = site.shapes[0]
    given = site.given or ()
    fits = len(given) >= len(have) and all(n in (1, m) for n, m in zip(have[::-1], given[::-1], strict=False))
    if fits and site.rng.random() < 0.6:
        return tuple(given)
    grown = tuple(site.rng.randint(1, 3) if n == 1 else n for n in have)
    return (site.rng.randint(1, 3), *grown) if site.rng.random() < 0.4 else grown


def _bounds(site: AttributeSite, key: str) -> tuple[int, ...]:
    """A range within each of `axes`; the two ends are drawn separately, `ends` after `starts`."""
    axes = site.known["axes"]
    sizes = [site.shapes[0][a] for a in axes]
    given = site.given
    if given is not None and len(given) == len(axes) and site.rng.random() < 0.4:
        return tuple(min(g, n) for g, n in zip(given, sizes, strict=True))
    starts = site.known.get("starts") if key == "ends" else None
    lows = starts if isinstance(starts, tuple) and len(starts) == len(axes) else (0,) * len(axes)
    return tuple(site.rng.randint(min(low + 1, n), n) for low, n in zip(lows, sizes, strict=True))


def _binary(site: AttributeSite) -> int:
    return site.rng.randint(0, 1)


DRAWN: dict[str, Callable[[AttributeSite], Any]] = {
    "axis": _axis,
    "any axis": _any_axis,
    "axes": _axes,
    "perm": _perm,
    "strides": _per_axis(1, 3),
    "dilations": _per_axis(1, 3),
    "kernel": _per_axis(1, 4),
    "extra": _per_axis(0, 1, change=0.1),
    "pads": _per_axis(0, 2, times=2),
    "margins": _pads,
    "group": _group,
    "split": _parts,
    REGROUPED: _shape,
    "wider": _wider,
    "starts": lambda site: tuple(b - 1 if site.rng.random() < 0.5 and b > 1 else 0 for b in _bounds(site, "starts")),
    "ends": lambda site: _bounds(site, "ends"),
    "steps": lambda site: tuple(site.rng.choice((1, 1, 2)) for _ in site.known["axes"]),
    "keepdims": _binary,
    "count_include_pad": _binary,
    "transA": _binary,
    "transB": _binary,
}
"""How an attribute is drawn, by the domain that its operator states (`Traits.domains`), else by its
name. Others come from the operator's examples."""
