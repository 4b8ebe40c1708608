"""Proofs of cases, each found once and stored. A rule applies only in a proved case
(docs/soundness.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import isfinite
from pathlib import Path

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Symbolic, dim_product
from taso_mirage.ir.terms import Node, Tensor, is_float, topological
from taso_mirage.meanings.sizes import within_bounds
from taso_mirage.operators.additions import operator_files
from taso_mirage.operators.expressions import uniform_value
from taso_mirage.operators.ops import data_folder, traits
from taso_mirage.plugins import OPERATOR_GROUP, plugins
from taso_mirage.prove.bounded import prove_bounded
from taso_mirage.prove.definitions import same_by_definition
from taso_mirage.prove.rules.cases import (
    Instance,
    ProofCase,
    as_it_is,
    cases_of,
    instance_of,
    resized_instance,
    unranked,
)
from taso_mirage.prove.rules.contained import ProvedCases
from taso_mirage.prove.symbolic import Proved, prove_symbolic, unproved
from taso_mirage.rewriting.derived_traits import divisors
from taso_mirage.rewriting.index import Application
from taso_mirage.system.store import Store
from taso_mirage.verdicts import Failure

PROVED_WHERE_APPLIED = ("law", "library")
"""The evidence of equations that apply only in cases that are proved; mutants, whose boxes are
verified, have another."""
BUDGET = 40_000
"""Steps of one proof at an application."""
ELEMENTS = 512
"""The largest number of elements of terms that are proved element by element."""
OPERANDS = 16
"""The most operands that vary in size: a proof about more of them, each of another size, is long
for the prover and for the checker."""
ILLEGAL = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError)


class Coverage(Enum):
    """The sizes that a proof covers: every one within the bounds of `sizes`, or those of the
    instance alone.

    `HERE` is bounded: the same case of other sizes is another case.
    """

    EVERY = "every size"
    HERE = "these sizes"


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """Whether a case is proved: the range of the proof, or why there is none."""

    case: ProofCase
    covers: Coverage | Failure

    @property
    def why(self) -> str:
        """Why there is no proof; empty where there is one."""
        return self.covers.reason if isinstance(self.covers, Failure) else ""

    def __bool__(self) -> bool:
        return bool(self.covers)


class Proofs:
    """Verdicts on applications of rules. None is accepted that drops an operand of floats which may
    be NaN or infinite, so that the result would be a number, and none with a quotient by the number
    0, of which proofs say nothing.

    Each case is proved once: in this process, and where `path` is given on this machine.

    A call returns whether an application is proved; `Rules` holds the object. Equations that are
    neither laws nor rules of the library (mutants, whose boxes are verified when they are made) are
    accepted.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.asked = self.proofs = self.steps = 0
        """How many different instances were asked about, how many proofs were tried for them, and
        the work of them."""
        self._kept = _Kept(path)
        self._verdicts: dict[Instance, CaseVerdict] = {}
        self._cases = ProvedCases()
        self._contained: set[Instance] = set()

    def __call__(self, application: Application) -> bool:
        if application.equation.evidence not in PROVED_WHERE_APPLIED:
            return True
        dropped = (application.found.operands[x] for x in application.equation.dropped)
        return all(map(_is_finite, dropped)) and not _divides_by_zero(application) and self._holds(application)

    def _holds(self, application: Application) -> bool:
        """Whether an application is proved: the verdict of `of`, without the search for its own
        case where a proved one contains it."""
        instance = instance_of(application)
        if instance not in self._verdicts and (instance in self._contained or self._contain(instance)):
            self._contained.add(instance)
            return True
        return bool(self.of(application))

    def _contain(self, instance: Instance) -> bool:
        """Whether proved cases contain an instance, also where a size that only the run fixes is
        0."""
        if not self._cases.contain(instance):
            return False
        return all(e is not None and (self._cases.contain(e) or self.of_sizes(e)) for e in emptied(instance))

    def of(self, application: Application) -> CaseVerdict:
        """The verdict on one application; constants are read only where it needs their values."""
        verdict = self.judge(instance_of(application))
        if not verdict and any(n.op == "constant" for n in application.found.operands.values()):
            return self.judge(instance_of(application, concrete=True))
        return verdict

    def judge(self, instance: Instance) -> CaseVerdict:
        """The verdict on an instance, and on the instance in which a size that only the run fixes
        is 0."""
        known = self._verdicts.get(instance)
        if known is None:
            self.asked += 1
            known = self.of_sizes(instance)
            if known and not all(e is not None and self.of_sizes(e) for e in emptied(instance)):
                known = CaseVerdict(known.case, unproved("not proved where a size is 0"))
            self._verdicts[instance] = known
        return known

    def of_sizes(self, instance: Instance) -> CaseVerdict:
        """The verdict for letters of at least 1: those of a rule, not the dims of a model, which a
        run may make 0."""
        if unranked(instance):
            return CaseVerdict(ProofCase(instance), unproved("an operand has no known rank"))
        last = as_it_is(instance)
        small = within_bounds(d for n in instance.leaves for d in n.shape) and len(instance.leaves) <= OPERANDS
        for case in cases_of(instance) if small else ():
            last = case
            if self._proved(case):
                self._cases.add(case.instance)
                return CaseVerdict(case, Coverage.EVERY)
        here = as_it_is(instance)
        fixed = last is not here and any(isinstance(d, int) and d > 1 for n in instance.leaves for d in n.shape)
        if self._proved(here, spelled_out=not here.instance.letters):
            bounded = fixed and last.instance != here.instance
            return CaseVerdict(here, Coverage.HERE if bounded else Coverage.EVERY)
        return CaseVerdict(last, unproved("no proof was found"))

    def _proved(self, case: ProofCase, spelled_out: bool = False) -> bool:
        known = self._kept.get(case.key)
        if known is None:
            self.proofs += 1
            known, steps = _proof_of(case, BUDGET, spelled_out)
            self.steps += steps
            self._kept.put(case.key, known)
        return known

    def close(self) -> None:
        self._kept.close()


