"""How well the cost model predicts: predicted against measured seconds of parts of models and of
their rewritten variants.

    python bench/cost_model.py [--models DIR] [--parts 5] [--variants 5] [--seconds 240] [--cache
    FILE] [--only NAME ...] [-o FILE]

Prints rank correlations (over all graphs, and within the variants of a part, which is the
comparison that the search needs) and the worst predictions, and writes
bench/results/cost_model-cpu2.json. The same variants are put in order by costs that measure no
operator: by the roofline, and by a correction of it that is fitted to the rows of other models
(`bench/results/cost_table-cpu2.jsonl`), where the runtime is asked which terms it runs as one and
where it is not. Models exported from torch need the extra `models`; DIR adds prebuilt ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import cost_table  # noqa: E402

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import Model  # noqa: E402
from taso_mirage.ir.terms import Node, topological  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure import tasks  # noqa: E402
from taso_mirage.measure.cost_cache import CostCache  # noqa: E402
from taso_mirage.measure.target import CPU  # noqa: E402
from taso_mirage.onnx_io import from_ir, load, serialize  # noqa: E402
from taso_mirage.rewriting.equation import work_terms  # noqa: E402
from taso_mirage.rewriting.index import Rules  # noqa: E402
from taso_mirage.search.available import Available  # noqa: E402
from taso_mirage.search.config import Config, representative  # noqa: E402
from taso_mirage.search.cost import AheadCost, Cost, MeasuredCost, Roofline, TermCost  # noqa: E402
from taso_mirage.search.fusion_context import FusionContext, Running, concrete  # noqa: E402
from taso_mirage.search.partition import model_parts  # noqa: E402
from taso_mirage.search.passes import Context, for_search, pass_order, simplify  # noqa: E402
from taso_mirage.search.prediction import PredictedCost  # noqa: E402
from taso_mirage.search.rulesets import rules  # noqa: E402
from taso_mirage.search.search import SearchState, directions, rewrites  # noqa: E402

SMALL = ("mini_transformer", "bert", "llama", "vit", "resnet50", "resnext50", "inception_v3", "nasnet_a")
MEDIUM = ("light_squeezenet", "light_shufflenet", "light_densenet121")
WALK = 3
"""At most so many equations lead from a part to a variant."""
DIFFERENT = 1.05
"""Two variants are asked which is faster where every measurement of one is so many times that of
the other."""
SAME = 1e-9
"""Predictions that differ by less of them are one."""
TABLE = ROOT / "bench" / "results" / "cost_table-cpu2.jsonl"
TURNS = 0.06
"""Seconds of measuring for every graph."""


@dataclass
class Sample:
    """One graph: the model and part that it comes from, and its seconds, predicted (also by
    operator), measured, and measured again; `ahead`: by costs that measure nothing."""

    model: str
    part: int
    path: tuple[str, ...]
    predicted: float
    measured: float
    again: float
    terms: int
    by_operator: dict[str, float] = field(default_factory=dict)
    ahead: dict[str, float] = field(default_factory=dict)


class Noted:
    """A term cost that notes the share of each operator."""

    def __init__(self, term: MeasuredCost) -> None:
        self.term = term
        self.seen: Counter[str] = Counter()

    def seconds(self, fusion: FusionContext) -> float:
        found = self.term.seconds(fusion)
        self.seen["+".join([fusion.node.op, *(p.node.op for p in fusion.producers)])] += found  # type: ignore[assignment]
        return found

    def joined(self, producer: FusionContext, node: Node) -> bool:
        return self.term.joined(producer, node)


def sources(folder: Path | None, only: Sequence[str]) -> Iterator[tuple[str, Model]]:
    """Models by name: the small and medium ones of `models`, and the prebuilt ones of a folder; of
    these those that are named, if any are."""
    for name in SMALL + MEDIUM:
        small = name in SMALL
        if (called := name + ("_small" if small else "")) in only or not only:
            yield called, from_ir(ir.from_proto(models.build(name, small=small)))
    for path in sorted(folder.glob("*.onnx")) if folder else ():
        if path.stem in only or not only:
            yield path.stem, load(path)


def variants(
    start: SearchState, every: Rules, eager: Rules, context: Context, count: int, rng: random.Random
) -> list[Any]:
    """Up to `count` distinct states that random equations lead to from a part, each with the
    equations on the way."""
    found: dict[SearchState, tuple[str, ...]] = {start: ()}
    reached: dict[SearchState, list[Any]] = {}
    for _ in range(2 * count):
        state = start
        for _ in range(rng.randint(1, WALK)):
            if state not in reached:
                if len(reached) > 3:
                    break
                reached[state] = list(rewrites(state, every, eager, context))
            if not reached[state]:
                break
            chosen = rng.choice(reached[state])
            found.setdefault(chosen.outputs, (*found[state], *chosen.equations))
            state = chosen.outputs
    others = [s for s in found if s != start]
    return [(start, ()), *((s, found[s]) for s in rng.sample(others, min(count, len(others))))]


def ways_ahead(name: str, term: MeasuredCost) -> dict[str, TermCost]:
    """Costs that measure no operator, by name; corrections know nothing of the model."""
    table = cost_table.read([TABLE])
    others = [r for r in table.rows if r.model != name.removesuffix("_small")]
    predicted = PredictedCost(term.context, cost_table.fitted(others, table.joined))
    return {"roofline": Roofline(term.context), "correction": predicted, "asked": AheadCost(predicted, term)}


def samples(name: str, model: Model, options: argparse.Namespace, cache: CostCache, deadline: float) -> list[Sample]:
    """Predicted and measured seconds of some parts of a model and of their variants."""
    sizes = representative(model, Config())
    opsets = {"com.microsoft": 1, **model.opsets}
    asked = Context(opsets, sizes, target=CPU)
    context = replace(asked, available=Available(model.nodes(), asked, cache))
    standard, large, _ = pass_order(rules())
    outputs = model.graph.outputs
    for stage in (standard, large):
        outputs, _ = simplify(outputs, stage, context)
    distinct = list(dict.fromkeys(p.graph for p in model_parts(outputs)))
    rng = random.Random(f"{options.seed} {name}")
    every = Rules(directions(for_search(rules())))
    term = MeasuredCost(context, cache)
    ahead = ways_ahead(name, term)
    found: list[Sample] = []
    for number, graph in enumerate(rng.sample(distinct, min(options.parts, len(distinct)))):
        if time.monotonic() > deadline:
            break
        states = variants(graph.outputs, every, large, context, options.variants, rng)
        try:
            contents = [serialize(concrete(s, Running(), context)) for s, _ in states]
            first, second = (tasks.in_turn(contents, CPU, TURNS * len(states)) for _ in range(2))
        except (TasoMirageError, LookupError, TypeError, ValueError) as error:
            print(f"{name}: part {number} is left out: {error}", file=sys.stderr)
            continue
        for (state, path), taken, again in zip(states, first, second, strict=True):
            noted = Noted(term)
            predicted = Cost(noted)(state)
            terms = len(work_terms(topological(state)))
            own = [max(t - tasks.overhead(CPU), 1e-7) for t in (taken, again)]
            others = {way: Cost(each)(state) for way, each in ahead.items()}
            found.append(Sample(name, number, path, predicted, *own, terms, dict(noted.seen.most_common()), others))
    return found


def ranks(values: Sequence[float]) -> Any:
    """Ranks from 0; equal values share the mean of theirs."""
    array = np.asarray(values)
    return (array[:, None] > array[None]).sum(1) + ((array[:, None] == array[None]).sum(1) - 1) / 2


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation of two lists; 0 where one is constant."""
    x, y = ranks(a), ranks(b)
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else 0.0


