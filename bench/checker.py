"""How much the independent checker decides: every rule and law at its own typing and in drawn cases
that are proved.

    python bench/checker.py [--typings 8] [--out bench/results/checker.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from taso_mirage.checker import Accepted, check
from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.examine import application
from taso_mirage.prove.rules.hostile import RuleStatement, drawn
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.prove.rules.recheck import law_rules
from taso_mirage.rewriting.library import Rule, load_rules
from taso_mirage.rewriting.text import show_graph

ILLEGAL = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError)
Sides = tuple[str, str]


def own(rule: Rule) -> Iterator[Sides]:
    """The two sides at the typing that is stated, if there is one."""
    if rule.given:
        with suppress(*ILLEGAL):
            yield sides(Instance(*rule.instance()))


def cases(rule: Rule, typings: int) -> Iterator[Sides]:
    """Drawn cases that the prover proves, each once."""
    proofs, statement = Proofs(), RuleStatement(rule.equation, rule.given, rule.attributes)
    seen = set()
    with suppress(*ILLEGAL):
        for typing in drawn(statement, 0, typings):
            verdict = proofs.of(application(statement, typing))
            if verdict and verdict.case.key not in seen:
                seen.add(verdict.case.key)
                yield sides(verdict.case.instance)


def sides(instance: Instance) -> Sides:
    return show_graph(Graph((), instance.lhs), "lhs"), show_graph(Graph((), instance.rhs), "rhs")


def decided(rows: Iterator[tuple[str, Sides]]) -> dict[str, Any]:
    """How many are accepted, CPU seconds, and by reason which equations are not."""
    start, count, refused = time.process_time(), Counter[bool](), dict[str, dict[str, int]]()
    for name, pair in rows:
        found = check(*pair)
        count[found == Accepted()] += 1
        if not isinstance(found, Accepted):
            names = refused.setdefault(found.reason, {})
            names[name] = names.get(name, 0) + 1
    seconds = round(time.process_time() - start, 1)
    return {"accepted": count[True], "refused": count[False], "seconds": seconds, "why": dict(sorted(refused.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--typings", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("bench/results/checker.json"))
    asked = parser.parse_args()
    found = {}
    for kind, rules in (("rules", list(load_rules())), ("laws", law_rules())):
        found[kind] = {
            "equations": len(rules),
            "own typing": decided((rule.name, pair) for rule in rules for pair in own(rule)),
            "cases": decided((rule.name, pair) for rule in rules for pair in cases(rule, asked.typings)),
        }
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    for kind, rows in found.items():
        for name in ("own typing", "cases"):
            print(kind, name, {k: v for k, v in rows[name].items() if k != "why"})


if __name__ == "__main__":
    main()
