"""Every rule and law in ONNX Runtime: `python bench/law_fuzz.py -o
bench/results/law_fuzz-cpu2.json`.

Each rule of the library and each law beside an operator is written as two models, its left and its
right side, where the optimizer would apply it: at typings of every dtype, of ranks 0 to 6, with
dims of 0 and 1. ONNX Runtime runs both on the same inputs, mostly without its own optimizations.
Results must be equal, floats within the criterion of docs/design/check.md, and the left side's must
be those of our definitions. One `--seed` gives the same comparisons again; an earlier file of the
same seed is continued, and its errors are tried again. Ends after so many comparisons, or
`--minutes`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "harness")]

from fuzz.law_judge import WRONG, compared  # noqa: E402
from fuzz.law_pairs import subjects  # noqa: E402
from rule_mutations import mutants  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.system.workers import Workers  # noqa: E402

COUNT = 100_000
TYPINGS, RUNS = 4, 8
"""Typings of a rule in a round, and inputs of each."""
LIMIT = 300.0
"""Seconds that a rule may take in a round."""
SAVED = 20
"""Rules between two writings of the results."""
LOST = "no answer in time"
COUNTED = ("verdicts", "typings", "dtypes", "ranks", "dims")
FIRST = ("onnx", "numpy", "fuzz.law_judge")


class Results:
    """The results so far, in a file from which a run continues."""

    def __init__(self, path: Path | None, head: dict[str, Any]) -> None:
        earlier = json.loads(path.read_text()) if path is not None and path.exists() else {}
        same = all(earlier.get(name) == value for name, value in head.items())
        self.path, self.head, self.found = path, head, earlier if same and earlier else {}
        self.total = {each: Counter(self.found.get(each, {})) for each in COUNTED}
        self.done = Counter(self.found.get("rounds", {}))
        self.comparisons = int(self.found.get("comparisons", 0))
        self.by_rule = Counter(self.found.get("comparisons by rule", {}))
        self.why: dict[str, Any] = self.found.get("without a comparison", {})
        self.wrong: list[Any] = self.found.get("wrong", [])
        self.seconds = float(self.found.get("seconds", 0.0))

    def keep(self, name: str, answer: dict[str, Any] | None) -> None:
        """Add the results of one rule."""
        self.done[name] += 1
        if answer is None:
            self.total["typings"][LOST] += 1
            self.why.setdefault(name, LOST)
            return
        for each in COUNTED:
            self.total[each].update(answer[each])
        self.comparisons += answer["comparisons"]
        self.seconds += answer["seconds"]
        self.by_rule[name] += answer["comparisons"]
        self.wrong += answer["wrong"]
        self.why.pop(name, None)
        if not self.by_rule[name]:
            self.why[name] = {**answer["typings"], **answer["verdicts"], **answer["why"]} or "no legal typing was drawn"

    def again(self, workers: Workers) -> None:
        """Try the errors of an earlier run once more; only those that persist stay."""
        tried = {json.dumps(each["job"]): each for each in self.wrong if "job" in each}
        self.wrong = [each for each in self.wrong if "job" not in each]
        for each in tried.values():
            answer = workers(each["job"]).result()
            self.wrong += [each] if answer is None else answer["wrong"]

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.head,
            "comparisons": self.comparisons,
            "rules": sum(1 for n in self.by_rule.values() if n),
            **{each: dict(sorted(counts.items())) for each, counts in self.total.items()},
            "seconds": round(self.seconds, 1),
            "without a comparison": dict(sorted(self.why.items())),
            "wrong": self.wrong,
            "comparisons by rule": dict(sorted(self.by_rule.items())),
            "rounds": dict(sorted(self.done.items())),
        }

    def write(self) -> None:
        if self.path is not None:
            self.path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")


def jobs(names: list[str], options: argparse.Namespace, done: Counter[str]) -> Iterator[dict[str, Any]]:
    """Rounds over all rules without end, each in another order; those that are done are left
    out."""
    number, seed = 0, options.seed
    while True:
        for name in Random(f"{seed} {number}").sample(names, len(names)):
            if done[name] <= number:
                yield {"name": name, "seed": seed + number, "typings": options.typings, "runs": options.runs}
        number += 1


def fuzz(options: argparse.Namespace, results: Results, names: list[str]) -> None:
    """Work until there are enough comparisons, or the time is over."""
    end = time.monotonic() + 60 * options.minutes
    workers = Workers("fuzz.law_judge:judged", options.workers, LIMIT, FIRST)
    asked: list[tuple[str, Any]] = []
    try:
        results.again(workers)
        for n, job in enumerate(jobs(names, options, Counter(results.done))):
            asked.append((job["name"], workers(job)))
            if len(asked) <= options.workers:
                continue
            name, answer = asked.pop(0)
            results.keep(name, answer.result())
            if n % SAVED == 0:
                results.write()
            if results.comparisons >= options.count or time.monotonic() > end:
                break
        for name, answer in asked:
            results.keep(name, answer.result())
    finally:
        workers.close()
        results.write()


def planted(count: int, seed: int, typings: int) -> dict[str, Any]:
    """The outcomes of changed rules and laws, most of them false, without asking a proof: those
    that the runtime distinguishes from true ones, and the others."""
    found: dict[str, Any] = {"found": [], "not compared": [], "equal": []}
    for rule, description in islice(mutants(seed), count):
        tally = compared(rule, seed, typings, trusted=True)
        wrong = any(tally.verdicts[v] for v in WRONG)
        found["found" if wrong else "equal" if tally.comparisons else "not compared"].append(description)
    return {"mutants": count, **{kind: len(each) for kind, each in found.items()}, "names": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="only this rule or law (may be given again)")
    parser.add_argument("--count", type=int, default=COUNT, help="comparisons after which it ends")
    parser.add_argument("--minutes", type=float, default=600.0, help="time after which it ends")
    parser.add_argument("--typings", type=int, default=TYPINGS, help="typings of a rule in a round")
    parser.add_argument("--runs", type=int, default=RUNS, help="inputs of each typing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--mutants", type=int, help="so many changed rules instead, each without a proof")
    parser.add_argument("-o", "--output", type=Path, help="the results, and what an earlier run found")
    options = parser.parse_args()
    if options.mutants:
        print(json.dumps(planted(options.mutants, options.seed, options.typings), indent=1))
        return 0
    names = options.only or list(subjects())
    if unknown := [n for n in names if n not in subjects()]:
        parser.error(f"{unknown[0]} is no rule or law; `taso-mirage substitutions list` has their names")
    head = {
        "bench": "law_fuzz",
        "device": runtime.device(),
        "versions": {"taso-mirage": __version__, "onnxruntime": runtime.child_version()},
        "seed": options.seed,
        "of": len(names),
        "typings of a rule in a round": options.typings,
        "inputs of a typing": options.runs,
    }
    results = Results(options.output, head)
    fuzz(options, results, names)
    found = results.as_dict()
    shown = {k: v for k, v in found.items() if k not in ("wrong", "comparisons by rule", "rounds")}
    print(json.dumps(shown, indent=1))
    for each in results.wrong:
        print(
            f"{each['name']}: {each['verdict']}: {each.get('found', '')}\n{each.get('left', '')}{each.get('right', '')}"
        )
    return 1 if results.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
