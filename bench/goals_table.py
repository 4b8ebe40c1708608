"""Tables of `goals.py`: how many goals come through each step, the common forms, and refusals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

KINDS = {
    "form": "common forms",
    "region": "regions of models",
    "piece": "random pieces of models",
    "composition": "random compositions",
}
TARGETS = {"cpu": "CPU, single", "gpu": "sm_90, half"}
STAGES = ("expressed", "found", "proved", "compiled", "right")


def counts(rows: Sequence[Mapping[str, Any]], target: str) -> dict[str, int]:
    """How many goals came through each step for a target."""
    own = [{"expressed": is_expressed(row, target), **row.get(target, {})} for row in rows]
    return {stage: sum(bool(each.get(stage)) for each in own) for stage in STAGES}


def is_expressed(row: Mapping[str, Any], target: str) -> bool:
    """Whether a goal has labels, or a form has kernels for it on a target."""
    return "labels" in row or target in row.get("forms", ()) or bool(row.get(target, {}).get("found"))


def refusals(rows: Sequence[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    """How often the text of a refusal occurs, by where it does."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        problems = {"expressed": row.get("problem")} | {t: row.get(t, {}).get("problem") for t in TARGETS}
        found.update((place, general(text)) for place, text in problems.items() if text)
    return found


def general(text: str) -> str:
    """A text without shapes and numbers, so that equal refusals are one."""
    text = re.sub(r"\(?(Tensor\([^()]*\([^()]*\)\)(, )?)+\)?", "T", text)
    text = re.sub(r"\b(float|int|uint|bool|bfloat)\d*\[[^\]]*\]", "T", text)
    return re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "N", text)


def goals(found: dict[str, Any]) -> list[str]:
    """The counts by the kind of goals."""
    lines = [f"| goals, target | all | {' | '.join(STAGES)} |", f"|---|{'---:|' * (len(STAGES) + 1)}"]
    for kind, name in KINDS.items():
        rows = [row for row in found["rows"] if row["kind"] == kind]
        for target in found["targets"] if rows else ():
            numbers = map(str, counts(rows, target).values())
            lines.append(f"| {name}, {TARGETS[target]} | {len(rows)} | {' | '.join(numbers)} |")
    limits = {key: sorted({f"{row[key]:g}" for row in found["rows"]}, key=float) for key in ("budget", "limit")}
    said = (
        f"Seed {found['seed']}, {' or '.join(limits['budget'])} s for a search, {' or '.join(limits['limit'])} s for a"
    )
    return [*lines, "", f"{said} step. taso-mirage {found['versions']['taso-mirage']}."]


def forms(found: dict[str, Any]) -> list[str]:
    """How far each common form comes."""
    lines = [f"| form | {' | '.join(TARGETS[t] for t in found['targets'])} |", "|---|---|---|"]
    for row in sorted(found["rows"], key=lambda row: str(row["case"])):
        if row["kind"] == "form":
            lines.append(f"| {row['case']} | {' | '.join(_state(row, t) for t in found['targets'])} |")
    return lines


def _state(row: Mapping[str, Any], target: str) -> str:
    if not row["expressed"]:
        return _cell(row["problem"])
    own = row[target]
    reached = next((s for s in STAGES[::-1] if own.get(s)), "expressed" if is_expressed(row, target) else "")
    if not reached:
        return _cell(own["problem"])
    return reached if "problem" not in own else f"{reached}; {_cell(own['problem'])}"


def _cell(text: str) -> str:
    """A refusal as the cell of a table."""
    return "`" + general(text).replace("|", "/").replace("`", "'") + "`"


def refused(found: dict[str, Any]) -> list[str]:
    """The refusals by their texts, the most frequent first."""
    lines = ["| goals | at | refusal |", "|---:|---|---|"]
    for (place, text), n in refusals(found["rows"]).most_common():
        lines.append(f"| {n} | {TARGETS.get(place, place)} | {_cell(text)} |")
    return lines
