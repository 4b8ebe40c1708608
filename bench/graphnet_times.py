"""Samples of GraphNet on one machine: eager mode, Inductor, ONNX Runtime, OpenVINO and ours.

    python bench/graphnet_times.py CLONE [--count 200] [--effort quick] [--device cuda]
    [--lines FILE] [--shard I/N] [--exports FOLDER] [--total SECONDS]
    python bench/graphnet_times.py --merge FILE ... [-o RESULTS]

Each sample runs in a process of its own (a sample is a program of others), and its row is a line of
`--lines` as soon as it is there; a second call with the same file goes on. With `--total` no sample
begins after so many seconds. All ways get the same inputs and run A B B A ... in turn; medians in
microseconds. Ours is the result of `taso_mirage.optimize` for the sample's export. If nothing in it
changed, it has the times of ONNX Runtime. Inductor is torch.compile, on a GPU with CUDA graphs;
OpenVINO runs on CPUs only. `--merge` prints the rows that are there as a table, geometric means and
GraphNet's score ES(t) (`graphnet_score.py`), and writes the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from graphnet_score import TOLERANCES, least_tolerance, score  # noqa: E402
from graphnet_table import graphnet as table  # noqa: E402
from peers import peer_versions  # noqa: E402
from public_torch import array_of, tensor_of  # noqa: E402

from models import graphnet  # noqa: E402
from models.graphnet.__main__ import file_of  # noqa: E402
from models.graphnet.export import put  # noqa: E402
from taso_mirage import __version__, optimize  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.native import Arrays  # noqa: E402
from taso_mirage.targets.known import TARGETS  # noqa: E402

EAGER, INDUCTOR, ALONE, OPENVINO, OURS = "eager", "inductor", "onnxruntime", "openvino", "ours"
PEERS = (EAGER, INDUCTOR, ALONE, OPENVINO)
SHOWN = (-7, -6, -5, -3, 0, 1, 3)
"""The tolerances at which `--merge` prints the score."""


@dataclass(frozen=True, slots=True)
class TorchWay:
    """A module as `runtime.interleaved` takes it beside sessions."""

    module: Callable[..., Any]
    device: str

    def run(self, inputs: Arrays) -> list[Any]:
        import torch

        with torch.inference_mode():
            return [array_of(each.cpu()) for each in self.module(*self._given(inputs))]

    def prepared(self, inputs: Arrays) -> Callable[[], float]:
        import torch

        given = self._given(inputs)
        wait = torch.cuda.synchronize if self.device == "cuda" else lambda: None

        def seconds() -> float:
            wait()
            began = time.perf_counter()
            with torch.inference_mode():
                self.module(*given)
            wait()
            return time.perf_counter() - began

        return seconds

    def _given(self, inputs: Arrays) -> list[Any]:
        return [tensor_of(each).to(self.device) for each in inputs.values()]


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways that a sample runs here, and the reasons why others do not."""

    there: dict[str, Any]
    failed: dict[str, str]
    seconds: dict[str, float]

    def add(self, name: str, opened: Callable[[], Any], inputs: Arrays) -> Any:
        """Open a way, and run it once; its outputs."""
        began = time.monotonic()
        try:
            way = opened()
            outputs = way.run(inputs)
        except Exception as error:  # compilers fail in their own ways
            self.failed[name] = native.first_line(error)[:200]
            return None
        self.there[name] = way
        self.seconds[name] = round(time.monotonic() - began, 1)
        return outputs


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A sample's times in all ways, in this process. Raises what it raises in eager mode."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # as ONNX Runtime runs here
    sample = graphnet.load(options.clone / "samples" / name, device=options.device)
    module = sample.with_weights()
    inputs = {each: array_of(sample.arguments[each].cpu()) for each in sample.inputs}
    ways = Ways({}, {}, {})
    eager = TorchWay(module, options.device).run(inputs)
    outputs = {OURS: None, **_of_onnx(name, inputs, ways, options)}
    mode = {"mode": "reduce-overhead"} if options.device == "cuda" else {}
    compiled = torch.compile(module, **mode)
    outputs[INDUCTOR] = ways.add(INDUCTOR, lambda: TorchWay(compiled, options.device), inputs)
    ways.there[EAGER] = TorchWay(module, options.device)
    found = runtime.interleaved([*ways.there.values()], inputs, options.seconds, patience=2.0)
    times = dict(zip(ways.there, map(np.asarray, found), strict=True))
    kept = OURS not in times and OURS not in ways.failed
    if kept and ALONE in times:
        times[OURS], outputs[OURS] = times[ALONE], outputs[ALONE]
    tolerances = {whose: least_tolerance(there, eager) for whose, there in outputs.items() if there is not None}
    ratios = {p: _quartiles(times[p] / times[OURS]) for p in PEERS if p in times} if OURS in times else {}
    return {
        "case": name,
        "parameters": graphnet.parameters(options.clone / "samples" / name),
        "medians": {whose: round(float(np.median(each)) * 1e6, 1) for whose, each in times.items()},
        "ratios": ratios,
        "tolerances": tolerances,
        "failed": ways.failed,
        "kept": kept,
        "runs": len(found[0]),
        "opening": ways.seconds,
        "load": round(os.getloadavg()[0], 2),
    }


