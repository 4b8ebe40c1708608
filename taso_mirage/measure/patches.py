"""Where an optimized model differs from its original: pairs of small graphs over values that both
models compute.

Rewrites claim that a term of the optimized model has the value of a term of the original. A claim
follows where both are the same operator over operands that are claimed to be equal. Every other
claim is a *patch*: the terms that compute both terms, down to values that are claimed to be equal.
So the optimized model is right if all its patches are, by induction from the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import (
    ABSENT,
    Node,
    Tensor,
    is_array,
    is_part,
    topological,
    users,
    variable,
    weight,
    with_args,
)
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term, traits

NEAR = 64
"""The largest number of terms of the original that are followed down to values that the optimized
side reads; beyond that any common value is a leaf."""
Claims = Mapping[Node, Node]
"""For each term of the original, the term that is claimed to have the same value."""


@dataclass(frozen=True, slots=True)
class Patch:
    """The terms `before` and those that are claimed to be equal, `after`, over leaves.

    Of each leaf that is no weight `values` has the term of the original; `terms` are those of the
    original that `before` stands for.
    """

    before: tuple[Node, ...]
    after: tuple[Node, ...]
    values: Mapping[Node, Node]
    terms: tuple[Node, ...]

    def key(
        self, made: Mapping[Node, Node], uniform: Callable[[Node], float | None] = lambda node: None
    ) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """A key that is equal for patches that differ only in the names of the original's weights,
        as for equal layers. `made`: the terms over weights from which new weights were computed.
        `uniform`: the number that all elements of a weight equal; it is part of the key, because a
        bias of zeros may be left out, but another bias may not."""
        return _renamed((*self.before, *self.after), made, len(self.before), uniform)


def patches(outputs: Sequence[Node], results: Sequence[Node], claims: Claims) -> list[Patch]:
    """All patches between a model's outputs and the results in their places, in the order of the
    original; those that share a computation are one."""
    return list(_Patching(outputs, results, claims).found())


class _Patching:
    def __init__(self, outputs: Sequence[Node], results: Sequence[Node], claims: Claims) -> None:
        alive = set(topological(results))
        self.order = [n for n in topological(outputs) if not is_weight(n)]
        known = {n: n if n in alive else claims.get(n, n) for n in self.order}
        self.claims = known | dict(zip(outputs, results, strict=True))
        self.outputs, self.users = set(outputs), users(self.order)
        self.alive = {n: self.claims[n] for n in self.order if self.claims[n] in alive}
        self.sources: dict[Node, Node] = {}
        """For each value of the optimized model that is a leaf there, the original's term."""
        for old, new in self.alive.items():
            if _observable(old) and not is_weight(new):
                self.sources.setdefault(new, old)
        self.turned: dict[Node, tuple[int, ...]] = {}
        """The order of the axes of those whose transpose is the original's term."""
        for old, new in self.claims.items():
            if new not in alive and _is_turned(new) and new.args[0] in alive and new.args[0] not in self.sources:
                self.alive[old], self.sources[new.args[0]] = new, old
                self.turned[new.args[0]] = tuple(sorted(range(len(old.shape)), key=new.attr("perm").__getitem__))
        self.alive = {n: self.alive[n] for n in self.order if n in self.alive}
        self.followed: dict[Node, bool] = {}

    def found(self) -> Iterator[Patch]:
        roots = [n for n in self.order if n in self.alive and not self._follows(n)]
        groups: list[tuple[list[Node], set[Node]]] = []
        for root in (n for n in roots if isinstance(n.type, Tensor)):
            inner = self._inside(self.claims[root])
            shared = [each for each in groups if not each[1].isdisjoint(inner)]
            together = [n for each in shared for n in each[0]] + [root]
            inside = inner.union(*(each[1] for each in shared))
            if shared and not self._read(inside).intersection(self.claims[n] for n in together):
                groups = [each for each in groups if each not in shared]
                groups.append((together, inside))
            else:
                groups.append(([root], inner))
        for terms, inside in groups:
            behind = [n for n in map(self._behind, terms) if n is not None]
            whole = inside.union(self.claims[n] for n in behind)
            read = self._read(whole) | ({self.claims[n] for n in terms} if not inside else set())
            yield self._patch(tuple(dict.fromkeys([*terms, *behind])), read)

    def _behind(self, old: Node) -> Node | None:
        """The only term that reads a value, if that term reads no weights. Scores beside a mask are
        small numbers beside large ones, but their softmax is not."""
        read = self.users.get(old, [])
        if len(read) != 1 or old in self.outputs or read[0] not in self.alive or not _observable(read[0]):
            return None
        small = not any(is_weight(a) for a in read[0].args)
        return read[0] if small and self.claims[read[0]].args and self._follows(read[0]) else None

    def _follows(self, old: Node) -> bool:
        """Whether a claim follows from those about operands."""
        if old not in self.followed:
            new = self.claims[old]
            args = tuple([a if is_weight(a) else self.claims[a] for a in old.args])
            several = [a for a in old.args if isinstance(a.type, tuple)]
            same = new is old or (bool(old.args) and with_args(old, args) is new)
            self.followed[old] = new is old or (same and all(self._follows(a) for a in several))
        return self.followed[old]

    def _inside(self, new: Node) -> set[Node]:
        """The terms that compute a term of the optimized model, above common values."""
        if new in self.sources and not new.args:
            return set()
        own = (new, *new.args) if _is_turned(new) else (new,)
        return {n for n in topological([new], stop=_But(self.sources, *own)) if not is_weight(n)}

    def _read(self, inside: Collection[Node]) -> set[Node]:
        """The common values that some terms read."""
        return {a for n in inside for a in n.args if a in self.sources and a not in inside} | {
            n for n in inside if n.op == "input"
        }

    def _patch(self, terms: tuple[Node, ...], read: set[Node]) -> Patch:
        new = tuple(self.claims[n] for n in terms)
        wanted = {self.sources[n] for n in read if n in self.sources}
        below = topological(terms, stop=_But(wanted, *terms))
        if len(below) > NEAR or any(n.op == "input" and n not in wanted for n in below):
            below = topological(terms, stop=_But({n for n in self.alive if _observable(n)}, *terms))
        inner = set(below)
        leaves = [a for n in below for a in n.args if a not in inner and not is_weight(a)]
        cut: dict[Node, Node] = {}
        values: dict[Node, Node] = {}
        for old in dict.fromkeys([*leaves, *(n for n in below if n.op == "input"), *map(self.sources.get, read)]):
            if old is not None and old not in values.values() and old not in (inner if old.op != "input" else ()):
                leaf = variable(f"x{len(values) + 1}", old.tensor)
                values[leaf] = old
                cut[old] = leaf
        inverse = {old: leaf for leaf, old in values.items()}
        before = over_leaves(terms, inverse)
        given = {n: inverse[self.sources[n]] for n in read if self.sources.get(n) in inverse}
        given = {n: term("transpose", x, perm=self.turned[n]) if n in self.turned else x for n, x in given.items()}
        after = over_leaves(new, given)
        return Patch(before, after, values, terms)