def summary(found: Sequence[Sample]) -> dict[str, Any]:
    """Statistics of all samples together."""
    groups: dict[tuple[str, int], list[Sample]] = {}
    for s in found:
        groups.setdefault((s.model, s.part), []).append(s)
    several = [g for g in groups.values() if len(g) >= 3]
    within = [spearman([s.predicted for s in g], [s.measured for s in g]) for g in several]
    noise = [spearman([s.again for s in g], [s.measured for s in g]) for g in several]
    pairs = [
        (a, b)
        for g in groups.values()
        for a in g
        for b in g
        if max(a.measured, a.again) * DIFFERENT < min(b.measured, b.again)
    ]
    right = sum(a.predicted < b.predicted for a, b in pairs)
    chosen = [min(g, key=lambda s: s.predicted).measured / min(s.measured for s in g) for g in several]
    errors = np.log([s.predicted / s.measured for s in found])
    ahead = {}
    for way in found[0].ahead if found else ():
        best = [min(g, key=lambda s: s.ahead[way]).measured / min(s.measured for s in g) for g in several]
        order = sum(a.ahead[way] < (1 - SAME) * b.ahead[way] for a, b in pairs)
        ahead[way] = {
            "pairs_in_order": round(order / max(len(pairs), 1), 4),
            "chosen_over_best": round(float(np.exp(np.mean(np.log(best)))), 4),
        }
    return {
        "graphs": len(found),
        "parts": len(groups),
        "rank_correlation": round(spearman([s.predicted for s in found], [s.measured for s in found]), 4),
        "rank_correlation_within_parts": round(float(np.mean(within)), 4),
        "measured_twice": round(spearman([s.again for s in found], [s.measured for s in found]), 4),
        "measured_twice_within_parts": round(float(np.mean(noise)), 4),
        "pairs": len(pairs),
        "pairs_in_order": round(right / max(len(pairs), 1), 4),
        "chosen_over_best": round(float(np.exp(np.mean(np.log(chosen)))), 4),
        "ahead": ahead,
        "mean_absolute_log_error": round(float(np.abs(errors).mean()), 4),
        "mean_log_error": round(float(errors.mean()), 4),
    }


