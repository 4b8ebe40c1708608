"""How well the model of a GPU ranks kernels, on goals that it was not fitted on.

    python bench/kernel_model.py [--shipped] [--goals]
    python bench/kernel_model.py --fit
    python bench/kernel_model.py --gather PLAN TRIALS ...

Without a GPU, from the measured programs of bench/results/kernel_trials-DEVICE.json: for every goal
the rank correlation of predicted with measured times, how many times as long as the best of all the
best of the first eight takes, and the first one. Coefficients are fitted on goals of other kinds
(FOLDS groups of kinds, each left out once), or are those that are shipped (`--shipped`). `--fit`
writes those anew, from all goals. `--gather` adds the measurements that
`kernel_trials.py` planned and took to the file; several plans follow each other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from taso_mirage.devices.cuda.device import Gpu, described  # noqa: E402
from taso_mirage.devices.device import Device  # noqa: E402
from taso_mirage.mugraph.kernel_seconds import FITTED, Coefficients, fitted, seconds_of_work  # noqa: E402
from taso_mirage.mugraph.tile_work import KernelWork  # noqa: E402

RESULTS = ROOT / "bench" / "results"
COEFFICIENTS = ROOT / "taso_mirage" / "mugraph" / FITTED
H200 = described(Gpu("NVIDIA H200", 90, 132, 227 * 1024, 2 * 3.201e9 * 6144 / 8))
FOLDS, FIRST, LEAST = 10, 8, 8
"""Groups of kinds that are left out in turn; how many are looked at, and of how many at least."""
STEPS, NEAR, FAR = 40, 1e-5, 3.0
"""Parameters of the fit: steps, and where it ends; logarithms of ratios count up to FAR."""
PRIOR, WHOLE = 0.02, 0.3
"""The weight of a coefficient that moves, and of the mean error of a goal beside the errors in
it."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Trials:
    """Measured programs: their goals, microseconds, and of each place in a program the work and
    the schedules of those kernels, with which programs have one there. `guessed` have the schedule
    that the generator of code guesses."""

    goals: NDArray[np.str_]
    us: Numbers
    guessed: NDArray[np.bool_]
    kernels: tuple[tuple[NDArray[np.bool_], KernelWork, tuple[Numbers, Numbers]], ...]

    @staticmethod
    def of(rows: Sequence[Sequence[Any]]) -> Trials:
        """Trials from lines of the file: a goal, microseconds, whether the schedule is guessed,
        kernels."""
        places = []
        for i in range(max(len(kernels) for *_, kernels in rows)):
            there = np.array([len(kernels) > i for *_, kernels in rows])
            table = np.array([kernels[i if len(kernels) > i else 0] for *_, kernels in rows], float).T
            places.append((there, KernelWork(*table[2:]), (table[0], table[1])))
        goals, us, guessed, _ = zip(*rows, strict=True)
        return Trials(np.array(goals), np.array(us, float), np.array(guessed, bool), tuple(places))

    def __getitem__(self, which: NDArray[np.bool_]) -> Trials:
        kernels = [
            (there[which], KernelWork(*[x[which] for x in astuple(work)]), (warps[which], stages[which]))
            for there, work, (warps, stages) in self.kernels
        ]
        return Trials(self.goals[which], self.us[which], self.guessed[which], tuple(kernels))

    def predicted(self, known: Coefficients, device: Device = H200) -> Numbers:
        """Microseconds."""
        found = np.zeros(len(self.us))
        for there, work, schedule in self.kernels:
            found += np.where(there, seconds_of_work(work, device, known, schedule), 0)
        return found * 1e6


def read(name: str) -> Trials:
    """The trials of a device."""
    return Trials.of(json.loads((RESULTS / f"kernel_trials-{name}.json").read_text())["trials"])


def kind(goal: str) -> str:
    """A goal without its sizes."""
    return re.split(r" (?=\w+=)", goal)[0].rstrip(" 0123456789x")


# ---------------------------------------------------------------- the fit


def fit(trials: Trials, start: Coefficients) -> Coefficients:
    """Least squares of the logarithms of ratios by Levenberg and Marquardt, over the logarithms of
    the coefficients: within each goal, and of its mean."""
    _, goal = np.unique(trials.goals, return_inverse=True)
    count = np.bincount(goal)
    weight, measured = 1 / np.sqrt(count)[goal], np.log(trials.us)
    first = np.log(np.array(astuple(start)))

    def errors(x: Numbers) -> Numbers:
        ratio = np.log(trials.predicted(Coefficients(*np.exp(x)))) - measured
        ratio = np.clip(ratio, -FAR, FAR)
        mean = np.bincount(goal, ratio) / count
        inner = ratio - mean[goal]
        inner = np.sign(inner) * np.minimum(np.abs(inner), np.sqrt(np.abs(inner))) * weight  # outliers count less
        return np.concatenate([inner, WHOLE * mean, PRIOR * np.sqrt(len(count)) * (x - first)])

    return Coefficients(*np.exp(_least(errors, first)))


def _least(errors: Callable[[Numbers], Numbers], start: Numbers) -> Numbers:
    """Where the sum of squares is least, near a start."""
    x, damping = start, 1e-2
    found = errors(x)
    for _ in range(STEPS):
        slopes = np.stack([(errors(x + 1e-3 * unit) - found) / 1e-3 for unit in np.eye(len(x))], axis=1)
        square, slope = slopes.T @ slopes, slopes.T @ found
        before = float(found @ found)
        for _ in range(8):
            step = -np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-6), slope)
            tried = errors(x + np.clip(step, -1, 1))
            if tried @ tried < before:
                break
            damping *= 4
        else:
            return x
        x, found, damping = x + np.clip(step, -1, 1), tried, max(damping / 3, 1e-6)
        if before - found @ found < NEAR * before:
            break
    return x