def _is_turned(node: Node) -> bool:
    """Whether a term is an operator with weights in another order of its axes, as a convolution
    with channels last is: the order may be nowhere in the model, because the next operators keep
    it."""
    return traits(node).lowering is Lowering.TRANSPOSE and any(is_weight(x) for x in node.args[0].args)


class _But:
    """Terms without some of them."""

    def __init__(self, terms: Container[Node], *without: Node) -> None:
        self.terms, self.without = terms, without

    def __contains__(self, node: object) -> bool:
        return node in self.terms and node not in self.without

    def __bool__(self) -> bool:
        return True


def _observable(node: Node) -> bool:
    """Whether a run can give a term's value."""
    return (
        node is not ABSENT
        and isinstance(node.type, Tensor)
        and node.type.shape is not None
        and is_array(node.type)
        and not is_weight(node)
        and node.op not in ("extents", "constant")
        and not (is_part(node) and node.args[0].op == "opaque" and node.type.dtype == "")
    )


def over_leaves(terms: Sequence[Node], leaves: Mapping[Node, Node]) -> tuple[Node, ...]:
    """Terms with others in the place of leaves."""
    done = dict(leaves)
    for node in topological(terms, stop=leaves):
        done[node] = with_args(node, tuple([done[a] for a in node.args]))
    return tuple([done[n] for n in terms])


def _renamed(
    terms: Sequence[Node], made: Mapping[Node, Node], first: int, uniform: Callable[[Node], float | None]
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Terms with weights named in the order in which they are met, uniform ones also by their
    number, and new ones as the terms that they were computed from."""
    done: dict[Node, Node] = {}
    names: dict[Node, Node] = {}
    waiting = list(reversed(terms))
    while waiting:
        node = waiting[-1]
        below = (made[node],) if node in made else node.args
        if missing := [a for a in below if a not in done]:
            waiting += reversed(missing)
            continue
        waiting.pop()
        if node in made:
            done[node] = done[made[node]]
        elif node.op == "weight":
            number = uniform(node)
            name = f"w{len(names) + 1}" + ("" if number is None else f" = {number!r}")
            done[node] = names.setdefault(node, weight(name, node.tensor))
        else:
            done[node] = with_args(node, tuple([done[a] for a in node.args]))
    found = tuple([done[n] for n in terms])
    return found[:first], found[first:]