def _is_finite(node: Node) -> bool:
    """Whether a term is known to be neither NaN nor infinite: integers, and constants."""
    number = uniform_value(node) if is_float(node.dtype) else 0
    return number is not None and isfinite(number)


def _divides_by_zero(application: Application) -> bool:
    """Whether a side has a quotient by a number that is 0."""
    found = application.found
    terms = topological((*found.outputs, *application.results), stop=set(found.operands.values()))
    return any(_is_zero(n.args[i]) for n in terms for i in divisors(n.op) if i < len(n.args))


def _is_zero(node: Node) -> bool:
    return uniform_value(node.args[0] if traits(node).repeats else node) == 0


_FOUND: dict[tuple[str, int, bool], tuple[bool, int]] = {}
"""The verdicts of this process, for all callers; a verdict depends only on the case."""
MOST = 1 << 12
"""Verdicts that stay in memory."""


def _proof_of(case: ProofCase, budget: int, bounded: bool) -> tuple[bool, int]:
    key = (case.key, budget, bounded)
    if key not in _FOUND:
        if len(_FOUND) >= MOST:
            _FOUND.clear()
        _FOUND[key] = proof(case.instance, budget, bounded)
    return _FOUND[key]


def proof(instance: Instance, budget: int, bounded: bool) -> tuple[bool, int]:
    """Whether there is a proof for all sizes of the letters (without letters also element by
    element), and its work."""
    if all(_empty(n) for n in instance.lhs):
        return True, 1
    with suppress(*ILLEGAL):  # a definition that these letters do not decide
        if same_by_definition(instance.lhs, instance.rhs):
            return True, 1
    found = prove_symbolic(instance.lhs, instance.rhs, budget)
    if isinstance(found, Proved) or not bounded or not _small(instance):
        return isinstance(found, Proved), found.steps
    here = prove_bounded(instance.lhs, instance.rhs, budget)
    return isinstance(here, Proved), found.steps + here.steps


def _small(instance: Instance) -> bool:
    return all(_elements(n) <= ELEMENTS for n in topological((*instance.lhs, *instance.rhs)))


def _empty(node: Node) -> bool:
    return isinstance(node.type, Tensor) and 0 in (node.type.shape or ())


def _elements(node: Node) -> int:
    size = dim_product(node.type.shape or ()) if isinstance(node.type, Tensor) else 1
    return 1 << 30 if isinstance(size, Symbolic) else size


def emptied(instance: Instance) -> Iterator[Instance | None]:
    """The instance with each of its letters at 0, where the left side has a type: a dynamic dim may
    be empty. None where the right side has none then."""
    for name in sorted(instance.letters):
        try:
            yield resized_instance(instance, {name: 0})
        except ILLEGAL:
            with suppress(*ILLEGAL):
                resized_instance(Instance(instance.lhs, ()), {name: 0})
                yield None


class _Kept:
    """Verdicts by a case's key, in SQLite beside the measured costs; those of another prover are
    never read."""

    def __init__(self, path: Path | None) -> None:
        self._store = Store(path, "verdict", ("prover TEXT", "key TEXT", "proved INT"), 2)
        self._memory = {str(key): bool(found) for _, key, found in self._store.rows(prover())}

    def get(self, key: str) -> bool | None:
        return self._memory.get(key)

    def put(self, key: str, found: bool) -> None:
        self._memory[key] = found
        self._store.put(prover(), key, int(found))

    def close(self) -> None:
        self._store.close()


PROVER = ("ir", "meanings", "operators", "rewriting", "prove")
"""The rooms that a proof depends on."""


def prover_files() -> list[Path]:
    """The files on which a proof depends, in an order that is independent of the package's
    location."""
    package = Path(__file__).parents[2]
    files = [file for room in PROVER for file in sorted((package / room).rglob("*.py"))]
    others = [*operator_files(), *(file for plugin in plugins(OPERATOR_GROUP) for file in plugin.files())]
    return [package / "verdicts.py", *files, *sorted(data_folder("op_specs").glob("*.py")), *others]


@cache
def prover() -> str:
    """A digest of all that a proof depends on: the meanings, the prover, and the operators'
    definitions."""
    digest = hashlib.sha256()
    for file in prover_files():
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
