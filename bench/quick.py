"""`optimize --effort quick` beside other tools: seconds from the start of the process, nodes, and
the processor's time of a run.

    python bench/quick.py [--corpus FOLDER] [--only NAME ...] [--rounds 15] [--no-peers]

`FOLDER` is where `python -m models.real FOLDER --small` put the corpus; without it, the models of
300 and 3,000 nodes and the repository's own are done. Every model is optimized twice, and the bytes
are compared. Prints a table and writes bench/results/quick-cpu2.json after each row; rows of models
that are not named stay. Gains are those of one thread's processor time, which other work on the
machine hardly lengthens; files run in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from peers import ALONE, KIND, OURS, right  # noqa: E402
from real import KINDS, PEERS, last_line, run, versions  # noqa: E402
from rows import Rows  # noqa: E402

from models.real import KNOWN  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import random_inputs  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.check import check_cases  # noqa: E402
from taso_mirage.onnx_io import load  # noqa: E402

MINI = ROOT / "models" / "mini_transformer.onnx"
LAYERS = {"encoder_300": 6, "encoder_3000": 61}
"""The layers of the models that are made here, by their names."""
LIMITS = ((400, 3.0), (4000, 15.0))
"""Seconds that a model of up to so many nodes may take."""
WIDTH, HEADS, TOKENS = 64, 4, 32


# ---------------------------------------------------------------- models


class Encoder:
    """Layers of a transformer as exporters write them, in small operators, each with weights of its
    own: (1, TOKENS, WIDTH) -> (1, TOKENS, WIDTH)."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.rng = np.random.default_rng(0)

    def op(self, name: str, *operands: str, **attributes: Any) -> str:
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(name, [*operands], [result], f"n{len(self.nodes)}", **attributes))
        return result

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        array = self.rng.standard_normal(shape).astype(np.float32) / max(shape[0], 1) ** 0.5
        self.weights[name] = numpy_helper.from_array(array, name)
        return name

    def number(self, *values: float) -> str:
        name = f"c{'_'.join(map(str, values))}"
        kind = np.int64 if isinstance(values[0], int) else np.float32
        array = np.array(values if len(values) > 1 else values[0], kind)
        self.weights.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def norm(self, x: str) -> str:
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        spread = self.op("ReduceMean", self.op("Pow", centred, self.number(2.0)), axes=[-1])
        scaled = self.op("Div", centred, self.op("Sqrt", self.op("Add", spread, self.number(1e-5))))
        return self.op("Add", self.op("Mul", scaled, self.weight(WIDTH)), self.weight(WIDTH))

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(rows, columns)), self.weight(columns))

    def heads(self, x: str, *order: int) -> str:
        split = self.op("Reshape", self.linear(x, WIDTH, WIDTH), self.number(0, -1, HEADS, WIDTH // HEADS))
        return self.op("Transpose", split, perm=order)

    def layer(self, x: str) -> str:
        inside = self.norm(x)
        query, key, value = (self.heads(inside, *order) for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        scores = self.op("Div", self.op("MatMul", query, key), self.number((WIDTH // HEADS) ** 0.5))
        mixed = self.op("Transpose", self.op("MatMul", self.op("Softmax", scores, axis=-1), value), perm=(0, 2, 1, 3))
        joined = self.op("Reshape", mixed, self.number(0, -1, WIDTH))
        x = self.op("Add", x, self.linear(joined, WIDTH, WIDTH))
        wide = self.linear(self.norm(x), WIDTH, 4 * WIDTH)
        half = self.op("Add", self.op("Erf", self.op("Div", wide, self.number(2.0**0.5))), self.number(1.0))
        gelu = self.op("Mul", self.op("Mul", wide, half), self.number(0.5))
        return self.op("Add", x, self.linear(gelu, 4 * WIDTH, WIDTH))

    def model(self, layers: int) -> onnx.ModelProto:
        x = "x"
        for _ in range(layers):
            x = self.layer(x)
        self.nodes[-1].output[0] = "y"
        given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, TOKENS, WIDTH)) for n in "xy")
        graph = helper.make_graph(self.nodes, "encoder", [given], [made], [*self.weights.values()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def files(corpus: Path | None, place: Path) -> dict[str, Path]:
    """All models by name; those of the corpus that are there."""
    found = {"mini_transformer": MINI}
    for name, layers in LAYERS.items():
        found[name] = place / f"{name}.onnx"
        onnx.save(Encoder().model(layers), found[name])
    names = () if corpus is None else KNOWN
    there = {name: corpus / f"{name}.onnx" for name in names if corpus is not None}
    return found | {name: file for name, file in there.items() if file.exists()}


# ---------------------------------------------------------------- a row


def nodes(graph: onnx.GraphProto) -> int:
    """The number of nodes of a graph and of all graphs inside of it, without constants."""
    inner = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return sum(n.op_type != "Constant" for n in graph.node) + sum(map(nodes, inner))


def nodes_of(file: Path) -> int:
    model = onnx.load(file, load_external_data=False)
    return nodes(model.graph) + sum(len(f.node) for f in model.functions)


def processor_seconds(sessions: Sequence[Any], inputs: Mapping[str, Any], rounds: int) -> list[float]:
    """The lower quartile of the processor's seconds of a run of each, in turn."""
    times: list[list[float]] = [[] for _ in sessions]
    for session in sessions:
        session.run(None, inputs)
    for _ in range(rounds):
        for taken, session in zip(times, sessions, strict=True):
            start = time.process_time()
            session.run(None, inputs)
            taken.append(time.process_time() - start)
    return [float(np.percentile(each, 25)) for each in times]


def opened(file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def row(name: str, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One model, by us twice and by the others."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        targets = [place / f"ours{i}.onnx" for i in range(2)]
        asked = [["optimize", str(file), "-o", str(each), "--effort", "quick", "--json"] for each in targets]
        done = [run(each, options.limit) for each in asked]
        before = nodes_of(file)
        found: dict[str, Any] = {
            "case": name,
            "ended": [each.code for each in done],
            "seconds": [round(each.seconds, 2) for each in done],
            "processor_seconds": [round(each.processor, 2) for each in done],
            "limit": next((limit for most, limit in LIMITS if before <= most), None),
            "nodes": {ALONE: before},
        }
        if any(each.code for each in done):
            return found | {"note": done[0].errors.strip()[-300:]}
        said = last_line(done[0].output)
        digests = {hashlib.sha256(each.read_bytes()).hexdigest() for each in targets}
        found |= {"same_bytes": len(digests) == 1, "changed": said["changed"], "note": "; ".join(said["notes"])}
        return found | beside(name, file, targets[0], said, options)


def beside(name: str, file: Path, ours: Path, said: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Nodes and gains of ours and of the others, which are right."""
    notes: list[str] = []
    there = {ALONE: file, OURS: ours}
    try:
        model = load(file)
        sizes = said["sizes"][0]["sizes"] if said["sizes"] else {}
        cases = list(islice(check_cases(model, runtime.Session(str(file)), {**model.sizes, **sizes}, most=1), 1))
        tools = dict(zip(PEERS, PEERS, strict=True)) if options.peers else {}
        kind = KINDS.get(re.sub("_(torchscript|real)$", "", name), KIND)
        there |= right(tools, file, model, cases, ours.parent, notes, kind, options.limit)
        inputs = random_inputs(model, 0, {**model.sizes, **sizes})
        taken = processor_seconds([opened(each) for each in there.values()], inputs, options.rounds)
    except TasoMirageError as error:
        return {"peers": str(error)[:300]}
    gains = {who: round(taken[0] / each, 3) for who, each in zip(there, taken, strict=True)}
    counts = {who: nodes_of(each) for who, each in there.items()}
    others = [who for who in there if who not in (ALONE, OURS)] or [ALONE]
    best = max(others, key=gains.__getitem__)
    return {
        "nodes": counts,
        "gains": gains,
        "fewest_nodes_of_a_peer": min(counts[who] for who in others),
        "best_peer": best,
        "ratio_best_peer": round(gains[OURS] / gains[best], 3),
        "peers": "; ".join(notes),
    }


def show(r: Mapping[str, Any]) -> None:
    head = f"{r['case']:26} {'/'.join(f'{s:.1f}' for s in r['seconds'])} s of {r['limit'] or '-'}"
    print(f"{head} (processor {min(r['processor_seconds']):.1f}) same bytes {r.get('same_bytes')}", flush=True)
    for what in ("nodes", "gains"):
        if what in r:
            print(f"{'':26} {what}: {', '.join(f'{who} {value}' for who, value in r[what].items())}", flush=True)
    print(f"{'':26} {r.get('note', '')} {r.get('peers', '')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="where `python -m models.real` put its models")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these models only")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each file")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which a tool is stopped")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without other tools")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "quick-cpu2.json")
    options = parser.parse_args()
    rows = Rows(options.output, {"bench": "quick", "device": runtime.device(), "unit": "s", "versions": versions()})
    with tempfile.TemporaryDirectory() as place:
        there = files(options.corpus, Path(place))
        if unknown := sorted(set(options.only) - there.keys()):
            parser.error(f"no model {unknown[0]!r} is there: {', '.join(there)}")
        for name in options.only or there:
            found = row(name, there[name], options)
            rows.keep(found)
            show(found)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
