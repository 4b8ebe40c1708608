"""A table of operators' seconds, and how well a correction of the roofline predicts those of a
model that it was not fitted to.

    python bench/cost_table.py [--device cpu|cuda] [--full] [--seconds 240] [--only NAME ...] -o FILE.jsonl
    python bench/cost_table.py --score FILE.jsonl

Measures every distinct operator of the models, one model after the other, and writes the table
after each. The score leaves out one model at a time: the correction is fitted to the rows of the
others. Rows of the model whose setting another model has, too, are known by the table and are not
in the score.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.measure.cost_cache import CostCache  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.rewriting.equation import work_terms  # noqa: E402
from taso_mirage.search.config import Config, representative  # noqa: E402
from taso_mirage.search.cost import MeasuredCost  # noqa: E402
from taso_mirage.search.passes import Context  # noqa: E402
from taso_mirage.search.prediction import CostOrigin, CostTable, Row, digest, fitted, read_table, row  # noqa: E402
from taso_mirage.search.settings import FusionContext  # noqa: E402
from taso_mirage.targets.known import target  # noqa: E402

UNKNOWN = {CostOrigin.TABLE: 1.3, CostOrigin.LEARNED: 4.0, CostOrigin.ROOFLINE: 8.0}
"""Factors of a table that has too few models to tell."""
FAILURES = (TasoMirageError, LookupError, TypeError, ValueError, ImportError, OSError)


def measured_rows(
    name: str, small: bool, device: str, cache: CostCache, seen: set[tuple[str, str]], end: float
) -> Iterator[Row]:
    """Rows of the distinct operators of one model, until the monotonic time `end`."""
    model = from_ir(ir.from_proto(models.build(name, small=small)))
    context = Context({"com.microsoft": 1, **model.opsets}, representative(model, Config()), target=target(device))
    term = MeasuredCost(context, cache)
    term.deadline = end
    for node in work_terms(model.nodes()):
        try:
            key = name, digest(node, context)
        except FAILURES:
            continue
        if key in seen or time.monotonic() > end:
            continue
        seen.add(key)
        seconds = term._time(FusionContext(node))
        if seconds is not None and (found := row(name, node, context, seconds)) is not None:
            yield found


def errors(rows: Sequence[Row]) -> dict[str, list[list[float]]]:
    """Of every model left out, |log(predicted / measured)| of its rows: by the roofline, by the
    roofline times what the others take of theirs (the median), and by the correction."""
    found: dict[str, list[list[float]]] = {}
    for name in sorted({r.model for r in rows}):
        others = [r for r in rows if r.model != name]
        known = {r.digest for r in others}
        own = [r for r in rows if r.model == name and r.digest not in known]
        if others and own:
            correction, usual = fitted(others), float(np.median([r.error for r in others]))
            predicted = [(0.0, usual, correction.log(r)) for r in own]
            found[name] = [[abs(r.error - p[i]) for r, p in zip(own, predicted, strict=True)] for i in range(3)]
    return found


def together(found: dict[str, list[list[float]]]) -> list[list[float]]:
    return [[e for each in found.values() for e in each[i]] for i in range(3)]


def factors(rows: Sequence[Row]) -> dict[CostOrigin, float]:
    """What nine of ten rows of left out models are off by, at most."""
    found = errors(rows)
    if len(found) < 2:
        return UNKNOWN
    roofline, _, learned = (round(float(np.exp(np.percentile(e, 90))), 3) for e in together(found))
    return {**UNKNOWN, CostOrigin.ROOFLINE: roofline, CostOrigin.LEARNED: learned}


def show(rows: Sequence[Row]) -> None:
    found = errors(rows)
    print(f"{'|log ratio|, p50 and p90':24} {'rows':>5} {'roofline':>12} {'scaled':>12} {'correction':>12}")
    for name, each in [*found.items(), ("all", together(found))]:
        percentiles = (np.percentile(e, (50, 90)) for e in each)
        print(f"{name:24} {len(each[0]):5} " + " ".join(f"{p[0]:6.2f}{p[1]:6.2f}" for p in percentiles))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--full", action="store_true", help="models of full size, not small ones")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--only", nargs="+", default=list(models.NAMES), metavar="NAME")
    parser.add_argument("--score", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.score:
        return show(read_table(options.score).rows)
    end, rows, seen = time.monotonic() + options.seconds, [], set()
    for name in options.only:
        if time.monotonic() > end:
            break
        try:
            rows += measured_rows(name, not options.full, options.device, cache := CostCache(None), seen, end)
        except FAILURES as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        device = MeasuredCost(Context({}, {}, target=target(options.device)), cache).device()
        table = CostTable(datetime.now(UTC).date().isoformat(), device, factors(rows), tuple(rows))
        if options.output:
            options.output.write_text(table.text())
        print(f"{name}: {len(rows)} rows", file=sys.stderr, flush=True)
    if len(errors(rows)) > 1:
        show(rows)


if __name__ == "__main__":
    main()
