"""Goals that nobody tuned for as rows of `kernels_h100.py`: searched, tuned and timed beside
PyTorch's peers (`goal_peers.py`) on one NVIDIA GPU.

    python bench/goal_rows.py [ROW ...] [--search-only] [--searched FILE] [--seconds 480]
        [--missing] [--keep-peers] [-o FILE]

The rows are the common forms at sizes that fill a GPU (`goal_forms.LARGE`), products that are the
libraries' ground (`kernel_goals.py`), and of each model of the corpus the region with most
operators at SCALE times its sizes. `--searched FILE` keeps the muGraphs of the search, which needs
no GPU (`--search-only`), and reads those that it has.

A row has up to three jobs: our programs are compiled, checked and tuned; so are the kernels of a
plan around a library's products (`goal_plans.py`); and the peers are compiled, checked and timed.
Jobs run in processes of their own with `--limit` seconds each, so that one that ends badly costs
its row alone; one at a time holds the clock (`goal_times.py`). Rows are written as they come; after
`--seconds` no other begins. `--missing` and `--keep-peers` continue an earlier run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import goal_peers  # noqa: E402
import goal_plans  # noqa: E402
import goal_times  # noqa: E402
from goal_corpus import CORPUS  # noqa: E402
from goal_forms import LARGE  # noqa: E402
from kernel_goals import GOALS  # noqa: E402
from rows import Rows  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.emit import tune  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.forms.base.form import GPU_GOALS, form_of  # noqa: E402
from taso_mirage.ir.model import StoredWeight  # noqa: E402
from taso_mirage.ir.terms import Graph, substitute, topological, users, variable, weight, with_args  # noqa: E402
from taso_mirage.lowering.cuda import CudaLowering  # noqa: E402
from taso_mirage.mugraph.checkpoint import from_json, to_json  # noqa: E402
from taso_mirage.mugraph.search import superoptimize  # noqa: E402
from taso_mirage.onnx_io import from_ir, to_ir  # noqa: E402
from taso_mirage.onnx_io.build import standalone  # noqa: E402
from taso_mirage.operators.ops import traits  # noqa: E402
from taso_mirage.operators.work import size  # noqa: E402
from taso_mirage.pipeline import optimize_model  # noqa: E402
from taso_mirage.pipeline.fuse.kinds import find_kinds  # noqa: E402
from taso_mirage.regions.contained import raised  # noqa: E402
from taso_mirage.rewriting.text import parse_graph  # noqa: E402
from taso_mirage.search.config import Config  # noqa: E402
from taso_mirage.system.workers import Workers  # noqa: E402

SCALE, LEAST, MOST = 8, 16, 1 << 14
"""The factor of the sizes of a corpus, and the sizes that grow: heads and batches stay, and what is
larger is no size."""
OPERATORS = 3
"""The least number of operators of a region."""
PARTS = 6
"""The muGraphs of a kernel beside a library's product that are tuned."""
LAYOUTS = ("transpose", "cast")
"""The operators around a convolution that the neighbours in a model have, or need not."""
CAPABILITY = 90
"""The GPU for which kernels of forms are made: sm_90."""
PRODUCTS = (
    "norm product gelu 128",
    "residual norm product 32",
    "product relu 197",
    "swiglu 64",
    "ViT attention 8",
    "window attention",
    "group norm 8",
    "log softmax",
)


# ---------------------------------------------------------------- rows


def rows() -> dict[str, Callable[[], Graph]]:
    """The goals by the names of their rows, in single precision or their own."""
    found = {f"form: {name}": made for name, made in LARGE.items()}
    found |= {f"goal: {name}": GOALS[name] for name in PRODUCTS}
    corpus = json.loads(CORPUS.read_text())
    for model in corpus["models"]:
        scaled = [g for each in corpus["regions"] if each["model"] == model and (g := enlarged(each["goal"]))]
        largest = max(scaled, key=lambda g: len(operators(g)), default=None)
        if largest is not None and len(operators(largest)) >= OPERATORS:
            found[f"region: {model}"] = partial(_itself, largest)
    return found


def _itself(graph: Graph) -> Graph:
    return graph


def operators(graph: Graph) -> list[str]:
    return [n.op for n in graph if n.args and n.op != "item"]


