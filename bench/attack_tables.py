"""Tables of attacks against the package: equations that are false, and hostile files and
accidents."""

from __future__ import annotations

from collections import Counter
from typing import Any


def judging(found: dict[str, Any]) -> list[str]:
    """False and true equations by class, and how they were judged."""
    lines = ["| equations | class | rules | refuted | no proof | accepted |", "|---|---|---:|---:|---:|---:|"]
    for row in found["rows"]:
        kinds = [row.get(kind, 0) for kind in ("refuted", "unproved")]
        counts = [row["equations"], *kinds, row["equations"] - sum(kinds)]
        lines.append(f"| {'true' if row['true'] else 'false'} | {row['class']} | {' | '.join(map(str, counts))} |")
    return [*lines, "", f"{found['typings']} typings a rule. taso-mirage {found['versions']['taso-mirage']}."]


def soak(found: dict[str, Any]) -> list[str]:
    """Hostile cases by kind: how they ended, and how many did something forbidden."""
    lines = ["| kind | cases | how they ended | wrong |", "|---|---:|---|---:|"]
    for kind, count in found["cases"].items():
        codes: Counter[str] = Counter()
        for name, cases in found["ended"].items():
            if name.startswith(f"{kind}: "):
                code = name.split()[-1]
                codes[f"by signal {code}" if code.isdecimal() else code] += cases
        ended = ", ".join(f"{cases} {code}" for code, cases in codes.most_common())
        wrong = sum(each["kind"] == kind for each in found["wrong"])
        lines.append(f"| {kind} | {count} | {ended} | {wrong} |")
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    return [*lines, "", f"{found['device']}; {versions}."]
