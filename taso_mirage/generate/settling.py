"""From a candidate to a rule: generalised by fuzz, then proved; and which proved rules the others
make superfluous."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter

from taso_mirage.errors import TasoMirageError
from taso_mirage.generate.candidates import RuleCandidate
from taso_mirage.generate.family import OperandNames
from taso_mirage.generate.generalise import generalise
from taso_mirage.ir.terms import Node, substitute, topological, users, variable
from taso_mirage.prove.rules.fuzz import typings
from taso_mirage.prove.rules.guard_numbers import number_guards
from taso_mirage.prove.rules.ladder import different, holding
from taso_mirage.rewriting.equation import Equation, instantiate
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.library import Rule, parse_given, parse_rules, show_rule
from taso_mirage.rewriting.text import parse_equation
from taso_mirage.verdicts import Failure, FailureKind

ERRORS = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a candidate: a proved rule (its text), a refutation, or neither (`why`); plain
    data, for a checkpoint."""

    rule: str | None
    rejected: tuple[str, str, dict[str, object]] | None
    why: str
    seconds: float


def settle_candidate(candidate: RuleCandidate, family: str, seed: int, typings: int = 512) -> Outcome:
    """Generalise and prove one candidate. A candidate without a proof is no rule."""
    start = perf_counter()
    try:
        with time_limit(SECONDS):
            found = _settled(candidate, family, seed, typings)
    except ERRORS as error:
        found = Failure(FailureKind.EXCLUDED, f"{type(error).__name__}: {error}")
    except TooLong:
        found = Failure(FailureKind.UNPROVED, f"no proof in {SECONDS} seconds")
    seconds = perf_counter() - start
    if isinstance(found, Rule):
        return Outcome(show_rule(found), None, "", seconds)
    if found.counterexample is not None:
        return Outcome(None, (found.equation, found.reason, found.counterexample.fields()), "", seconds)
    return Outcome(None, None, found.reason, seconds)


class TooLong(BaseException):
    """Raised for a candidate that takes longer than any successful proof; a proof is found within
    seconds or not at all."""


SECONDS = 240


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in this thread after some seconds (between two steps of Python: code in C ends
    first)."""
    thread, lock, over = threading.get_ident(), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TooLong))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
        timer.cancel()


def _settled(candidate: RuleCandidate, family: str, seed: int, typings: int) -> Rule | Failure:
    """Settle a candidate in several attempts: a form that passed the typings with which it was made
    may fail on new ones; then new typings are drawn."""
    equation, given = parse_equation(candidate.text), parse_given(candidate.given)
    rejected = Failure(FailureKind.EXCLUDED, "not tried", equation=candidate.text)
    for attempt in range(ATTEMPTS):
        rule = generalise(equation, given, seed + 10 * attempt, family, candidate.operators, typings * (1 + attempt))
        if isinstance(rule, Failure):
            return rule
        rule = number_guards(rule, seed + 100 * attempt + 5)
        if isinstance(rule, Failure):
            rejected = rule
            continue
        found = holding(rule, seed + 1)
        if isinstance(found, tuple):
            guarded, evidence = found
            return parse_rules(show_rule(replace(guarded, evidence=evidence)))[0]
        if found.kind is FailureKind.UNPROVED:
            return replace(found, reason=f"no proof: {found.reason}")
        rejected = found
    return rejected


ATTEMPTS = 3


# ---------------------------------------------------------------- derived rules

State = tuple[Node, ...]


class Needed:
    """The rules that are needed so far: a rule that they derive is superfluous.

    Rules of up to two operators are superfluous only as an instance of one other; longer
    derivations would drop short useful rules.
    """

    def __init__(self, seed: int, depth: int = 3, width: int = 150) -> None:
        self.seed, self.depth, self.width = seed, depth, width
        self.rules: list[Rule] = []
        self._equations: list[Equation] = []
        self._known = Rules(())

    def offer(self, rule: Rule) -> bool:
        """Keep a proved rule, unless the kept rules derive it at its own typing and at others of
        different structure."""
        cases = list(islice(self._cases(rule), 4))
        if cases and all(self._derives(a, b, rule.operators) for a, b in cases):
            return False
        self.adopt([rule])
        return True

    def adopt(self, rules: Sequence[Rule]) -> None:
        """Keep rules without asking."""
        self.rules += rules
        self._equations += [e for r in rules for e in (r.equation, r.equation.reverse()) if e is not None]
        self._known = Rules(self._equations)

    def derives(self, candidate: RuleCandidate) -> bool:
        """Whether the kept rules give a candidate already, as it was found."""
        equation = parse_equation(candidate.text)
        names = OperandNames({name: variable(name, type) for name, type in parse_given(candidate.given)})
        try:
            left, right = instantiate(equation.lhs, names), instantiate(equation.rhs, names)
        except ERRORS:
            return False
        return self._derives(left, right, candidate.operators)

    def _derives(self, left: State, right: State, operators: int) -> bool:
        return _derives(self._known, left, right, 1 if operators <= 2 else self.depth, self.width)

    def _cases(self, rule: Rule) -> Iterator[tuple[State, State]]:
        with suppress(*ERRORS):
            yield rule.instance()
        drawn = typings(rule.equation, self.seed, 300, rule.given, rule.attributes)
        yield from ((t.lhs, t.rhs) for t in different(list(islice(drawn, 60)), 3))


def _derives(rules: Rules, left: State, right: State, depth: int, width: int) -> bool:
    """Whether rewriting from the left meets the right side; for more than one step, the right side
    is rewritten as well."""
    seen: list[dict[State, None]] = [{left: None}, {right: None}]
    front = [[left], [right]]
    if left == right:
        return True
    sides = (0, 1) if depth > 1 and len(left) == 1 else (0,)  # the reverse of a merge splits it, so it gives no merge
    for _ in range(depth):
        for side in sides:
            new: list[State] = []
            for state in front[side]:
                for other in _rewritten(state, rules):
                    if other in seen[1 - side]:
                        return True
                    if other not in seen[side] and len(seen[side]) < width:
                        seen[side][other] = None
                        new.append(other)
            front[side] = new
    return False


def _rewritten(state: State, rules: Rules) -> Iterator[State]:
    order = topological(state)
    used_by = users(order)
    for node in order:
        for application in (*rules.applications(node), *rules.joint_applications(node, used_by)):
            yield substitute(state, dict(zip(application.found.outputs, application.results, strict=True)))


def renamed(rules: Sequence[Rule]) -> list[Rule]:
    """Rules under names of their own: of two with one name the later one has a longer hash."""
    from taso_mirage.rewriting.library import rule_name

    taken: set[str] = set()
    found = []
    for rule in rules:
        name = rule_name(rule.family, rule.equation, taken)
        taken.add(name)
        found.append(replace(rule, name=name, equation=replace(rule.equation, name=name)))
    return found
