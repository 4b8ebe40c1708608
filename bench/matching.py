"""How matching, the passes and the search grow with a model: layers in a row with tiny weights, up
to more than 5,000 ONNX nodes.

    python bench/matching.py [--quick] [--profile FILE.onnx]

Prints a table and writes bench/results/matching-cpu2.json; the unit is seconds. Every model runs in
a fresh process; peak memory is that process's. All laws and rules of the library are matched, in
both directions; costs are the roofline's, so nothing is measured on a runtime. `--profile` prints
where the time goes for one model instead.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import onnx
import onnx.compose

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.ir.model import Model  # noqa: E402
from taso_mirage.ir.terms import Node, substitute, topological, users  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.onnx_io import load  # noqa: E402
from taso_mirage.rewriting.index import Rules  # noqa: E402
from taso_mirage.search.cost import Cost, Roofline  # noqa: E402
from taso_mirage.search.passes import Context, for_search, joint, merge, pass_order, simplify  # noqa: E402
from taso_mirage.search.rulesets import rules  # noqa: E402
from taso_mirage.search.search import Budget, directions, search_model  # noqa: E402
from taso_mirage.search.weights import fold_weights, split_halves  # noqa: E402

T = TypeVar("T")
TINY = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 32}
SECONDS = 600.0
"""The budget of a search: more than it needs, so that counts do not depend on the clock."""


def built(name: str, layers: int) -> onnx.ModelProto:
    """A transformer of so many layers of width 16 on 8 tokens."""
    heads = {"num_key_value_heads": 2} if name == "llama" else {}
    return models.build(name, sequence=8, configuration={**TINY, **heads, "num_hidden_layers": layers})


def unrolled(model: onnx.ModelProto, times: int) -> onnx.ModelProto:
    """A language model so many times in a row: the likeliest tokens of one are the input of the
    next."""
    parts = [onnx.compose.add_prefix(model, f"{i}.") for i in range(times)]
    whole = parts[0]
    for i, part in enumerate(parts[1:], 1):
        last = whole.graph.output.pop().name
        whole.graph.node.append(onnx.helper.make_node("ArgMax", [last], [f"{i}.input_ids"], axis=-1, keepdims=0))
        whole.graph.node.extend(part.graph.node)
        whole.graph.initializer.extend(part.graph.initializer)
        whole.graph.input.extend(v for v in part.graph.input if v.name != f"{i}.input_ids")
        whole.graph.output.extend(part.graph.output)
    return whole


def cases(quick: bool) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Models by name."""
    for layers in (1, 3) if quick else (1, 12, 48):
        yield f"bert, {layers} layers", built("bert", layers)
    for layers in () if quick else (1, 12, 48):
        yield f"llama, {layers} layers", built("llama", layers)
    if not quick:
        yield "llama, 8 times 12 layers", unrolled(built("llama", 12), 8)
        yield "nasnet_a", models.build("nasnet_a", small=False)


class Timer:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - start, 4)
        return result


def measured(path: Path, nodes: int) -> dict[str, Any]:
    """Seconds of the stages on one model, the counts of matching, and the peak of memory in MB."""
    timed = Timer()
    equations = timed("rules", rules)
    model = timed("import", lambda: load(path))
    context = Context({"com.microsoft": 1, **model.opsets}, dict.fromkeys(model.symbols(), 8))
    passes = timed("stages", lambda: pass_order(equations))
    terms = len(model.nodes())
    model = passed(model, passes[:2], context, timed)
    every = Rules(directions(for_search(equations)))
    counts = matching(model, every, timed)
    _, _, found = timed(
        "search",
        lambda: search_model(model.graph.outputs, every, passes[1], Cost(Roofline(context)), context, Budget(SECONDS)),
    )
    counts["search"] = {
        "parts": found.parts,
        "distinct": found.distinct,
        "states": found.states,
        "rewrites": found.matches,
    }
    return {
        "nodes": nodes,
        "terms": [terms, len(model.nodes())],
        "equations": len(every.equations),
        "seconds": timed.seconds,
        "counts": counts,
        "megabytes": round(peak_bytes() / 2**20),
    }


