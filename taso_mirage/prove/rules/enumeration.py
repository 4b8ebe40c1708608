"""Enumeration of the kinds of typings that a rule's guard admits: classes of dims, ranks,
attributes, constants and dtypes around the stated typing, and every combination of small shapes
(docs/soundness.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, combinations, islice, permutations, product
from random import Random
from typing import Any

from taso_mirage.ir.terms import (
    Graph,
    Node,
    Tensor,
    topological,
)
from taso_mirage.prove.rules.edges import reads_sizes, stated_sizes
from taso_mirage.prove.rules.fuzz import ILLEGAL, Typing
from taso_mirage.prove.rules.hostile import INTEGER_DTYPES, OTHER_FLOATS, Names, RuleStatement, typed_leaf
from taso_mirage.prove.rules.universe import Universe, is_integers
from taso_mirage.rewriting.equation import instantiate

HIGHEST_RANK = 8
ALL_SHAPES = 1500
"""The largest number of combinations of small shapes that are all tried. If there are more, a
seeded sample is used."""
SHAPE_TRIES = 4000
"""The total number of operands that are given a small shape."""
SOME_VALUES = 16
"""The number of values of one attribute that are combined with small shapes."""
SUBSETS = 63
"""The number of sets of operands that broadcast alike."""
PAIRS = 8
"""The number of forms of one operand that are combined with those of another."""
ATTEMPTS = 10
"""The number of shapes of one operand that are tried beside those of the others."""


def enumerated(statement: RuleStatement, seed: int = 0) -> Iterator[Typing]:
    """Distinct typings, taken from the classes in turn, so that a prefix contains some of each
    class."""
    universe = Universe(statement, seed)
    if not universe.given:
        return
    classes: list[Iterator[Names]] = [each(universe) for each in CLASSES]
    seen: set[tuple[Node, ...]] = set()
    for names in _in_turns(classes):
        typing = universe.typed(names) if names else None
        if typing is not None and (*typing.lhs, *typing.rhs) not in seen:
            seen.add((*typing.lhs, *typing.rhs))
            yield typing


def typing_structure(statement: RuleStatement, typing: Typing) -> tuple[Any, ...]:
    """A key that is equal for typings of one case, computed without a proof: sizes that the rule
    does not read are interchangeable."""
    literal = reads_sizes(statement.equation)
    told = {0, 1, *stated_sizes(statement.equation)}
    order: dict[int, int] = {}
    found: list[Any] = []
    for name, value in sorted(typing.names.items()):
        if not isinstance(value, Node):
            found.append((name, value))
        elif not isinstance(value.type, Tensor):
            found.append((name, value.op))
        else:
            dims = tuple(d if literal or d in told else -1 - order.setdefault(int(d), len(order)) for d in value.shape)
            found.append((name, value.dtype, dims, value if value.op == "constant" else value.op))
    return (typing.lhs if not found else None, *found)


def _in_turns(streams: Sequence[Iterator[Names]]) -> Iterator[Names]:
    left = list(streams)
    while left:
        for stream in list(left):
            try:
                yield next(stream)
            except StopIteration:
                left.remove(stream)


# ---------------------------------------------------------------- dims


def _dims(universe: Universe) -> Iterator[Names]:
    """Every dim 1, equal to another, to a number of the rule, to a multiple or a sum of others, and
    one more or less."""
    for sizes in _sizes(universe):
        try:
            yield universe.at(sizes)
        except ILLEGAL:
            continue


def _sizes(universe: Universe) -> Iterator[dict[Any, int]]:
    stated = dict(universe.stated)
    keys = list(stated)
    yield stated
    for size in (2, 1, 3):
        yield dict.fromkeys(keys, size)
    ones = dict.fromkeys(keys, 1)
    told = sorted({s + d for s in universe.sizes for d in (0, 1, -1) if s + d > 0})
    for key in keys:
        for size in (1, *told, *(2 * s for s in universe.sizes), *(stated[k] + 1 for k in keys)):
            yield {**stated, key: size}
            yield {**ones, key: size}
    for some in chain(combinations(keys, 2), combinations(keys, 3)):
        for size in (2, 1, *universe.sizes):
            yield {**stated, **dict.fromkeys(some, size)}
    for one, other in permutations(keys, 2):
        yield {**stated, one: stated[other]}
        yield from ({**stated, one: stated[other], third: 1} for third in keys if third not in (one, other))
        yield from ({**stated, one: stated[other] + more} for more in dict.fromkeys((1, *universe.sizes)))
        yield from ({**ones, other: 2, one: 2 + more} for more in universe.sizes)
        for factor in dict.fromkeys((2, 3, *universe.sizes)):
            yield {**stated, one: factor * stated[other]}
            yield {**ones, other: 2, one: 2 * factor}
    for one, other, third in permutations(keys, 3):
        for more in dict.fromkeys((0, 1, *universe.sizes)):
            yield {**stated, one: stated[other] + stated[third] + more}


# ---------------------------------------------------------------- ranks


def _ranks(universe: Universe) -> Iterator[Names]:
    """Dims in front of all operands, of each and of two of them, up to `HIGHEST_RANK`; then fewer
    dims, with the last ones kept or 1."""
    operands = [n for n, _, _ in universe.given]
    for base, count in product((universe.first, universe.level), range(1, HIGHEST_RANK)):
        ones = (1,) * (count - 1)
        for lead in dict.fromkeys(((*ones, 1), (*ones, 2), (2, *ones), (2,) * count)):
            for chosen in chain([operands], combinations(operands, 1), combinations(operands, 2)):
                changed = _reshaped(base, chosen, partial(_led, lead=lead))
                if any(len(changed[n].shape) > HIGHEST_RANK for n in operands):
                    continue
                yield changed
                yield from _follow_rank(changed, count)
    for base, count in product((universe.first, universe.level), range(1, 4)):
        for chosen in chain([operands], *(combinations(operands, k) for k in (1, 2, 3))):
            for cut in (partial(_cut, count=count), partial(_ones, count=count)):
                changed = _reshaped(base, chosen, cut)
                yield changed
                yield from _follow_rank(changed, -count)


def _cut(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return shape[count:]


def _ones(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (1,) * len(shape[count:])


def _led(shape: tuple[int, ...], lead: tuple[int, ...]) -> tuple[int, ...]:
    return (*lead, *shape)


def _reshaped(names: Names, chosen: Iterable[str], how: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Names:
    return {**names, **{n: typed_leaf(names[n], names[n].dtype, how(tuple(names[n].shape))) for n in chosen}}


def _follow_rank(names: Names, count: int) -> Iterator[Names]:
    """Attributes that count axes, for operands of more dims."""
    last = (
        max((len(v.shape) for v in names.values() if isinstance(v, Node) and isinstance(v.type, Tensor)), default=1) - 1
    )
    for name, value in names.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            for axis in dict.fromkeys((value + count, last, -1, 0, count, -count)):
                yield {**names, name: axis}
        elif is_integers(value) and len(value) + count >= 1:
            for other in _of_length(value, len(value) + count):
                yield {**names, name: other}


def _of_length(value: tuple[int, ...], length: int) -> Iterator[tuple[int, ...]]:
    more = length - len(value)
    if sorted(value) == list(range(len(value))):
        axes = tuple(range(length))
        yield from dict.fromkeys((axes, axes[::-1], (*axes[1:], *axes[:1]), (*axes[:-2], *axes[-2:][::-1])))
        return
    yield tuple(v + more for v in value)
    for fill in (1, 0, 2):
        yield (*(fill,) * more, *value[max(-more, 0) :])


# ---------------------------------------------------------------- broadcasting


def _broadcasts(universe: Universe) -> Iterator[Names]:
    """Each operand, and two of them, with 1 in the place of some dims, and with fewer dims."""
    forms = {n: _narrower(len(dims)) for n, _, dims in universe.given}
    some = [chosen for count in range(1, len(forms) + 1) for chosen in combinations(forms, count)][:SUBSETS]
    for how, chosen in product(THIN, some):
        yield _reshaped(universe.level, chosen, how)
    for base in (universe.first, universe.level):
        for name, own in forms.items():
            yield from (_reshaped(base, (name,), how) for how in own)
    for one, other in combinations(forms, 2):
        for how, also in product(forms[one][:PAIRS], forms[other][:PAIRS]):
            yield _reshaped(_reshaped(universe.level, (one,), how), (other,), also)


THIN: tuple[Callable[[tuple[int, ...]], tuple[int, ...]], ...] = (
    lambda shape: (1,) * min(len(shape), 1),
    lambda shape: shape[-1:],
    lambda shape: (1, *shape[1:]) if shape else (),
    lambda shape: (*shape[:-1], 1) if shape else (),
    lambda shape: (),
)
"""Shapes that broadcast: a vector of one, of the last dim, first and last dims of 1, a scalar."""


def _narrower(rank: int) -> list[Callable[[tuple[int, ...]], tuple[int, ...]]]:
    found: list[Callable[[tuple[int, ...]], tuple[int, ...]]] = []
    for cut in range(rank + 1):
        for kept in product((False, True), repeat=min(rank - cut, 4)):
            if cut or not all(kept):
                found.append(partial(_kept, cut=cut, kept=kept))
    return found


def _kept(shape: tuple[int, ...], cut: int, kept: tuple[bool, ...]) -> tuple[int, ...]:
    last = shape[cut:]
    head, tail = last[: len(last) - len(kept)], last[len(last) - len(kept) :]
    return (*head, *(n if keep else 1 for n, keep in zip(tail, kept, strict=True)))


# ---------------------------------------------------------------- attributes and constants


def _attributes(universe: Universe) -> Iterator[Names]:
    """Each attribute and constant at every number that may matter, then two of them at once; where
    sizes differ, and where they are alike."""
    for base in (universe.level, universe.first):
        choices = {n: list(universe.values(n, v)) for n, v in base.items()}
        for name, values in choices.items():
            yield from ({**base, name: value} for value in values)
    for one, other in combinations([n for n, values in choices.items() if values], 2):
        pairs = product(choices[one][:24], choices[other][:24])
        yield from ({**base, one: a, other: b} for a, b in pairs)


# ---------------------------------------------------------------- dtypes, and operands that are one


def _dtypes(universe: Universe) -> Iterator[Names]:
    """Each other dtype in the place of one."""
    for base, old in product((universe.first, universe.level), sorted({dtype for _, dtype, _ in universe.given})):
        for new in (*OTHER_FLOATS, "float32", *INTEGER_DTYPES, "bool"):
            yield {
                **base,
                **{n: typed_leaf(base[n], new, base[n].shape) for n, dtype, _ in universe.given if dtype == old},
            }


def _alike(universe: Universe) -> Iterator[Names]:
    """Two operands that are one term."""
    for base in (universe.level, universe.first):
        for one, other in permutations([n for n, _, _ in universe.given], 2):
            yield {**base, one: base[other]}


# ---------------------------------------------------------------- small shapes


def _shapes(universe: Universe) -> Iterator[Names]:
    """Every combination of small shapes under which the terms have types, at the stated attributes
    and at others."""
    search = _SmallShapes(universe)
    streams = [search.under(attributes) for attributes in _few_attributes(universe)]
    yield from _in_turns(streams)


def _few_attributes(universe: Universe) -> Iterator[Names]:
    base = {n: v for n, v in universe.level.items() if not isinstance(v, Node)}
    yield base
    for name, value in base.items():
        yield from ({**base, name: v} for v in islice(universe.values(name, value), SOME_VALUES))


class _SmallShapes:
    """Shapes for one operand after the other; where a term whose operands are chosen already has no
    type, the next shape is tried."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self.rng = Random(universe.seed)
        self.tries = SHAPE_TRIES
        names = [n for n, _, _ in universe.given]
        equation = universe.statement.equation
        done: set[Node] = set()
        self.ready: list[Graph] = []
        """The graphs whose operands are known at each step."""
        for count in range(1, len(names) + 1):
            known = set(names[:count])
            terms = [n for side in (equation.lhs, equation.rhs) for n in topological(side.outputs)]
            new = [n for n in terms if n.args and n not in done and _variables(n) <= known]
            done |= set(new)
            inner = {a for n in new for a in n.args}
            self.ready.append(Graph((), tuple(n for n in new if n not in inner)))

    def under(self, attributes: Names) -> Iterator[Names]:
        if self.universe.combinations <= ALL_SHAPES:
            yield from self._all(dict(attributes), 0)
            return
        while self.tries > 0:
            names = self._some(dict(attributes))
            yield names if names is not None else {}

    def _all(self, names: Names, i: int) -> Iterator[Names]:
        if i == len(self.universe.given):
            yield names
            return
        for shape in self.universe.domains[i]:
            more = self._with(names, i, shape)
            if more is not None:
                yield from self._all(more, i + 1)

    def _some(self, names: Names) -> Names | None:
        found: Names | None = names
        for i, domain in enumerate(self.universe.domains):
            tried = (self._with(found or {}, i, self.rng.choice(domain)) for _ in range(ATTEMPTS))
            found = next((each for each in tried if each is not None), None)
            if found is None:
                return None
        return found

    def _with(self, names: Names, i: int, shape: tuple[int, ...]) -> Names | None:
        self.tries -= 1
        if self.tries < 0:
            return None
        name, dtype, _ = self.universe.given[i]
        more = {**names, name: self.universe.leaf(name, dtype, shape)}
        try:
            instantiate(self.ready[i], more, dtype)
        except ILLEGAL:
            return None
        return more


def _variables(node: Node) -> set[str]:
    return {n.attr("name") for n in topological([node]) if n.op == "input"}


CLASSES: tuple[Callable[[Universe], Iterator[Names]], ...] = (
    *(_dims, _attributes, _shapes, _broadcasts, _ranks, _dtypes, _alike),
)
