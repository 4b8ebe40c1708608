"""Many equations at the places where they match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from taso_mirage.ir.terms import Node, topological, with_args
from taso_mirage.rewriting.equation import Equation, Match, apply_equation, matches, resembles
from taso_mirage.rewriting.match_keys import MATCHED_LEVELS, MatchKey, canonical_terms, depth, match_key, upper
from taso_mirage.verdicts import Failure


@dataclass(frozen=True, slots=True)
class Application:
    """An equation at one place: its match, and the terms to put there."""

    equation: Equation
    found: Match
    results: tuple[Node, ...]


Keep: TypeAlias = Callable[[Application], bool]
"""Whether an application is wanted, or proved.

It may read the terms that `outline.surroundings` describes, and nothing else.
"""


class Rules:
    """Equations, tried where they can match: by the operator at their first output, then by the
    surroundings of a term.

    Equal surroundings are matched once, and the applications are used for every term with these
    surroundings. Deeper equations are tried on the term itself if their upper part matches. `keep`
    excludes applications permanently.
    """

    def __init__(self, equations: Iterable[Equation], keep: Keep | None = None) -> None:
        self.equations = tuple(equations)
        self.keep = keep
        self.trials = 0
        """How often a pattern was matched, at surroundings or at a term."""
        self.settled: set[Node] = set()
        """Terms to which neither an equation of one output nor a folding applies."""
        self._at: dict[str, list[tuple[Equation, frozenset[str]]]] = {}
        for equation in self.equations:
            self._at.setdefault(equation.roots[0], []).append((equation, equation.needs))
        self._near: dict[MatchKey, _Near] = {}
        self._known: dict[Node, tuple[Application, ...]] = {}
        self._joint: dict[Node, tuple[Equation, ...]] = {}
        self._made: dict[MatchKey, Application | None] = {}

    @property
    def matched(self) -> tuple[int, int]:
        """The number of requested terms, and the number of different surroundings that were matched
        for them."""
        return len(self._joint), len(self._near)

    def applications(self, node: Node) -> tuple[Application, ...]:
        """Every application of a one-output equation at `node` that gives another term than those
        of the equations before.

        It depends on the term alone, so it is found once a term.
        """
        known = self._known.get(node)
        if known is None:
            near, terms = self._surroundings(node)
            found: dict[tuple[Node, ...], Application] = {}
            real = dict(zip(near.terms, terms, strict=True)) if near.single else {}
            for each in near.single:
                for application in self._found(each, node) if isinstance(each, Equation) else (each.placed(real),):
                    if application.results[0] is not node:
                        found.setdefault(application.results, application)
            known = self._known[node] = tuple(found.values())
        return known

    def joint_applications(self, node: Node, users: Mapping[Node, list[Node]]) -> Iterator[Application]:
        """Applications of equations with several outputs, `node` being the first; they depend on
        the graph around."""
        if node not in self._joint:
            self._surroundings(node)
        for equation in self._joint[node]:
            for application in self._found(equation, node, users):
                if application.results != application.found.outputs:
                    yield application

    def _found(
        self, equation: Equation, node: Node, users: Mapping[Node, list[Node]] | None = None
    ) -> Iterator[Application]:
        self.trials += 1
        for found in matches(equation, node, users):
            key = (id(equation), found.outputs, *found.operands.values(), *found.attributes.values())
            if key not in self._made:  # of several outputs: matched in every graph around them, applied once
                self._made[key] = self._applied(equation, found)
            application = self._made[key]
            if application is not None:
                yield application

    def _applied(self, equation: Equation, found: Match) -> Application | None:
        results = apply_equation(equation, found)
        if isinstance(results, Failure):
            return None
        application = Application(equation, found, results)
        return application if self.keep is None or self.keep(application) else None

    def _surroundings(self, node: Node) -> tuple[_Near, tuple[Node, ...]]:
        if node.op not in self._at:
            self._joint[node] = ()
            return _NOTHING, ()
        key, terms = match_key(node, MATCHED_LEVELS)
        near = self._near.get(key)
        if near is None:
            near = self._near[key] = self._matched(canonical_terms(key, terms))
        self._joint[node] = near.joint
        return near, terms

    def _matched(self, terms: tuple[Node, ...]) -> _Near:
        top, operators = terms[0], {n.op for n in terms}
        single: list[Equation | _Local] = []
        joint: list[Equation] = []
        for equation, needs in self._at[top.op]:
            if not needs <= operators:
                continue
            if len(equation.roots) == 1 and depth(equation.lhs.outputs[0]) <= MATCHED_LEVELS:
                single += [_Local.of(a, terms) for a in self._found(equation, top)]
            elif self._resembles(equation, top):
                (joint if len(equation.roots) > 1 else single).append(equation)
        return _Near(terms, tuple(single), tuple(joint))

    def _resembles(self, equation: Equation, node: Node) -> bool:
        """Whether the first levels of a pattern match, without computed attributes and guards."""
        self.trials += 1
        return resembles(upper(equation.lhs.outputs[0], MATCHED_LEVELS), node)


@dataclass(frozen=True, slots=True)
class _Local:
    """An application at canonical terms, and the terms to make for it, operands first."""

    application: Application
    new: tuple[Node, ...]

    @staticmethod
    def of(application: Application, terms: tuple[Node, ...]) -> _Local:
        return _Local(application, tuple(topological(application.results, stop=set(terms))))

    def placed(self, real: Mapping[Node, Node]) -> Application:
        """The application at terms that look like the canonical ones."""
        equation, found, results = self.application.equation, self.application.found, self.application.results
        done = dict(real)
        for node in self.new:
            done[node] = with_args(node, tuple([done[a] for a in node.args]))
        operands = {name: real[node] for name, node in found.operands.items()}
        where = Match(tuple([real[o] for o in found.outputs]), operands, found.attributes)
        return Application(equation, where, tuple([done[r] for r in results]))


@dataclass(frozen=True, slots=True)
class _Near:
    """The rewrites known at some surroundings: applications and, in their order, the deeper
    equations to try; and those with several outputs."""

    terms: tuple[Node, ...]
    single: tuple[Equation | _Local, ...]
    joint: tuple[Equation, ...]


_NOTHING = _Near((), (), ())