def enlarged(lines: Sequence[str]) -> Graph | None:
    """A goal of a corpus with SCALE times its sizes; None where some of them are products or sums
    of others that do not grow alike."""
    grown = re.sub(r"(?<![\w.'+-])(\d+)(?![\w.'])", lambda m: str(_grown(int(m[1]))), "\n".join(lines))
    with suppress(TasoMirageError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return parse_graph(grown)
    return None


def _grown(size: int) -> int:
    return SCALE * size if LEAST <= size <= MOST else size


@cache
def goal(case: str) -> Graph:
    """The goal of a row in half precision."""
    return goal_peers.with_floats(rows()[case](), "float16")


@cache
def own_goal(case: str) -> Graph:
    """The goal for which kernels are searched: of a convolution that a form has kernels for, the
    term that a model has in its place, with the operators that it fuses."""
    computed = [n for n in formed_goal(case) if n.args and n.op not in LAYOUTS]
    if len(computed) > 1 or form_of(computed[0]) is None:
        return goal(case)
    (node,) = computed
    leaves = [variable(f"x{i}", x.tensor) for i, x in enumerate(node.args)]
    return Graph(tuple(leaves), (with_args(node, tuple(leaves)),))


@cache
def formed_goal(case: str) -> Graph:
    """The goal of a row with the terms of forms that a model has in the places of its
    convolutions."""
    graph = goal(case)
    if not any(traits(n).windowed for n in graph if n.args):
        return graph
    x, *others = graph.inputs
    weights = {leaf: weight(leaf.attr("name"), leaf.tensor) for leaf in others}
    rng = np.random.default_rng(0)
    held = {leaf.attr("name"): StoredWeight(rng.normal(size=leaf.shape).astype(leaf.dtype)) for leaf in others}
    model = from_ir(to_ir(standalone(Graph((x,), substitute(graph.outputs, weights)), {"": 20}, held)))
    model = optimize_model(model, Config(measure=False, budget=30.0)).model  # which puts pads into convolutions
    kinds = find_kinds(model, {}, CudaLowering(H100, "", CAPABILITY), lambda: False, raised)
    made = kinds.model.graph.outputs
    weights = [n for n in topological(made) if n.op == "weight"]
    inputs = {leaf: variable(leaf.attr("name"), leaf.tensor) for leaf in weights}
    given = (*kinds.model.graph.inputs, *inputs.values())
    formed = Graph(given, substitute(made, inputs))
    return formed if any(form_of(n) is not None for n in formed if n.args) else graph


def searched(case: str, best: int, budget: float) -> list[dict[str, Any]]:
    """The muGraphs of a row, the fastest by the model first, as JSON."""
    graph = own_goal(case)
    by_hand = GPU_GOALS.read(graph)
    if by_hand is not None:
        return [to_json(each.graph) for each in by_hand.mugraphs(graph, H100)[:best]]
    return [to_json(each.graph) for each in superoptimize(graph, best=best, budget=budget, device=H100)]


def searched_both(case: str, best: int, budget: float) -> tuple[list[dict[str, Any]], goal_plans.Plan]:
    return searched(case, best, budget), searched_plan(case, PARTS, budget)


def searched_plan(case: str, best: int, budget: float) -> goal_plans.Plan:
    """The steps of a row around its large products, with the muGraphs of the kernels; none where it
    has no such product, or a step has no kernel."""
    formed = formed_goal(case)
    computed = [n for n in formed if n.args and n.op not in LAYOUTS]
    steps = goal_plans.plan(formed) if len(computed) > 1 else []
    try:
        for step in steps:
            if "goal" in step:
                graph = from_json(step["goal"])
                form = GPU_GOALS.read(graph)
                found = (
                    form.mugraphs(graph, H100)[:best]
                    if form is not None
                    else superoptimize(graph, best=best, budget=budget, device=H100)
                )
                step["graphs"] = [to_json(each.graph) for each in found]
    except TasoMirageError:
        return []
    return steps


# ---------------------------------------------------------------- the run


class Side:
    """One kind of jobs in processes of their own, at most `count` at a time."""

    def __init__(self, side: str, goal: Callable[[str], Graph], count: int, options: argparse.Namespace) -> None:
        self.goal = goal
        self.workers = Workers(f"goal_times:{goal_times.step.__name__}", count, options.limit, ("torch", "triton"))
        self.side, self.options, self.threads = side, options, ThreadPoolExecutor(count)

    def __call__(self, case: str, found: Mapping[str, Any]) -> Future[dict[str, Any]]:
        return self.threads.submit(self._asked, case, found)

    def _asked(self, case: str, found: Mapping[str, Any]) -> dict[str, Any]:
        if time.perf_counter() > self.options.end:
            return {"problem": "no time was left"}
        settings = {"workers": self.options.workers, "tuning": self.options.tuning}
        job = {"side": self.side, "goal": to_json(self.goal(case)), **found, **settings}
        answer = self.workers(job).result()
        return {"problem": "late, or its process ended"} if answer is None else answer

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        self.workers.close()


def shown(row: Mapping[str, Any]) -> str:
    """A line for a row."""
    problems = "; ".join(f"{k}: {row[k]}" for k in ("problem", "peer_problem") if k in row)
    if "ours" not in row or not row.get("baselines"):
        return f"{row['case'][:40]:40} {problems[:200]} {row.get('notes', '')}"
    best = min(row["baselines"].values())
    others = ", ".join(f"{k} {v:.1f}" for k, v in row["baselines"].items())
    notes = "; ".join(f"{k}: {v[:60]}" for k, v in row["notes"].items())
    return (
        f"{row['case'][:40]:40} {row['ours']:8.2f} us floor {row['floor']:6.1f} ratio {best / row['ours']:5.2f} "
        f"{row['plan']}; {row['kernels']}; {row.get('around')} "
        f"| {others} | {row.get('programs')} programs, the {row.get('place')}. is best, {row.get('trials')} trials, "
        f"{row.get('refused')} refused, {row.get('tuning_seconds')} and {row['peer_seconds']} s {notes}"
    )


def completed(
    case: str, own: Mapping[str, Any], around: Mapping[str, Any], others: Mapping[str, Any]
) -> dict[str, Any]:
    """A row of its jobs: `ours` is the better of our kernels alone and around a library's
    products."""
    row: dict[str, Any] = {"case": case, "operators": operators(goal(case)), "floor": floor(case), **own}
    row |= {"peer_problem" if key == "problem" else key: value for key, value in others.items()}
    found = around.get("around", around)
    if found:
        row["around"] = found
    forms = any(form_of(n) is not None for n in formed_goal(case) if n.args)
    other = "kernels around that of a form" if forms else "kernels around a library's products"
    times = {"kernels": own.get("ours"), other: found.get("us")}
    known = {plan: us for plan, us in times.items() if us is not None}
    if known:
        row["plan"] = min(known, key=lambda plan: known[plan])
        row |= {"kernels": own.get("ours"), "ours": known[row["plan"]]}
    return row


def least(row: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the least times of an earlier run, too: tuning ends with its time."""
    found = dict(row)
    if "ours" in earlier and ("ours" not in row or earlier["ours"] < row["ours"]):
        found = {k: v for k, v in found.items() if k != "problem"} | dict(earlier)
    peers = [each.get("baselines") or {} for each in (row, earlier)]
    names = dict.fromkeys([*peers[0], *peers[1]])
    times = {name: min(own[name] for own in peers if name in own) for name in names}
    if times:
        found["baselines"] = times
        found.pop("peer_problem", None)
    return found


def floor(case: str) -> float:
    """The microseconds in which the memory of an H100 reads the inputs of a row once, those of
    which parts are read in parts, and writes its results."""
    graph = goal(case)
    read = users(topological(graph.outputs))
    moved = 0
    for x in graph.inputs:
        parts = [n for n in read.get(x, ()) if n.op in ("slice", "gather") and n.args[0] is x]
        whole = len(parts) < len(read.get(x, ()))
        moved += size(x.type) if whole else min(size(x.type), sum(size(n.type) for n in parts))
    return (moved + sum(size(o.type) for o in graph.outputs)) / H100.bandwidth * 1e6


def _asked(
    case: str,
    found: Mapping[str, Any],
    sides: Sequence[Side],
    before: Mapping[str, Mapping[str, Any]],
    options: argparse.Namespace,
) -> list[Callable[[], Mapping[str, Any]]]:
    """The answers of the jobs of a row, once they are there."""
    ours, around, others = sides
    answers: list[Callable[[], Mapping[str, Any]]] = [ours(case, {"graphs": found["graphs"]}).result]
    answers.append(around(case, {"plan": found["plan"]}).result if found["plan"] else dict)
    known = {key: before.get(case, {}).get(key) for key in ("baselines", "notes", "peer_seconds")}
    kept = options.keep_peers and known["baselines"]
    answers.append((lambda: known) if kept else others(case, {"graphs": []}).result)
    return answers


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of names; all rows if left out")
    parser.add_argument("--programs", type=int, default=24, help="muGraphs of a row that are tuned")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of a search")
    parser.add_argument("--searched", type=Path, default=None, help="the file of the found muGraphs")
    parser.add_argument("--search-only", action="store_true")
    parser.add_argument("--missing", action="store_true", help="only rows that the file lacks")
    parser.add_argument("--keep-peers", action="store_true", help="peers that the file has are not timed again")
    parser.add_argument("--seconds", type=float, default=480.0, help="no row begins later")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of a job")
    parser.add_argument("--tuning", type=float, default=15.0, help="seconds after which no other schedules are tried")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) // 3, 1), help="compilers of a job")
    parser.add_argument("--sources", type=Path, metavar="DIR")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    options.end = time.perf_counter() + options.seconds
    return options


def search_all(cases: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """The muGraphs of rows, as soon as they are found; in the file, if one is given."""
    path = options.searched
    known: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}
    yield from ((case, known[case]) for case in cases if case in known)
    asked = [case for case in cases if case not in known]
    if not asked:
        return
    with ProcessPoolExecutor(min(options.workers, len(asked))) as executor:
        futures = {executor.submit(searched_both, case, options.programs, options.budget): case for case in asked}
        for future in as_completed(futures):
            case = futures[future]
            try:
                graphs, steps = future.result()
                known[case] = {"graphs": graphs, "plan": steps}
            except Exception as error:
                print(f"{case}: {type(error).__name__}: {error}"[:300], flush=True)
                continue
            if path:
                path.write_text(json.dumps(known, indent=0))
            yield case, known[case]


def main() -> None:
    options = read_options()
    cases = [c for c in rows() if not options.rows or any(part in c for part in options.rows)]
    if options.search_only:
        for case, found in search_all(cases, options):
            print(f"{case}: {len(found['graphs'])} muGraphs, {len(found['plan'])} steps", flush=True)
        return
    device = tune.gpu_and_versions()
    name = device.removeprefix("NVIDIA ").split()[0]
    path = options.output or ROOT / "bench" / "results" / f"goal_rows-{name}.json"
    kept = Rows(path, {"bench": "goal_rows", "device": device, "unit": "us", "versions": {"taso-mirage": __version__}})
    done = {row["case"] for row in kept.kept if "ours" in row and row.get("baselines")}
    cases = [c for c in cases if not (options.missing and c in done)]
    os.environ[goal_times.LOCK] = f"{path}.lock"
    before = {row["case"]: row for row in kept.kept}
    sides = Side("ours", own_goal, 1, options), Side("around", formed_goal, 1, options), Side("peers", goal, 2, options)
    with closing(sides[0]), closing(sides[1]), closing(sides[2]):
        asked = {case: _asked(case, found, sides, before, options) for case, found in search_all(cases, options)}
        for case, answers in asked.items():
            row = least(completed(case, *[answer() for answer in answers]), before.get(case, {}))
            source = row.pop("source", None)
            if source and options.sources:
                options.sources.mkdir(parents=True, exist_ok=True)
                (options.sources / f"{re.sub(r'[^A-Za-z0-9]+', '_', case)}.py").write_text(source)
            kept.keep(row)
            print(shown(row), flush=True)
    Path(os.environ[goal_times.LOCK]).unlink(missing_ok=True)
    ratios = [min(r["baselines"].values()) / r["ours"] for r in kept.kept if r.get("baselines") and "ours" in r]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(ratios)} rows: geometric mean over the best peer {mean:.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
