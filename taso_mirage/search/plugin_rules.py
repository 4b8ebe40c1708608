"""Rules and laws of plug-ins, each judged once before any is used (docs/plugins.md).

Rules of plug-ins apply only in proved cases, as all rules do. A rule with a refuted case is wrong:
its plug-in is rejected with the counterexample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator
from contextlib import closing

from taso_mirage.errors import InvalidOption, SyntaxProblem
from taso_mirage.measure.cost_cache import proofs_path
from taso_mirage.plugins import RULE_GROUP, Plugin, plugins
from taso_mirage.prove.rules.proofs import prover
from taso_mirage.rewriting import library
from taso_mirage.rewriting.library import Rule, show_attributes, show_given
from taso_mirage.rewriting.text import show_equation, stated_laws
from taso_mirage.system.store import Store
from taso_mirage.verdicts import Failure, FailureKind

SEED, TYPINGS = 1, 320
"""The defaults of `taso-mirage substitutions verify`."""


def plugin_rules(taken: Container[str] = ()) -> tuple[Rule, ...]:
    """The rules in files of all plug-ins. Laws, which are stated beside operators, are judged but
    not returned. `taken` are names that rules have already.

    Raises InvalidOption where a file cannot be read, or a name is taken, or a rule is wrong.
    """
    found = list(_rules())
    for plugin, rule in found:
        if rule.name in taken or sum(rule.name == other.name for _, other in found) > 1:
            raise plugin.refused(f"has a rule {rule.name}, as another set of rules has; give it another name")
    judged = [*found, *_laws()]
    if judged:
        with closing(_Judged()) as known:
            for plugin, rule in judged:
                if problem := known.problem(rule):
                    raise plugin.refused(f"has a wrong rule: {rule.name} {problem}")
    return tuple(rule for _, rule in found)


def _rules() -> Iterator[tuple[Plugin, Rule]]:
    for plugin in plugins(RULE_GROUP):
        files = sorted(plugin.folder().glob("*.toml"))
        try:
            read = [rule for file in files for rule in library.read(file)]
        except (SyntaxProblem, InvalidOption) as error:
            raise plugin.refused(f"cannot be read: {error}") from None
        yield from ((plugin, rule) for rule in read)


def _laws() -> Iterator[tuple[Plugin, Rule]]:
    from taso_mirage.prove.rules.recheck import law_rule

    for law in stated_laws().values():
        if law.plugin is not None:
            yield law.plugin, law_rule(law)


class _Judged:
    """Problems of rules, by their texts, in SQLite beside the proofs; "" where there is none.
    Results of another version of the prover are not read."""

    def __init__(self) -> None:
        path = proofs_path()
        kept = None if path is None else path.with_name("plugins.sqlite")
        self._store = Store(kept, "judged", ("prover TEXT", "rule TEXT", "problem TEXT"), 2)

    def problem(self, rule: Rule) -> str:
        """The refuted cases with a counterexample each."""
        from taso_mirage.prove.rules.recheck import verdict_of

        key = _digest(rule)
        for *_, known in self._store.rows(prover(), key):
            return str(known)
        found = verdict_of(rule, SEED, TYPINGS).found
        refuted = isinstance(found, Failure) and found.kind is FailureKind.REFUTED
        problem = found.reason if isinstance(found, Failure) and refuted else ""
        self._store.put(prover(), key, problem)
        return problem

    def close(self) -> None:
        self._store.close()


def _digest(rule: Rule) -> str:
    said = show_equation(rule.equation), show_given(rule.given), show_attributes(rule.attributes)
    return hashlib.sha256("\n".join(said).encode()).hexdigest()