def left_out(trials: Trials, start: Coefficients) -> Numbers:
    """Predictions for each goal by a fit on goals of other kinds."""
    kinds = np.array([kind(goal) for goal in trials.goals])
    found, known = np.zeros(len(trials.us)), sorted({*kinds})
    for i in range(FOLDS):
        out = np.isin(kinds, known[i::FOLDS])
        found[out] = trials[out].predicted(fit(trials[~out], start))
    return found


# ---------------------------------------------------------------- how good it is


@dataclass(frozen=True, slots=True)
class Ranking:
    """The quality of the ranking of one goal."""

    goal: str
    correlation: float
    of_first: float
    first: float


def rankings(trials: Trials, predicted: Numbers) -> list[Ranking]:
    """The rankings of the goals with enough programs whose schedules were guessed, as the search
    ranks them."""
    found = []
    for goal in dict.fromkeys(trials.goals):
        here = (trials.goals == goal) & trials.guessed
        if here.sum() < LEAST:
            continue
        us, order = trials.us[here], np.argsort(predicted[here], kind="stable")
        best = us.min()
        correlation = float(np.corrcoef(_ranks(predicted[here]), _ranks(us))[0, 1])
        found.append(Ranking(str(goal), correlation, us[order[:FIRST]].min() / best, us[order[0]] / best))
    return found


def _ranks(x: Numbers) -> Numbers:
    return np.argsort(np.argsort(x, kind="stable"), kind="stable").astype(float)


def show(found: Sequence[Ranking], goals: bool) -> None:
    for each in sorted(found, key=lambda r: r.correlation) if goals else ():
        print(
            f"{each.goal:28} correlation {each.correlation:6.3f}, of the first {FIRST} {each.of_first:.3f}, "
            f"first {each.first:.3f}"
        )
    table = np.array([astuple(r)[1:] for r in found])
    means = np.exp(np.log(table[:, 1:]).mean(axis=0))
    print(
        f"{len(found)} goals: rank correlation {table[:, 0].mean():.3f} on average, least {table[:, 0].min():.3f}, "
        f"0.8 or more in {np.sum(table[:, 0] >= 0.8)}, negative in {np.sum(table[:, 0] < 0)}; the best of the first "
        f"{FIRST} {means[0]:.3f} times the best (worst {table[:, 1].max():.2f}, within 5 % in "
        f"{np.sum(table[:, 1] <= 1.05)}), the first {means[1]:.3f} times"
    )


# ---------------------------------------------------------------- the file


def gather(paths: Sequence[Path]) -> None:
    """Write the file from pairs of a plan and its measurements; trials of other goals stay."""
    rows, device = list[Any](), "H200"
    for plan, measured in zip(paths[::2], paths[1::2], strict=True):
        with gzip.open(plan, "rt") as file:
            planned = {each["id"]: each for each in map(json.loads, file)}
        for found in map(json.loads, measured.read_text().splitlines()):
            trial = planned[found["id"]]
            if found.get("us") and "work" in trial and not trial.get("roles"):
                rows.append(_row(trial, found))
    path = RESULTS / f"kernel_trials-{device}.json"
    new = {goal for goal, *_ in rows}
    rows = [row for row in json.loads(path.read_text())["trials"] if row[0] not in new] + rows
    result = {"bench": "kernel_trials", "device": device, "unit": "us", "date": str(date.today())}
    result |= {"fields": ["warps", "stages", *(x.name for x in fields(KernelWork))], "trials": rows}
    path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    print(f"{len(rows)} trials")


def _row(trial: Mapping[str, Any], found: Mapping[str, Any]) -> list[Any]:
    """A line of the file, its numbers to four digits."""
    pairs = zip(found["launches"], trial["work"], strict=True)
    kernels = [[x["warps"], x["stages"], *(_short(n) for n in work)] for x, work in pairs]
    return [trial["goal"], _short(found["us"]), int("schedule" not in trial), kernels]


def _short(n: float) -> float | int:
    found = float(f"{n:.4g}")
    return int(found) if found == int(found) else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="H200")
    parser.add_argument("--shipped", action="store_true", help="the coefficients that are shipped, fitted on all")
    parser.add_argument("--goals", action="store_true", help="a line for each goal")
    parser.add_argument("--fit", action="store_true", help="write the coefficients")
    parser.add_argument("--gather", nargs="+", type=Path, metavar="FILE", help="plans and what was measured of each")
    options = parser.parse_args()
    if options.gather:
        gather(options.gather)
        return
    trials = read(options.device)
    if options.fit:
        found = fit(trials, fitted())
        values = {x.name: float(f"{getattr(found, x.name):.4g}") for x in fields(found)}
        said = {"device": options.device, "date": str(date.today()), "trials": len(trials.us)}
        COEFFICIENTS.write_text(json.dumps(said | {"coefficients": values}, indent=1) + "\n")
        return
    show(rankings(trials, trials.predicted(fitted()) if options.shipped else left_out(trials, fitted())), options.goals)


if __name__ == "__main__":
    main()