def _of_onnx(name: str, inputs: Arrays, ways: Ways, options: argparse.Namespace) -> dict[str, Any]:
    """The outputs of the ways that take the sample's export."""
    file = file_of(options.exports, name, options.exporter)
    if (why := put(options.clone / "samples" / name, file, options.exporter, options.limit)) is not None:
        ways.failed.update({ALONE: why, OURS: why, OPENVINO: why})
        return {}
    read = {each.name for each in onnx.load(file, load_external_data=False).graph.input}
    given = {each: array for each, array in inputs.items() if each in read}
    target = TARGETS[options.device]
    outputs = {ALONE: ways.add(ALONE, lambda: _Given(runtime.Session(str(file), target), given), inputs)}
    result: Any = None

    def ours() -> Any:
        nonlocal result
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "result.onnx"
            _, result = optimize(file, effort=options.effort, target=target, output=path, return_result=True)
        return _Given(runtime.open_in_child(result.model, target), given)

    outputs[OURS] = ways.add(OURS, ours, inputs)
    if result is not None and not result.changed:
        ways.there.pop(OURS, None)
    if options.device == "cpu":
        opened = lambda: _Given(runtime.Session(str(file), TARGETS[OPENVINO]), given)  # noqa: E731
        outputs[OPENVINO] = ways.add(OPENVINO, opened, inputs)
    return outputs


@dataclass(frozen=True, slots=True)
class _Given:
    """A session with the inputs that its model has; an exporter may leave some out."""

    session: runtime.Session
    inputs: Arrays

    @property
    def target(self) -> Any:
        return self.session.target

    def run(self, _: Arrays) -> list[Any]:
        return self.session.run(self.inputs)

    def prepared(self, _: Arrays) -> Any:
        return self.session.prepared(self.inputs)


def _quartiles(rounds: Any) -> list[float]:
    return [round(float(np.percentile(rounds, p)), 4) for p in (50, 25, 75)]


# ---------------------------------------------------------------- many samples


