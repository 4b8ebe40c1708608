"""Pieces of models, for the goals of `goals.py`: those of their graphs, and how often operators
follow each other.

    python bench/goal_corpus.py FILE.onnx ... [--each 12] [--seed 0]

Reads ONNX models at a size of 2 for each symbol and writes bench/results/goal_corpus.json. From
each model come up to `--each` regions, as the survey cuts them (`taso_mirage/regions`), and as many
pieces: connected and convex sets of 2 to 6 operators that are drawn at random, with a result in
floats, whether the search knows their operators or not. Equal ones are in the file once. The models
are the small forms of `minute.py` (`--small`), of `python -m models`, and the light models.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import Model  # noqa: E402
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_float, is_part, topological, users  # noqa: E402
from taso_mirage.onnx_io import load  # noqa: E402
from taso_mirage.operators.expressions import is_weight  # noqa: E402
from taso_mirage.regions.canonical import SymbolSizes, canonical_region  # noqa: E402
from taso_mirage.regions.fragments import fragments  # noqa: E402
from taso_mirage.rewriting.text import parse_graph, show_graph  # noqa: E402

CORPUS = ROOT / "bench" / "results" / "goal_corpus.json"
SIZE, LEAST, MOST = 2, 2, 6
"""The size of a symbol; the operators of a piece."""
TRIES, TEXT, ELEMENTS = 40, 4000, 1 << 22
"""Draws for each piece that is wanted; characters of a goal, whose constants are small then; and
elements of a tensor, at most."""
MOVEMENTS = ("slice", "concat", "pad", "split", "reshape", "transpose", "expand", "tile", "gather", "squeeze")
MOVEMENTS += ("unsqueeze", "flatten", "depth_to_space", "space_to_depth", "identity", "cast")
"""Operators that compute nothing: of these alone there is no kernel."""


def computed(model: Model) -> list[Node]:
    """The operators of a run, in order, each once."""
    return [n for n in topological(model.graph.outputs) if n.args and not is_weight(n) and n is not ABSENT]


def follows(nodes: Sequence[Node]) -> Counter[tuple[str, str]]:
    """How often the result of one operator is an operand of another; "" comes before the first."""
    inside = set(nodes)
    found: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        if is_part(node):
            continue
        before = [a.args[0] if is_part(a) else a for a in node.args]
        own = [a.op for a in before if a in inside]
        found.update((op, node.op) for op in own or [""])
    return found


def pieces(model: Model, sizes: SymbolSizes, count: int, draw: random.Random) -> Iterator[Graph]:
    """Random pieces of a model."""
    nodes = computed(model)
    place, readers, wanted = {n: i for i, n in enumerate(nodes)}, users(nodes), set(model.graph.outputs)
    found = 0
    for _ in range(TRIES * count):
        members = _piece(nodes, place, readers, draw)
        results = [n for n in members if n in wanted or not set(members).issuperset(readers.get(n, ()))]
        made = _goal(members, results, sizes)
        if made is not None:
            yield made
            found += 1
        if found == count:
            return


def _piece(
    nodes: Sequence[Node], place: dict[Node, int], readers: dict[Node, list[Node]], draw: random.Random
) -> list[Node]:
    """A random connected and convex set of terms: a term, and neighbours of what there is."""
    members, wanted = {draw.choice(nodes)}, draw.randint(LEAST, MOST)
    for _ in range(3 * MOST):
        if sum(not is_part(n) for n in members) >= wanted:
            break
        around = [n for m in members for n in (*m.args, *readers.get(m, ())) if n in place and n not in members]
        if not around:
            break
        members = _hull({*members, draw.choice(sorted(around, key=place.__getitem__))}, nodes, place, readers)
    return sorted(members, key=place.__getitem__)


def _hull(
    inside: set[Node], nodes: Sequence[Node], place: dict[Node, int], readers: dict[Node, list[Node]]
) -> set[Node]:
    """Terms, those between them, and all the parts of those that have several results."""
    while True:
        places = [place[n] for n in inside]
        span = nodes[min(places) : max(places) + 1]
        below, above = set(inside), set(inside)
        for n in span:
            below |= {n} if any(a in below for a in n.args) else set()
        for n in reversed(span):
            above |= {n} if any(u in above for u in readers.get(n, ())) else set()
        whole = inside | (below & above)
        whole |= {n.args[0] for n in whole if is_part(n) and n.args[0] in place}
        whole |= {u for n in whole for u in readers.get(n, ()) if is_part(u)}
        if whole == inside:
            return inside
        inside = whole


def _goal(members: Sequence[Node], results: Sequence[Node], sizes: SymbolSizes) -> Graph | None:
    """The goal of some terms of a model; None where it is none: nothing is computed in floats, or
    it is too large."""
    operators = [n for n in members if not is_part(n)]
    if not LEAST <= len(operators) <= MOST or all(n.op in MOVEMENTS for n in operators):
        return None
    try:
        made = canonical_region(members, results, sizes)[0]
        text = show_graph(made)
        fine = parse_graph(text) == made and len(text) <= TEXT
    except (LookupError, TypeError, ValueError, AttributeError, TasoMirageError):
        return None
    types = [n.type for n in (*made.inputs, *made.outputs)]
    fine &= all(isinstance(t, Tensor) and 0 < prod(int(n) for n in t.shape or ()) <= ELEMENTS for t in types)
    fine &= all(isinstance(t, Tensor) and is_float(t.dtype) for t in types[len(made.inputs) :])
    return made if fine and made.inputs else None


def gather(paths: Sequence[Path], each: int, seed: int) -> dict[str, object]:
    """The content of the file."""
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[str, dict[str, str]] = {"regions": {}, "pieces": {}}
    for path in paths:
        model, draw = load(path), random.Random(f"{seed} {path.stem}")
        sizes = dict.fromkeys(model.symbols(), SIZE)
        counts.update(follows(computed(model)))
        cut = [g for g in fragments(model, sizes) if len(show_graph(g)) <= TEXT]
        own = {"regions": draw.sample(cut, min(each, len(cut))), "pieces": [*pieces(model, sizes, each, draw)]}
        for kind, graphs in own.items():
            for graph in graphs:
                found[kind].setdefault(show_graph(graph), path.stem)
        print(path.stem, {kind: len(graphs) for kind, graphs in own.items()}, flush=True)
    follow: dict[str, dict[str, int]] = {}
    for (before, after), n in sorted(counts.items()):
        follow.setdefault(before, {})[after] = n
    goals = {k: [{"model": m, "goal": t.splitlines()} for t, m in each.items()] for k, each in found.items()}
    return {"bench": "goal_corpus", "seed": seed, "models": [p.stem for p in paths], "follow": follow, **goals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=CORPUS)
    options = parser.parse_args()
    options.output.write_text(json.dumps(gather(options.files, options.each, options.seed), indent=0) + "\n")


if __name__ == "__main__":
    main()