def peak_bytes() -> int:
    """The most memory that this process had; a child's `getrusage` would begin with its
    parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def passed(model: Model, passes: list[Rules], context: Context, timed: Timer) -> Model:
    """The model after the passes before the search."""
    for stage in passes:
        model, _ = timed("weights", lambda model=model: split_halves(model, {}))
        outputs, _ = timed("simplify", lambda model=model, stage=stage: simplify(model.graph.outputs, stage, context))
        outputs, _ = timed("merge", lambda outputs=outputs, stage=stage: merge(outputs, joint(stage), context))
        model, _ = timed("weights", lambda model=model, outputs=outputs: fold_weights(model.with_graph(outputs)))
    return model


def matching(model: Model, every: Rules, timed: Timer) -> dict[str, Any]:
    """One match of all equations over a model, and those after one rewrite near its end and near
    its beginning."""
    outputs = model.graph.outputs
    order = topological(outputs)
    roots = Counter(e.roots[0] for e in every.equations)
    found = matched(outputs, every, lambda work: timed("match", work))
    counts: dict[str, Any] = {"match": found, "same_root": sum(roots[n.op] for n in order)}
    rewritable = [n for n in order if every.applications(n)]
    for name, node in (("end", rewritable[-1:]), ("beginning", rewritable[:1])):
        if node:
            after = substitute(outputs, {node[0]: every.applications(node[0])[0].results[0]})
            label = f"match after a rewrite near the {name}"
            counts[f"after a rewrite near the {name}"] = matched(
                after, every, lambda work, label=label: timed(label, work)
            )
    return counts


def matched(outputs: tuple[Node, ...], every: Rules, timed: Callable[[Callable[[], int]], int]) -> dict[str, int]:
    """The matches of a graph, and the terms that were not known yet; equations with several outputs
    separately."""
    order = topological(outputs)
    used_by = users(order)
    terms, surroundings, trials = *every.matched, every.trials
    found = timed(lambda: sum(len(every.applications(n)) for n in order))
    single = every.trials
    joint = timed(lambda: sum(1 for n in order for _ in every.joint_applications(n, used_by)))
    return {
        "terms": every.matched[0] - terms,
        "surroundings": every.matched[1] - surroundings,
        "trials": single - trials,
        "found": found,
        "joint_trials": every.trials - single,
        "joint_found": joint,
    }


def row(name: str, model: onnx.ModelProto, folder: Path) -> dict[str, Any]:
    """One model, in a process of its own."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    command = [sys.executable, __file__, "--one", path]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    ours = sum(v for k, v in found["seconds"].items() if k != "rules")
    return {"case": name, "ours": round(ours, 3), "baselines": {}, "note": "", **found}


HEADER = (
    f"{'model':26} {'nodes':>6} {'import':>7} {'passes':>7} {'match':>7} {'tried for found':>17} {'with several':>14}"
    f" {'after one rewrite':>17} {'parts':>8} {'states':>6} {'search':>7} {'MB':>5}"
)


def show(rows: list[dict[str, Any]]) -> None:
    print(HEADER)
    for each in rows:
        seconds, counts = each["seconds"], each["counts"]
        passes = sum(seconds[k] for k in ("stages", "weights", "simplify", "merge"))
        match, search = counts["match"], counts["search"]
        again = counts.get("after a rewrite near the end", {"terms": 0, "surroundings": 0})
        tried = f"{match['trials']} for {match['found']}"
        several = f"{match['joint_trials']} for {match['joint_found']}"
        anew = f"{again['terms']} terms, {again['surroundings']}"
        print(
            f"{each['case']:26} {each['nodes']:6} {seconds['import']:7.2f} {passes:7.2f} {seconds['match']:7.2f}"
            f" {tried:>17} {several:>14} {anew:>17} {search['distinct']:>3} of {search['parts']:<3} {search['states']:5}"
            f" {seconds['search']:7.2f} {each['megabytes']:5}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small models")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="where the time goes for this model")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "matching-cpu2.json")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measured(options.one, len(onnx.load(options.one).graph.node))))
        return
    if options.profile is not None:
        profile = cProfile.Profile()
        profile.runcall(measured, options.profile, 0)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, model, Path(folder)) for name, model in cases(options.quick)]
    show(rows)
    versions = {"taso-mirage": __version__, "python": platform.python_version()}
    found = {"bench": "matching", "device": runtime.device(), "versions": versions, "unit": "s", "rows": rows}
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
