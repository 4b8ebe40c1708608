"""Tables of `minute.py`: the results of a minute, and the account of its seconds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

PURPOSES = ("loads", "references", "operators", "comparisons", "checks", "runs", "tuning", "compiling", "own work")
"""Columns; the other purposes are one."""
ALONE = "onnxruntime"


def minute(found: dict[str, Any]) -> list[str]:
    """Milliseconds of each model, ours by budget, and how many times as fast the last of ours is as
    the best of torch.compile."""
    rows = [row for row in found["rows"] if "us" in row]
    names = list(dict.fromkeys(name for row in rows for name in row["us"]))
    lines = [f"| model, ms | {' | '.join(names)} | over torch.compile | over ONNX Runtime |"]
    lines.append(f"|---|{'---:|' * (len(names) + 2)}")
    for row in rows:
        us = row["us"]
        times = [f"{us[name] / 1e3:.3f}" if name in us else "" for name in names]
        lines.append(f"| {row['case']} | {' | '.join(times)} | {' | '.join(_ratios(us))} |")
    means = "; ".join(
        f"{ours}: " + ", ".join(f"{ratio:.3f} over {other}" for other, ratio in over.items() if "least" not in other)
        for ours, over in found["means"].items()
    )
    return [*lines, "", f"Geometric means: {means}. {_where(found)}"]


def _ratios(us: Mapping[str, float]) -> tuple[str, str]:
    ours = [name for name in us if name.startswith("ours")]
    others = [us[name] for name in us if name.startswith("torch.compile")]
    if not ours:
        return "", ""
    return f"{min(others) / us[ours[-1]]:.2f}" if others else "", f"{us[ALONE] / us[ours[-1]]:.2f}"


GOOD, SOON = 0.9, 30.0
"""The share of the gain of the longest budget that this many seconds should have."""


def curve(found: dict[str, Any]) -> list[str]:
    """How many times as fast ours is as ONNX Runtime, by model and seconds of the budget; a model
    that was kept has one."""
    rows = [row for row in found["rows"] if "us" in row]
    budgets = sorted({float(budget) for row in rows for budget in row["ours"]})
    lines = [f"| times as fast, by seconds | {' | '.join(f'{budget:g}' for budget in budgets)} | nodes |"]
    lines.append(f"|---|{'---:|' * len(budgets)}---|")
    gains = {row["case"]: [_gain(row, budget) for budget in budgets] for row in rows}
    for row in rows:
        told = row["ours"].get(f"{budgets[-1]:g}", {})
        nodes = f"{told['nodes']['before']} to {told['nodes']['after']}" if "nodes" in told else ""
        cells = ["kept" if gain is None else f"{gain:.2f}" for gain in gains[row["case"]]]
        lines.append(f"| {row['case']} | {' | '.join(cells)} | {nodes} |")
    of_budget = [list(each) for each in zip(*gains.values(), strict=True)]
    means = [f"{statistics.geometric_mean([gain or 1.0 for gain in each]):.2f}" for each in of_budget]
    kept = [str(each.count(None)) for each in of_budget]
    lines += [f"| geometric mean | {' | '.join(means)} | |", f"| kept of {len(rows)} | {' | '.join(kept)} | |"]
    return [*lines, "", f"{_soon(gains, budgets)}{_where(found)}"]


def _gain(row: Mapping[str, Any], budget: float) -> float | None:
    """None where the original was kept, or nothing came of the command."""
    us, ours = row["us"], f"ours {budget:g}"
    changed = row["ours"].get(f"{budget:g}", {}).get("changed", False)
    return us[ALONE] / us[ours] if changed and ours in us else None


def _soon(gains: Mapping[str, list[float | None]], budgets: list[float]) -> str:
    """The number of models with most of the gain after a short time."""
    soon = max((i for i, budget in enumerate(budgets) if budget <= SOON), default=None)
    if soon is None or soon == len(budgets) - 1:
        return ""
    good = [(of[soon] or 1.0) - 1.0 >= GOOD * ((of[-1] or 1.0) - 1.0) for of in gains.values()]
    return f"{budgets[soon]:g} s have 0.9 of the gain of {budgets[-1]:g} s in {sum(good)} of {len(good)} models. "


def spent(found: dict[str, Any]) -> list[str]:
    """Seconds of each command, by purpose."""
    lines = [f"| model, budget | GB | clock, s | {' | '.join(PURPOSES)} | others | result |"]
    lines.append(f"|---|{'---:|' * (len(PURPOSES) + 3)}---|")
    for row in found["rows"]:
        for budget, ours in row.get("ours", {}).items():
            if "spending" not in ours:
                continue
            seconds = ours["spending"]["spent"]
            columns = [seconds.get(purpose, 0.0) for purpose in PURPOSES]
            others = sum(seconds.values()) - sum(columns)
            cells = [f"{row['bytes'] / 1e9:.2f}", f"{ours['wall']:.1f}", *(f"{s:.1f}" for s in (*columns, others))]
            timed = ours["time"]
            result = "kept" if not ours["changed"] else "changed" if timed is None else f"{timed['ratio']:.2f}"
            lines.append(f"| {row['case']}, {budget} s | {' | '.join(cells)} | {result} |")
    return [*lines, "", _where(found)]


def _where(found: Mapping[str, Any]) -> str:
    return f"{found['device']}; {', '.join(f'{name} {version}' for name, version in found['versions'].items())}."


def quick(found: dict[str, Any]) -> list[str]:
    """Rows of `--effort quick` by model: seconds of the command, nodes, and gains in one thread's
    processor time beside those of other tools."""
    names = list(dict.fromkeys(name for row in found["rows"] for name in row["gains"] if name != ALONE))
    lines = [f"| model | seconds | same bytes | nodes | {' | '.join(names)} | over the best of the others |"]
    lines.append(f"|---|---:|---|---:|{'---:|' * (len(names) + 1)}")
    for row in found["rows"]:
        gains = [f"{row['gains'][name]:.2f}" if name in row["gains"] else "" for name in names]
        nodes = f"{row['nodes'][ALONE]} to {row['nodes']['ours']}"
        first = [row["case"], f"{min(row['seconds']):.1f}", "yes" if row["same_bytes"] else "no", nodes]
        lines.append(f"| {' | '.join([*first, *gains, format(row['ratio_best_peer'], '.2f')])} |")
    ratios = [row["ratio_best_peer"] for row in found["rows"]]
    said = f"Over the best of the others: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios)}."
    return [*lines, "", f"{said} {_where(found)}"]