def show(found: Sequence[Sample], worst: int = 12) -> None:
    """The graphs that are predicted worst, and the mean error of those that one operator
    dominates."""
    print(
        f"{'model':22} {'part':>4} {'terms':>5} {'predicted us':>12} {'measured us':>12} {'ratio':>6}  by operator, us"
    )
    for s in sorted(found, key=lambda s: -abs(np.log(s.predicted / s.measured)))[:worst]:
        largest = ", ".join(f"{k} {v * 1e6:.0f}" for k, v in list(s.by_operator.items())[:4])
        ratio = s.predicted / s.measured
        print(
            f"{s.model:22} {s.part:4} {s.terms:5} {s.predicted * 1e6:12.1f} {s.measured * 1e6:12.1f} {ratio:6.2f}  {largest}"
        )
    groups: dict[str, list[float]] = {}
    for s in found:
        groups.setdefault(next(iter(s.by_operator), "-"), []).append(float(np.log(s.predicted / s.measured)))
    print(f"\n{'dominated by':44} {'graphs':>6} {'mean log error':>14} {'absolute':>9}")
    for name, errors in sorted(groups.items(), key=lambda item: -float(np.abs(item[1]).sum()))[:worst]:
        print(f"{name[:44]:44} {len(errors):6} {np.mean(errors):14.2f} {np.abs(errors).mean():9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="a folder of prebuilt models (*.onnx) to sample from, too")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--parts", type=int, default=5, help="parts of each model")
    parser.add_argument("--variants", type=int, default=5, help="variants of each part")
    parser.add_argument("--seconds", type=float, default=240.0, help="no part is begun later")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="keep measured terms in this file; nowhere if left out")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "cost_model-cpu2.json")
    options = parser.parse_args()
    cache, deadline = CostCache(options.cache), time.monotonic() + options.seconds
    found: list[Sample] = []
    for name, model in sources(options.models, options.only):
        start = time.perf_counter()
        found += (more := samples(name, model, options, cache, deadline))
        print(f"{name:22} {len(more):4} graphs {time.perf_counter() - start:6.1f} s", flush=True)
        write(options.output, found)
        del model
        gc.collect()
    cache.close()
    show(found)
    print(json.dumps(summary(found), indent=1))
    print(f"wrote {options.output}")


def write(path: Path, found: Sequence[Sample]) -> None:
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    rows = [
        {
            "case": f"{s.model}/{s.part}",
            "equations": list(s.path),
            "terms": s.terms,
            "predicted": round(s.predicted * 1e6, 2),
            "ahead": {way: round(seconds * 1e6, 2) for way, seconds in s.ahead.items()},
            "measured": round(s.measured * 1e6, 2),
            "again": round(s.again * 1e6, 2),
        }
        for s in found
    ]
    data: dict[str, Any] = {"bench": "cost_model", "device": runtime.device(), "versions": versions, "unit": "us"}
    data["load"] = [round(n, 1) for n in os.getloadavg()]  # of the machine: other processes disturb long runs most
    path.write_text(json.dumps({**data, **summary(found), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
