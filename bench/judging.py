"""Rules of strangers as `substitutions verify` judges them: false equations by the class of their
mistake, and true ones.

    python bench/judging.py [CLASS ...] [--typings 320] [--workers 2]

`tests/equations` has the rules: of each class `false_CLASS.toml` those that are false somewhere,
and `true.toml`, `true_CLASS.toml` those that hold for every typing. Prints a line a class and
writes bench/results/judging-cpu2.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from rows import Rows  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import processor_and_cores  # noqa: E402
from taso_mirage.prove.rules.ladder import WANTED  # noqa: E402
from taso_mirage.prove.rules.recheck import RuleVerdict, recheck_rules  # noqa: E402
from taso_mirage.rewriting.library import read  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "judging-cpu2.json"
EQUATIONS = ROOT / "tests" / "equations"


def ended(verdict: RuleVerdict) -> str:
    """How a rule fared: accepted (`proved`, or `bounded`: not all that was enumerated is proved),
    `refuted` with numbers, or without a proof."""
    if not verdict.problem:
        return "bounded" if verdict.kind == "bounded" else "proved"
    return "refuted" if verdict.cases.get("refuted") else "unproved"


def judged(file: Path, typings: int, workers: int) -> dict[str, Any]:
    """The row of one file."""
    start = time.monotonic()
    verdicts = list(recheck_rules(read(file), 0, typings, workers))
    truth, _, kind = file.stem.partition("_")
    false = truth == "false"
    odd = [v.name for v in verdicts if bool(v.problem) != false]
    counts = Counter(map(ended, verdicts))
    seconds = round(time.monotonic() - start)
    name = {
        "case": file.stem,
        "class": kind.replace("_", " ") or "all kinds",
        "true": not false,
        "equations": len(verdicts),
    }
    return {**name, **dict(sorted(counts.items())), "misjudged": odd, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="classes, by the name of their file")
    parser.add_argument("--typings", type=int, default=WANTED)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    files = sorted(EQUATIONS.glob("false_*.toml")) + sorted(EQUATIONS.glob("true*.toml"))
    chosen = [file for file in files if not options.names or file.stem in options.names]
    head = {"bench": "judging", "device": processor_and_cores(), "versions": {"taso-mirage": __version__}}
    rows = Rows(RESULTS, {**head, "typings": options.typings})
    false_ones = 0
    for file in chosen:
        row = judged(file, options.typings, options.workers)
        print(row, flush=True)
        rows.keep(row)
        false_ones += 0 if row["true"] else len(row["misjudged"])
    return int(false_ones > 0)


if __name__ == "__main__":
    sys.exit(main())
