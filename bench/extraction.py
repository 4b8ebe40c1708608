"""Extraction from the e-graphs of real models' parts: our branch and bound against an integer
program that HiGHS solves.

    python bench/extraction.py [NAME ...] [--full] [--budgets 4,30] [--parts 3] [--limit 10]
    [--graphs DIR]

The costliest parts of each model, after the passes, are saturated as `--strategy saturate` does it,
with each budget (seconds of saturation; costs are a roofline); both extractions in its course, from
the small e-graph and from the large one, are problems. Each is solved by `search/extract.py` and by
`extraction_milp.py`, with the same graphs to start from, each within the limit. Written to
bench/results/extraction-cpu2.json after each row, for ours, for `milp`, and for `one`, the integer
program for the cheapest graph alone: the cheapest graph's cost, whether it is known to be the
cheapest, the share of its cost that a better one might save, how many graphs are found, and seconds
of the clock and of the processor (on a machine that others use the clock says more about them).
E-graphs depend on the clock: `--graphs` keeps them, and reads them where they were kept.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx_ir as ir
import scipy

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import extraction_milp  # noqa: E402
from matching import Timer, passed  # noqa: E402
from rows import Rows  # noqa: E402

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import cores  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.rewriting.index import Rules  # noqa: E402
from taso_mirage.search import saturate  # noqa: E402
from taso_mirage.search.bounds import ClassOptions  # noqa: E402
from taso_mirage.search.cost import Cost, Roofline  # noqa: E402
from taso_mirage.search.extract import ChosenOptions, Extraction, extract  # noqa: E402
from taso_mirage.search.partition import model_parts  # noqa: E402
from taso_mirage.search.passes import Context, for_search, pass_order  # noqa: E402
from taso_mirage.search.rulesets import rules  # noqa: E402
from taso_mirage.search.search import Budget, directions  # noqa: E402

NAMES = ("bert", "resnet50", "llama_decode", "vit", "inception_v3")


@dataclass(frozen=True, slots=True)
class Problem:
    """One extraction, and the graphs that were known before it."""

    case: str
    options: ClassOptions
    roots: Sequence[int]
    known: Sequence[ChosenOptions]


def problems(name: str, small: bool, budgets: Sequence[float], most: int) -> Iterator[Problem]:
    """The extractions in the saturation of a model's costliest parts."""
    equations = rules()
    model = from_ir(ir.from_proto(models.build(name, small=small)))
    context = Context({"com.microsoft": 1, **model.opsets}, dict.fromkeys(model.symbols(), 8))
    passes = pass_order(equations)
    model = passed(model, passes[:2], context, Timer())
    every, cost = Rules(directions(for_search(equations))), Cost(Roofline(context))
    distinct = sorted(dict.fromkeys(p.graph for p in model_parts(model.graph.outputs)), key=lambda g: -cost(g.outputs))
    for place, graph in enumerate(distinct[:most]):
        for seconds in budgets:
            case = f"{name}{' ' if small else ' (full) '}{place + 1}, {seconds:g} s"
            yield from _recorded(
                case, lambda g=graph, s=seconds: saturate.saturated(g, every, passes[1], cost, context, Budget(s))
            )


def _recorded(case: str, work: Callable[[], object]) -> list[Problem]:
    found: list[Problem] = []

    def record(options: ClassOptions, roots: Sequence[int], known: Sequence[ChosenOptions], *rest: Any) -> Extraction:
        found.append(Problem(f"{case}, extraction {len(found) + 1}", options, roots, known))
        return extract(options, roots, known, *rest)

    with patch.object(saturate, "extract", record):
        work()
    return found


def solved(solve: Callable[[], Extraction]) -> dict[str, Any]:
    """The result of one solver, and its seconds."""
    start, processor = time.perf_counter(), time.process_time()
    found = solve()
    spent, used = time.perf_counter() - start, time.process_time() - processor
    return {
        "cost": found.found[0][0],
        "exact": found.exact,
        "gap": round(found.gap, 5),
        "graphs": len(found.found),
        "costs": [cost for cost, _ in found.found],
        "steps": found.steps,
        "seconds": round(spent, 3),
        "processor": round(used, 3),
    }


def row(problem: Problem, slack: float, limit: float) -> dict[str, Any]:
    """The row of one problem: both solvers."""
    given = problem.options, problem.roots, problem.known, saturate.CANDIDATES, slack
    end = time.monotonic() + limit
    ours = solved(lambda: extract(*given, saturate.STEPS, lambda: time.monotonic() > end))
    program = solved(lambda: extraction_milp.extract(*given, limit))
    alone = solved(lambda: extraction_milp.extract(*given[:3], 1, 1.0, limit))
    size = {"classes": len(problem.options), "options": sum(map(len, problem.options.values()))}
    return {"case": problem.case, "limit": limit, **size, "ours": ours, "milp": program, "one": alone}


def show(r: dict[str, Any]) -> None:
    both = [
        f"{k} {r[k]['cost']:.6g}, gap {r[k]['gap']:.4f}, {r[k]['graphs']} graphs, {r[k]['seconds']:.2f} s ({r[k]['processor']:.2f})"
        for k in ("ours", "milp", "one")
    ]
    print(f"{r['case']:46} {r['classes']:4} classes {r['options']:5} options: {'; '.join(both)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--full", action="store_true", help="the full sizes of the models")
    parser.add_argument("--budgets", default="4,30", help="seconds of a saturation, separated by commas")
    parser.add_argument("--parts", type=int, default=3, help="so many parts of a model, at most")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of one extraction, at most")
    parser.add_argument(
        "--graphs", type=Path, help="a folder of your own that keeps the e-graphs (pickles: never read a stranger's)"
    )
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    path = options.output or ROOT / "bench" / "results" / f"extraction-cpu{cores()}.json"
    versions = {"taso-mirage": __version__, "scipy": scipy.__version__}
    rows = Rows(path, {"bench": "extraction", "device": runtime.device(), "versions": versions, "unit": "s"})
    for name in options.names:
        budgets = [float(each) for each in options.budgets.split(",")]
        file = (
            None if options.graphs is None else options.graphs / f"{name}-{'full' if options.full else 'small'}.pickle"
        )
        if file is not None and file.exists():
            found = pickle.loads(file.read_bytes())
        else:
            found = list(problems(name, not options.full, budgets, options.parts))
        if file is not None:
            file.write_bytes(pickle.dumps(found))
        for problem in found:
            made = row(problem, Budget(0).alpha, options.limit)
            show(made)
            rows.keep(made)


if __name__ == "__main__":
    main()