def row_of_process(name: str, arguments: Sequence[str], limit: float) -> dict[str, Any]:
    """The row of a sample that another process makes, or one that says why there is none."""
    command = [sys.executable, __file__, *arguments, "--sample", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
    except subprocess.TimeoutExpired:
        return {"case": name, "left out": f"late: more than {limit:.0f} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    said = (done.stderr.strip().splitlines() or [""])[-1][:200]
    return {"case": name, "left out": said if done.returncode == 1 else f"exit code {done.returncode} {said}"}


def measure(options: argparse.Namespace) -> None:
    """Measure the samples of this shard that have no row yet."""
    part, parts = (int(each) for each in options.shard.split("/"))
    names = graphnet.spread(options.clone, options.parameters)[: options.count]
    start, head = time.monotonic(), setting(options)
    if not options.lines.exists():
        options.lines.write_text(json.dumps(head) + "\n")
    earlier, rows = read(options.lines)
    if earlier != head:
        raise SystemExit(f"{options.lines} is of another setting: {earlier}")
    done = {each["case"] for each in rows}
    for name in islice(names, part - 1, None, parts):
        if name in done:
            continue
        began = time.monotonic()
        if began - start > options.total:
            break
        found = row_of_process(name, sys.argv[1:], options.limit)
        found["took"] = round(time.monotonic() - began, 1)
        with options.lines.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(found, flush=True)


def setting(options: argparse.Namespace) -> dict[str, Any]:
    target = TARGETS[options.device]
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version()}
    return {
        "bench": "graphnet",
        "device": runtime.device(target),
        "effort": options.effort,
        "exporter": options.exporter,
        "versions": {**versions, **peer_versions(("torch", "openvino"))},
    }


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The setting and the rows; a last line that is not whole is left out."""
    head, *rows = (json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))
    return head, rows


def merge(files: Sequence[Path], output: Path | None) -> None:
    """Print the table, the means and the scores of all shards, and write their rows."""
    there = [read(file) for file in files]
    rows = list({row["case"]: row for _, some in there for row in some}.values())
    found = {**there[0][0], "rows": rows}
    print("\n".join([*table(found), *summary(rows)]))
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n")


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Geometric means of ours over each peer, and the scores."""
    timed = [row for row in rows if "medians" in row]
    lines = [f"{len(rows)} samples, {len(timed)} of them run in eager mode"]
    for peer in PEERS:
        gains = [row["ratios"][peer][0] for row in timed if peer in row["ratios"]]
        if gains:
            mean, slower = float(np.exp(np.mean(np.log(gains)))), sum(each < 0.98 for each in gains)
            lines.append(f"ours over {peer}: {mean:.3f} on {len(gains)} samples, below 0.98 on {slower}")
    for whose in (OURS, INDUCTOR, ALONE, OPENVINO):
        if any(whose in row["medians"] for row in timed):
            scores = ", ".join(f"{t}: {score(timed, whose, t):.3f}" for t in TOLERANCES if t in SHOWN)
            lines.append(f"ES(t) of {whose}: {scores}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", nargs="?", type=Path, help="a clone of github.com/PaddlePaddle/GraphNet")
    parser.add_argument("--count", type=int, default=200, help="the number of samples, of all kinds and sizes")
    parser.add_argument("--parameters", type=float, default=30e6, help="the most that a sample may have")
    parser.add_argument("--effort", choices=("quick", "default"), default="quick", help="of ours")
    parser.add_argument("--exporter", choices=("dynamo", "torchscript"), default="dynamo")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="timing of a sample")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for a sample")
    parser.add_argument("--total", type=float, default=math.inf, metavar="SECONDS", help="no sample begins later")
    parser.add_argument("--exports", type=Path, metavar="FOLDER", help="where exported samples are kept")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="every N-th sample, from the I-th")
    parser.add_argument("--lines", type=Path, default=Path("graphnet.jsonl"), help="the file of rows")
    parser.add_argument("--sample", help="print the row of this one only")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="LINES", help="only summarize these files")
    parser.add_argument("-o", "--output", type=Path, help="where --merge writes the rows")
    options = parser.parse_args()
    if options.merge:
        merge(options.merge, options.output)
        return
    if options.clone is None:
        parser.error("CLONE is missing: a clone of github.com/PaddlePaddle/GraphNet")
    if options.sample is None:
        measure(options)
        return
    with tempfile.TemporaryDirectory() as place:
        options.exports = options.exports or Path(place)
        options.exports.mkdir(parents=True, exist_ok=True)
        print(json.dumps(row(options.sample, options)))


if __name__ == "__main__":
    main()
