"""Tables of `goals.py`: how many goals come through each step, the common forms, and refusals."""

from __future__ import annotations

import re
import statistics
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


PEERS = {"eager": "eager", "torch.compile": "torch.compile", "SDPA": "SDPA, the best", "cuBLAS": "cuBLAS with a bias"}


def goal_rows(found: dict[str, Any]) -> list[str]:
    """Goals on a GPU beside PyTorch; those without figures with their problem."""
    lines = [
        f"| goal, us | ours | memory floor | {' | '.join(PEERS.values())} | ratio to the best |",
        f"|---|{'---:|' * (len(PEERS) + 3)}",
    ]
    timed = [row for row in found["rows"] if "ours" in row and row.get("baselines")]
    ratios = [min(row["baselines"].values()) / row["ours"] for row in timed]
    for row, ratio in sorted(zip(timed, ratios, strict=True), key=lambda each: str(each[0]["case"])):
        kinds = [[v for k, v in row["baselines"].items() if k.startswith(kind)] for kind in PEERS]
        shown = " | ".join(f"{min(times):.1f}" if times else "" for times in kinds)
        mark = " (a library's product)" if "library" in row["plan"] else ""
        lines.append(f"| {row['case']}{mark} | {row['ours']:.2f} | {row['floor']:.1f} | {shown} | {ratio:.2f} |")
    mean = statistics.geometric_mean(ratios)
    said = f"Geometric mean over the best peer of {len(ratios)} rows {mean:.2f}, least {min(ratios):.2f}; "
    said += f"{sum(ratio >= 1 for ratio in ratios)} rows are at least as fast. {found['device']}."
    others = [
        f"{row['case']}: {row.get('problem') or row.get('peer_problem')}" for row in found["rows"] if row not in timed
    ]
    return [*lines, "", said, *[f"Without a figure: {each}." for each in others]]


def sanitized(found: dict[str, Any]) -> list[str]:
    """Runs of one program of each kind."""
    lines = ["| run | programs | wrong or reported | the tool's summary |", "|---|---:|---:|---|"]
    for tool, run in found["runs"].items():
        summary = run["said"].partition("========= ")[2] or "-"
        lines.append(f"| {tool} | {run['cases']} of {found['programs']} | {len(run['wrong'])} | {summary} |")
    return [*lines, "", f"{found['device']}."]
