"""The table of KernelBench (`bench/kernelbench.py`): how many programs of each level go through and
are faster, and one line for each that does not."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

RIGHT = ("whole", "partly", "eager", "inductor")
"""How a program ended with equal results: all of its graphs are compiled, or some, or none that is
faster than eager PyTorch, where it stays, or none and it runs by Inductor."""
NEAR = "near"
"""With results that are equal by the benchmark's earlier tolerance alone, and nearly as close to
float64 as eager's."""
LEVELS = {"level1": 100, "level2": 100, "level3": 50}
Row = Mapping[str, Any]


def kernelbench(found: Sequence[Row]) -> list[str]:
    """A row for each level, of the last line of each program. fast_p is as the benchmark defines
    it: the share of programs with equal results that are more than p times as fast.

    A graph that runs by eager PyTorch, or by Inductor, is not faster than that, whatever the clock
    says.
    """
    rows = list({row["case"]: row for row in found}.values())
    heads = [
        "level",
        "programs",
        "compiled, in parts, eager as that is faster",
        "by Inductor as that is faster",
        "refused",
        "near",
        "failed or wrong",
    ]
    if any("times" in row for row in rows):
        heads += ["faster than eager (by ours)", "than Inductor (by ours)", "mean over eager", "over Inductor"]
        heads += ["fast_1, fast_2 over eager", "over Inductor"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    levels = {level: [row for row in rows if row["case"].startswith(f"{level}/")] for level in LEVELS}
    lines += [_level(f"{level[-1]}", part, LEVELS[level], len(heads)) for level, part in levels.items() if part]
    lines += ["", *_setting(rows)]
    lines += [f"- {row['case']}: {row['ended']}: {_said(row)}" for row in rows if row["ended"] not in RIGHT]
    return lines


def _level(level: str, rows: Sequence[Row], count: int, columns: int) -> str:
    right = [row for row in rows if row["ended"] in RIGHT]
    parts, eager, inductor = (sum(row["ended"] == each for row in right) for each in RIGHT[1:])
    refused = sum(row["ended"] == "refused" for row in rows)
    programs = f"{len(rows)} of {count}"
    cells = [level, programs, f"{len(right) - inductor}, {parts}, {eager}", str(inductor), str(refused)]
    near = [row for row in rows if row["ended"] == NEAR]
    cells += [str(len(near)), str(len(rows) - len(right) - refused - len(near))]
    timed, also = ([row for row in each if "times" in row] for each in (right, near))
    ratios = {name: [_ratio(row, name) for row in timed] for name in ("eager", "inductor")}
    wider = {name: [*own, *(_ratio(row, name) for row in also)] for name, own in ratios.items()}
    ours = [row["ended"] not in ("eager", "inductor") for row in timed]
    cells += [_faster(each, ours) if timed else "" for each in ratios.values()]
    cells += [_mean(own, wider[name]) if timed else "" for name, own in ratios.items()]
    cells += [f"{_fast(each, 1, len(rows))}, {_fast(each, 2, len(rows))}" if timed else "" for each in ratios.values()]
    return f"| {' | '.join(cells[:columns])} |"


def _ratio(row: Row, name: str) -> float:
    ratio = float(row["times"]["ratio"][name][0])
    return min(ratio, 1.0) if row["ended"] == name else ratio


def _faster(ratios: Sequence[float], ours: Sequence[bool]) -> str:
    """How many are faster, and how many of these run by ours."""
    faster = [own for ratio, own in zip(ratios, ours, strict=True) if ratio > 1]
    return f"{len(faster)} ({sum(faster)}) of {len(ratios)}"


def _mean(ratios: Sequence[float], wider: Sequence[float]) -> str:
    """The mean, and with those that are near where there are any."""
    more = f" ({statistics.geometric_mean(wider):.3f} with near ones)" if len(wider) > len(ratios) else ""
    return f"{statistics.geometric_mean(ratios):.3f}{more}"


def _fast(ratios: Sequence[float], p: float, count: int) -> str:
    return f"{sum(ratio > p for ratio in ratios) / count:.2f}"


def _setting(rows: Sequence[Row]) -> list[str]:
    """One line for each setting of the rows."""
    settings: list[Mapping[str, Any]] = []
    for row in rows:
        settings += [row["setting"]] if row["setting"] not in settings else []
    return [part for each in settings for part in (_words(each), "")]


def _words(setting: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in setting["versions"].items())
    sizes = "the benchmark's sizes"
    if setting["scale"] > 1:
        sizes = f"smaller sizes (--scale {setting['scale']:g}): no figures of KernelBench"
    gpu = f"{setting['gpu']}, " if "gpu" in setting else ""
    return f"At {sizes}. {gpu}{setting['machine']}, {setting['threads']} threads, {setting['budget']:g} s of search; {versions}."


def _said(row: Row) -> str:
    return str(row.get("reason", "")).replace("|", "/")
