"""Cases of a rule: an application separated from its model, with letters for the sizes that may
vary (docs/soundness.md).

A rule has too many typings to examine, but its proof depends on few facts. A *case* is a typing in
which everything is fixed except sizes: dtypes, ranks, which dims are 1, equal or free, attributes,
and the constants that the rule reads. Its proof covers every size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from taso_mirage.ir.dims import Dim, Symbolic, bind, symbol, symbols
from taso_mirage.ir.terms import ABSENT, LEAVES, Graph, Node, Tensor, topological, variable
from taso_mirage.operators.expressions import Expr, names_in_expression
from taso_mirage.prove.rules.lift import lift, rebound
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.index import Application
from taso_mirage.rewriting.text import show_graph


@dataclass(frozen=True, slots=True)
class Instance:
    """The two sides of one application, with leaves in place of the terms that its variables
    matched.

    Equal instances compare equal.
    """

    lhs: tuple[Node, ...]
    rhs: tuple[Node, ...]

    @property
    def leaves(self) -> tuple[Node, ...]:
        return tuple(n for n in topological((*self.lhs, *self.rhs)) if n.op in LEAVES)

    @property
    def letters(self) -> frozenset[str]:
        """The names of its sizes."""
        return frozenset(s for n in topological((*self.lhs, *self.rhs)) for d in _dims(n) for s in symbols(d))

    def __str__(self) -> str:
        leaves = self.leaves
        return "".join(show_graph(Graph(leaves, side), name) for name, side in (("lhs", self.lhs), ("rhs", self.rhs)))


@dataclass(frozen=True)
class ProofCase:
    """An instance whose letters stand for every size from 1 to the bound of `sizes`."""

    instance: Instance

    @cached_property
    def key(self) -> str:
        """The key under which verdicts are stored."""
        return hashlib.sha256(str(self.instance).encode()).hexdigest()[:32]


def instance_of(application: Application, concrete: bool = False) -> Instance:
    """An application over leaves.

    Constants whose values the rule reads are kept, with `concrete` all constants.
    """
    read = constants_read(application.equation)
    cut: dict[Node, Node] = {}
    for name, node in application.found.operands.items():
        if node.op != "constant" or not (concrete or name in read):
            cut.setdefault(node, variable(name, node.type if isinstance(node.type, Tensor) else None))
    return cut_free(application.found.outputs, application.results, cut)


def cut_free(lhs: Sequence[Node], rhs: Sequence[Node], cut: Mapping[Node, Node]) -> Instance:
    """The two sides with other terms for some of theirs; terms below these are not visited."""
    done = dict(cut)
    for node in topological((*lhs, *rhs), stop=cut):
        args = tuple([done[a] for a in node.args])
        done[node] = node if args == node.args else Node(node.op, args, node.attrs, node.type)
    return Instance(tuple([done[n] for n in lhs]), tuple([done[n] for n in rhs]))


@lru_cache(maxsize=1 << 14)
def constants_read(equation: Equation) -> frozenset[str]:
    """The variables whose values the guard or a computed attribute asks for."""
    sources = [
        v.source for side in (equation.lhs, equation.rhs) for n in side for _, v in n.attrs if isinstance(v, Expr)
    ]
    sources += [equation.where.source] if equation.where is not None else []
    asked = ("value(", "is_constant(")
    variables = {n.attr("name") for n in equation.lhs.inputs}
    return frozenset(n for s in sources if any(a in s for a in asked) for n in names_in_expression(s) & variables)


def cases_of(instance: Instance) -> Iterator[ProofCase]:
    """Cases that contain the instance, the more general ones first: sizes vary alone, equal sizes
    vary together."""
    seen: set[Instance] = set()
    for finest in (True, False):
        lifted = lift(instance.lhs, instance.rhs, finest=finest)
        if lifted is not None:
            renamed = lettered(Instance(*lifted))
            if renamed not in seen:
                seen.add(renamed)
                yield ProofCase(renamed)


def as_it_is(instance: Instance) -> ProofCase:
    """The case of these very sizes: letters are only where the model has them."""
    return ProofCase(lettered(instance))


def lettered(instance: Instance) -> Instance:
    """The instance with its letters renamed in the order in which they first occur."""
    order: dict[str, Dim] = {}
    for node in topological((*instance.lhs, *instance.rhs)):
        for dim in _dims(node):
            for name in _in_order(dim):
                order.setdefault(name, symbol(f"n{len(order)}"))
    return resized_instance(instance, order) if any(str(v) != k for k, v in order.items()) else instance


def resized_instance(instance: Instance, sizes: Mapping[str, Dim]) -> Instance:
    """The instance with other dims for its letters. Raises the errors of typing."""
    both = rebound((*instance.lhs, *instance.rhs), lambda dim: bind(dim, sizes))
    return Instance(both[: len(instance.lhs)], both[len(instance.lhs) :])


def dims_of_letters(case: Instance, instance: Instance) -> dict[str, Dim]:
    """The dims of an instance that the letters of its case represent."""
    found: dict[str, Dim] = {}
    here = {n.attr("name"): n for n in instance.leaves}
    for leaf in case.leaves:
        for letter, dim in zip(leaf.shape, here[leaf.attr("name")].shape, strict=True):
            _learn(letter, dim, found)
    there = zip(topological((*case.lhs, *case.rhs)), topological((*instance.lhs, *instance.rhs)), strict=False)
    for node, actual in there:
        for (_, value), (_, fixed) in zip(node.attrs, actual.attrs, strict=False):
            for letter, dim in zip(_parts(value), _parts(fixed), strict=False):
                _learn(letter, dim, found)
    return found


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _learn(letter: Any, dim: Any, found: dict[str, Dim]) -> None:
    """Solve for a letter, or for a multiple of one after the others in the dim are known."""
    left = bind(letter, found) if isinstance(letter, Symbolic) and isinstance(dim, int | Symbolic) else 0
    if isinstance(left, Symbolic) and len(left.terms) == 1:
        monomial, count = left.terms[0]
        unknown = [(atom, power) for atom, power in monomial if isinstance(atom, str) and power == 1]
        if len(unknown) == len(monomial) == 1:
            found.setdefault(str(unknown[0][0]), dim // count)


def _dims(node: Node) -> Iterable[Dim]:
    if node.op in LEAVES and isinstance(node.type, Tensor):
        yield from node.type.shape or ()
    for _, value in node.attrs:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Symbolic):
                yield part


def _in_order(dim: Dim) -> list[str]:
    """The names in a dim, as its terms have them."""
    if not isinstance(dim, Symbolic):
        return []
    found = [a for monomial, _ in dim.terms for a, _ in monomial if isinstance(a, str)]
    return [*found, *sorted(symbols(dim) - set(found))]


def unranked(instance: Instance) -> bool:
    """Whether some operand has no known rank: then nothing can be proved."""
    return any(not isinstance(n.type, Tensor) or n.type.shape is None for n in instance.leaves if n is not ABSENT)
