"""Operators' measured seconds, the correction of the roofline that is fitted to them, and how well
it predicts those of a model that it was not fitted to.

    python bench/cost_table.py [--device cpu|cuda] [--full] [--seconds 600] [--only NAME|FILE ...]
        -o FILE.jsonl
    python bench/cost_table.py --score FILE.jsonl ...
    python bench/cost_table.py --fit FILE.jsonl ...

The first measures the operators of models and those that a short search makes of them, with the
producers that the runtime runs them with, one model after the other, and writes the table after
each. The score leaves out one model at a time: the correction is fitted to the rows of the others,
without rows that another model has, too. `--fit` writes the correction of a device to
`taso_mirage/search/operator_seconds.json`, which the package has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import Model  # noqa: E402
from taso_mirage.ir.terms import Node  # noqa: E402
from taso_mirage.measure.cost_cache import CostCache  # noqa: E402
from taso_mirage.onnx_io import from_ir, load  # noqa: E402
from taso_mirage.search.config import STRATEGIES, Config, representative  # noqa: E402
from taso_mirage.search.cost import Cost, MeasuredCost, Roofline  # noqa: E402
from taso_mirage.search.effort import QUICK  # noqa: E402
from taso_mirage.search.fusion_context import FusionContext, description  # noqa: E402
from taso_mirage.search.prediction import FITTED, OperatorWork, Row, fitted, fusion_label, operator_work  # noqa: E402
from taso_mirage.search.rewriter import Rewriter  # noqa: E402
from taso_mirage.search.rulesets import rules  # noqa: E402
from taso_mirage.search.search import Budget  # noqa: E402
from taso_mirage.targets.known import target  # noqa: E402

VOTES = 8
"""How often a label must have been seen."""
LOOK, MOST = 8.0, 250
"""Seconds of the short search, and fusion contexts of it that are measured at most."""
FAILURES = (TasoMirageError, LookupError, TypeError, ValueError, ImportError, OSError)


@dataclass
class Table:
    """Rows measured on one device; `votes`: how often the runtime ran a label as one with its
    producer, and not."""

    device: str = ""
    machine: str = ""
    made: str = ""
    rows: list[Row] = field(default_factory=list)
    votes: Counter[tuple[str, bool]] = field(default_factory=Counter)

    @property
    def joined(self) -> dict[str, float]:
        """For each label with enough votes, the share of votes that it runs as one."""
        both = {name: (self.votes[name, True], self.votes[name, False]) for name, _ in self.votes}
        return {name: round(one / (one + two), 2) for name, (one, two) in both.items() if one + two >= VOTES}

    def text(self) -> str:
        votes = [[name, one, n] for (name, one), n in sorted(self.votes.items())]
        about = {"device": self.device, "machine": self.machine, "made": self.made, "votes": votes}
        rows = ([r.model, r.digest, *asdict(r.work).values(), r.seconds] for r in self.rows)
        return "\n".join(json.dumps(each, separators=(",", ":")) for each in (about, *rows)) + "\n"


def read(paths: Sequence[Path]) -> Table:
    """The tables of some files, which are of one device, as one."""
    found = Table()
    for path in paths:
        about, *rows = map(json.loads, path.read_text().splitlines())
        found.device, found.machine, found.made = about["device"], about["machine"], about["made"]
        found.votes.update({(name, one): n for name, one, n in about["votes"]})
        found.rows += [Row(model, digest, OperatorWork(*rest), seconds) for model, digest, *rest, seconds in rows]
    found.rows = list({r.digest: r for r in found.rows}.values())
    return found


class Noted(Roofline):
    """The roofline, with the terms that the runtime runs as one: notes the fusion contexts that it
    is asked for, and those that were run as one."""

    def __init__(self, term: MeasuredCost, votes: Counter[tuple[str, bool]]) -> None:
        super().__init__(term.context)
        self.term, self.votes = term, votes
        self.fusions: dict[FusionContext, None] = {}

    def seconds(self, fusion: FusionContext) -> float:
        self.fusions[fusion] = None
        return super().seconds(fusion)

    def joined(self, producer: FusionContext, node: Node) -> bool:
        found = self.term.joined(producer, node)
        self.votes[fusion_label(FusionContext(node, (producer,))), found] += 1
        return found


def opened(name: str, small: bool) -> Model:
    return load(Path(name)) if name.endswith(".onnx") else from_ir(ir.from_proto(models.build(name, small=small)))


def measure(name: str, small: bool, device: str, table: Table, seen: set[str], end: float) -> Iterator[Row]:
    """Rows of the fusion contexts that a short search of one model asks for, until the monotonic
    time `end`."""
    model = opened(name, small)
    rewriter = Rewriter(model, target(device), [(representative(model, Config()), 1.0)], rules(), {}, None)
    term = MeasuredCost(rewriter.context, CostCache(None))
    table.device, table.machine = device, term.device()
    noted = Noted(term, table.votes)
    rewriter.cost = rewriter._roofline = Cost(noted)
    rewriter.cost(model.graph.outputs)
    normal, steps, _ = rewriter.passes()
    budget = Budget(min(LOOK, end - time.monotonic()), QUICK.states, QUICK.patience, matches=QUICK.matches)
    rewriter.search(normal, steps, STRATEGIES["best-first"][0], budget, lambda done, total: None)
    found = list(noted.fusions)
    for fusion in random.Random(0).sample(found, min(MOST, len(found))):
        if time.monotonic() > end:
            break
        try:
            digest = hashlib.sha256(description(fusion, rewriter.context).encode()).hexdigest()[:12]
            asked = operator_work(fusion, rewriter.context)
        except FAILURES:
            continue
        times = [term._time(each) for each in (fusion, *fusion.producers)]
        if digest not in seen and asked is not None and None not in times:
            seen.add(digest)
            yield Row(Path(name).stem, digest, asked, term.seconds(fusion))


def errors(rows: Sequence[Row]) -> dict[str, list[list[float]]]:
    """For each model left out, |log(predicted / measured)| of its rows: by the roofline, by the
    roofline times the model's own median, and by the correction."""
    found: dict[str, list[list[float]]] = {}
    for name in sorted({r.model for r in rows}):
        others, own = ([r for r in rows if (r.model == name) is mine] for mine in (False, True))
        known = {r.digest for r in others}
        if others and (own := [r for r in own if r.digest not in known]):
            correction, usual = fitted(others, {}), float(np.median([r.error for r in own]))
            predicted = [(0.0, usual, correction.log(r.work)) for r in own]
            found[name] = [[abs(r.error - p[i]) for r, p in zip(own, predicted, strict=True)] for i in range(3)]
    return found


