"""How general the search is: goals that nobody tuned for, how many of them are expressed, found,
proved, compiled and right, and for each other one why not.

    python bench/goals.py [--only NAME ...] [--seed 0] [--count 100] [--budget 4] [--jobs 2]
        [--limit 60] [--targets cpu gpu] [--device cuda] [-o FILE]

The goals are the common forms (`goal_forms.py`), and `--count` others by the seed: a quarter are
regions, a quarter random pieces of real graphs (`goal_corpus.py`), and half random compositions
(`goal_compositions.py`). Each goes through these steps, for a CPU in single and for a GPU (sm_90)
in half precision:

- expressed: the goal has labels (`taso_mirage/mugraph/labels.py`), or a form has kernels for it;
- found: the search gives a muGraph in `--budget` seconds; proved: its evidence is in the field;
- compiled: C++ by this machine's compiler, Triton to cubins without a GPU;
- right: the C++ program here, the Triton program in Triton's interpreter, against float64.

A step that takes longer than `--limit` seconds is late, which is no answer. With `--device cuda`
the best program is tuned on this machine's GPU and timed beside eager PyTorch and torch.compile
(max-autotune). `--only` takes parts of names. Prints a line for each goal and the refusals by their
texts, and writes bench/results/goals-DEVICE.json after each goal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import goal_checks  # noqa: E402
from goal_compositions import composition  # noqa: E402
from goal_corpus import CORPUS  # noqa: E402
from goal_forms import FORMS  # noqa: E402
from goals_table import STAGES, counts, refusals  # noqa: E402
from rows import Rows  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.ir.terms import Graph  # noqa: E402
from taso_mirage.mugraph.checkpoint import to_json  # noqa: E402
from taso_mirage.rewriting.text import parse_graph  # noqa: E402
from taso_mirage.system.workers import Workers  # noqa: E402

NAMES = {"cpu": "goals-cpu2.json", "cuda": "goals-cuda.json"}
LATE = "late: no answer within the limit"


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: `kind` is form, region, piece or composition."""

    name: str
    kind: str
    graph: Graph


def goals(count: int = 100, seed: int = 0) -> Iterator[Goal]:
    """The common forms, and `count` other goals by a seed."""
    for name, made in FORMS.items():
        yield Goal(name, "form", made())
    corpus = json.loads(CORPUS.read_text())
    for kind in ("region", "piece"):
        chosen = random.Random(f"{seed} {kind}").sample(corpus[f"{kind}s"], count // 4)
        for i, each in enumerate(chosen):
            graph = parse_graph("\n".join(each["goal"]))
            operators = ", ".join(n.op for n in graph if n.args and n.op != "item")
            yield Goal(f"{kind} {i:02} {each['model']}: {operators}", kind, graph)
    for i in range(count - 2 * (count // 4)):
        path, graph = composition(f"{seed} {i}", corpus["follow"])
        yield Goal(f"composition {i:02}: {path}", "composition", graph)


# ---------------------------------------------------------------- one goal


def examined(goal: Goal, ask: Workers, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a goal."""

    def step(name: str, **job: Any) -> dict[str, Any]:
        given = {"step": name, "goal": to_json(goal.graph), "budget": options.budget, **job}
        found: dict[str, Any] | None = ask(given).result()
        return {"problem": LATE} if found is None else found

    row: dict[str, Any] = {"case": goal.name, "kind": goal.kind, "budget": options.budget, "limit": options.limit}
    labels = step("labels")
    row["expressed"] = "problem" not in labels
    row |= {key: labels[key] for key in ("problem", "forms", "labels") if key in labels}
    for target in options.targets if row["expressed"] else ():
        row[target] = _on(target, step)
    if options.device == "cuda" and row.get("gpu", {}).get("compiled"):
        settings = {"workers": options.workers, "tuning": options.limit / 4}
        row["time"] = step("time", target="gpu", programs=options.programs, settings=settings)
    return row


def _on(target: str, step: Any) -> dict[str, Any]:
    """The stages of a goal for a target."""
    search = step("search", target=target)
    found = {"found": "graph" in search, "proved": bool(search.get("proved"))}
    found |= {"compiled": False, "right": None, "took": {"search": search.get("seconds")}}
    found |= {key: search[key] for key in ("kernels", "problem") if key in search}
    if not found["found"]:
        return found
    made = step("native" if target == "cpu" else "cubins", graph=search["graph"])
    found["took"]["compile"] = made.get("seconds")
    if "problem" in made:
        return found | {"problem": made["problem"]}
    found["compiled"] = True
    if target == "gpu":
        made = step("interpreter", graph=search["graph"], source=made["source"])
        found["took"]["interpreter"] = made.get("seconds")
    if "problem" in made:
        return found | {"right": None if made["problem"] == LATE else False, "problem": made["problem"]}
    right = made["error"] < goal_checks.TOLERANCE[target]
    found |= {"right": right, "error": float(f"{made['error']:.2g}")}
    return found if right else found | {"problem": f"its results are off by {made['error']:.2g}"}


# ---------------------------------------------------------------- what is said


def shown(row: Mapping[str, Any], targets: Sequence[str]) -> str:
    """A line for a goal."""
    states = [f"{t} {next((s for s in STAGES[::-1] if row.get(t, {}).get(s)), '-')}" for t in targets]
    problem = row.get("problem") or next((row[t]["problem"] for t in targets if "problem" in row.get(t, {})), "")
    time = row.get("time", {})
    us = {"ours": time["us"], **time["peers"]} if "us" in time else {}
    times = ", ".join(f"{name} {t:.1f}" for name, t in us.items()) or time.get("problem", "")
    return f"{row['case'][:64]:64} {'; '.join(states) if row['expressed'] else 'refused'} {problem[:160]} {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="goals whose name has one of these parts")
    parser.add_argument("--kind", nargs="+", default=[], help="forms, regions, pieces or compositions alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="goals beside the common forms")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of a search")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a step")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--targets", nargs="*", choices=("cpu", "gpu"), default=["cpu", "gpu"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--programs", type=int, default=20, help="muGraphs that are tuned with --device cuda")
    parser.add_argument("--workers", type=int, default=4, help="compilers with --device cuda")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    chosen = [
        g
        for g in goals(options.count, options.seed)
        if (not options.only or any(part in g.name for part in options.only))
        and (not options.kind or g.kind in options.kind)
    ]
    setting = {key: getattr(options, key) for key in ("seed", "count", "targets")}
    head = {"bench": "goals", "device": options.device, "versions": {"taso-mirage": __version__}, **setting}
    output = options.output or ROOT / "bench" / "results" / NAMES[options.device]
    rows, done = Rows(output, head), list[dict[str, Any]]()
    workers = Workers(f"goal_checks:{goal_checks.step.__name__}", options.jobs, options.limit)
    with closing(workers) as ask, ThreadPoolExecutor(options.jobs) as threads:
        for row in threads.map(partial(examined, ask=ask, options=options), chosen):
            rows.keep(row)
            done.append(row)
            print(shown(row, options.targets), flush=True)
    for target in options.targets:
        print(target, f"of {len(done)}:", ", ".join(f"{n} {stage}" for stage, n in counts(done, target).items()))
    for (place, text), n in refusals(done).most_common():
        print(f"{n:4} {place}: {text}")
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