def show(rows: Sequence[Row]) -> None:
    found = errors(rows)
    everything = [[e for each in found.values() for e in each[i]] for i in range(3)]
    print(f"{'|log ratio|, p50 and p90':24} {'rows':>5} {'roofline':>12} {'scaled':>12} {'correction':>12}")
    for name, each in [*found.items(), ("all", everything)]:
        percentiles = (np.percentile(e, (50, 90)) for e in each)
        print(f"{name:24} {len(each[0]):5} " + " ".join(f"{p[0]:6.2f}{p[1]:6.2f}" for p in percentiles))


def write_correction(table: Table) -> None:
    path = ROOT / "taso_mirage" / "search" / FITTED
    every: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    about = {"machine": table.machine, "date": table.made, "rows": len(table.rows)}
    every[table.device] = {**about, **asdict(fitted(table.rows, dict(sorted(table.joined.items()))))}
    text = json.dumps(every, separators=(",", ":"))
    path.write_text(text.replace('],"', '],\n"').replace('},"', '},\n"').replace(',"labels', ',\n"labels') + "\n")
    print(f"wrote {path}: {len(table.rows)} rows, {len(table.joined)} labels joined")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--full", action="store_true", help="models of full size, not small ones")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", nargs="+", default=list(models.NAMES), metavar="NAME")
    parser.add_argument("--score", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--fit", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.score:
        return show(read(options.score).rows)
    if options.fit:
        return write_correction(read(options.fit))
    end, table, seen = time.monotonic() + options.seconds, Table(made=datetime.now(UTC).date().isoformat()), set[str]()
    for name in options.only:
        if time.monotonic() > end:
            break
        try:
            table.rows += measure(name, not options.full, options.device, table, seen, end)
        except FAILURES as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        if options.output:
            options.output.write_text(table.text())
        print(f"{name}: {len(table.rows)} rows", file=sys.stderr, flush=True)
    show(table.rows)


if __name__ == "__main__":
    main()
