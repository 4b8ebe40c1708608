"""Graph optimizers on models that others reported, that others captured, and random ones: who keeps
results and interfaces.

    python bench/public.py [--corpus reports generated] [--count 200] [--first 0] [--tools NAME ...]
    python bench/public.py --corpus graphnet --graphnet CLONE [--count 100] [--exports FOLDER]
    python bench/public.py --shard 1/4 --lines part1.jsonl ...
    python bench/public.py --merge part1.jsonl ... [-o FILE]
    python bench/public.py --only generated:17 --tools onnxsim

Every tool optimizes every model in a process of its own, with a limit for each file; the judge
(`public_judge.py`) compares results with float64 and interfaces with the original's, and our
certificates are verified. `generated` are `--count` random models, from the seed `--first` on,
`reports` those of `public_reports.py`, `graphnet` as many samples of a clone of GraphNet, by each
`--exporter` (`models/graphnet`).

Each finding is a line of `--lines` as soon as it is there, and a second call with the same file
goes on. A shard takes every n-th model; `--merge` counts the lines of all shards. Without a shard
the counts are written at the end, into bench/results/public-cpu2.json. The last form judges single
models, prints their findings, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests"), str(ROOT / "tests" / "harness")]

import public_torch  # noqa: E402
from fuzz.generated.model import model_of  # noqa: E402
from peers import peer_versions  # noqa: E402
from public_judge import CASES, NOT_LOADED, RIGHT, Judged, Verdict  # noqa: E402
from public_lines import NOT_JUDGED, Lines, counted, merged  # noqa: E402
from public_reports import REPORTS  # noqa: E402
from public_tools import INDUCTOR, OUTPUTS, VERIFY, WRITERS, ToolProcess, certificate_of, openvino  # noqa: E402

from models import graphnet  # noqa: E402
from models.graphnet.__main__ import file_of  # noqa: E402
from models.graphnet.export import put  # noqa: E402
from models.real.torch_export import EXPORTERS  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402

GENERATED, OF_REPORTS, GRAPHNET = "generated", "reports", "graphnet"
TOOLS = (*WRITERS, *OUTPUTS)
EXPORT, REFERENCES = 5, 2
"""The limits of an export and of the float64 references of a sample of GraphNet, which has two
cases at least, as multiples of `--limit`."""


@dataclass(frozen=True, slots=True)
class Given:
    """A model by the name that `--only` takes: a function that gives it, or the reason why there is
    none, and the sample of GraphNet that it is exported from."""

    name: str
    build: Callable[[], onnx.ModelProto | str]
    sample: Path | None = None


def exported(sample: Path, file: Path, which: str, seconds: float) -> onnx.ModelProto | str:
    why = put(sample, file, which, seconds)
    return onnx.load(file) if why is None else why


def of_graphnet(options: argparse.Namespace, names: Sequence[str]) -> Iterator[Given]:
    for each in names:
        sample = options.graphnet / "samples" / each
        for which in options.exporter:
            file = file_of(options.exports, each, which)
            build = partial(exported, sample, file, which, EXPORT * options.limit)
            yield Given(f"{GRAPHNET}:{each}:{which}", build, sample)


def models(options: argparse.Namespace) -> Iterator[Given]:
    """All models of the corpora."""
    if OF_REPORTS in options.corpus:
        for name, build in REPORTS.items():
            yield Given(f"{OF_REPORTS}:{name}", build)
    if GENERATED in options.corpus:
        for number in range(options.first, options.first + options.count):
            yield Given(f"{GENERATED}:{number}", partial(model_of, number))
    if GRAPHNET in options.corpus:
        order = graphnet.spread(options.graphnet, options.parameters)
        yield from of_graphnet(options, order[options.first : options.first + options.count])


def named(options: argparse.Namespace) -> Iterator[Given]:
    """The models of `--only`."""
    for name in options.only:
        corpus, _, rest = name.partition(":")
        if corpus == OF_REPORTS and rest in REPORTS:
            yield Given(name, REPORTS[rest])
        elif corpus == GENERATED and rest.isdecimal():
            yield Given(name, partial(model_of, int(rest)))
        elif corpus == GRAPHNET and options.graphnet:
            yield from (each for each in of_graphnet(options, [rest.rpartition(":")[0]]) if each.name == name)
        else:
            raise SystemExit(
                f"no model is named {name!r}: {GENERATED}:NUMBER, or {OF_REPORTS}: {', '.join(REPORTS)}, "
                f"or {GRAPHNET}:SAMPLE:EXPORTER with --graphnet"
            )


def verdict(tool: ToolProcess, judged: Judged, place: Path, verifier: ToolProcess) -> Verdict:
    """The finding about a tool's result, and about its certificate if there is one."""
    source, target = place / "source.onnx", place / "result.onnx"
    for each in place.glob(f"{target.name}*"):
        each.unlink()
    copy, outside = onnx.load_from_string(judged.proto.SerializeToString()), judged.proto.ByteSize() % 10 == 0
    onnx.save(copy, source, save_as_external_data=outside, location=f"{source.name}.data", size_threshold=128)
    if (failed := tool.optimize(source, target)) is not None:
        return failed
    try:
        found = judged.verdict(onnx.load(target))
    except Exception as error:  # the file is no model
        return Verdict(NOT_LOADED, native.first_line(error)[:200])
    if not certificate_of(target).exists():
        return found
    return found.with_certificate(partial(verifier.optimize, source, target))


class Judging:
    """The tools, which live as long as this, and their findings about models."""

    def __init__(self, tools: Sequence[str], limit: float, stack: ExitStack) -> None:
        self.tools, self.limit = tools, limit
        self.place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.processes = {name: stack.enter_context(closing(ToolProcess(name, limit))) for name in (*tools, VERIFY)}

    def findings(self, given: Given, tools: Sequence[str]) -> Iterator[tuple[str, Verdict]]:
        """The findings of some tools; if the model cannot be judged, the only one has no tool."""
        proto = given.build()
        large = (2, REFERENCES * self.limit) if given.sample else (CASES,)
        judged = proto if isinstance(proto, str) else Judged.of(proto, *large)
        if isinstance(judged, str):
            yield "", Verdict(NOT_JUDGED, judged)
            return
        for tool in tools:
            yield tool, self._finding(tool, given, judged)

    def _finding(self, tool: str, given: Given, judged: Judged) -> Verdict:
        if tool == INDUCTOR:
            if given.sample is None:
                return Verdict(NOT_JUDGED, "there is no torch module")
            runs = public_torch.TorchRuns(given.sample, judged.cases, self.processes[tool], self.place)
            return public_torch.verdict(judged, runs)
        if tool in OUTPUTS:
            return openvino(judged, self.limit)
        return verdict(self.processes[tool], judged, self.place, self.processes[VERIFY])


def judge(options: argparse.Namespace, lines: Lines | None) -> None:
    """Judge the models of this shard that have no findings yet."""
    part, parts = (int(each) for each in options.shard.split("/"))
    there = named(options) if options.only else islice(models(options), part - 1, None, parts)
    with ExitStack() as stack:
        judging = Judging(options.tools, options.limit, stack)
        for given in there:
            tools = [t for t in options.tools if t not in (lines.has(given.name, options.tools) if lines else [])]
            began = time.monotonic()
            for tool, found in judging.findings(given, tools) if tools else ():
                if lines is not None:
                    lines.add(given.name, tool, found, time.monotonic() - began)
                if found.kind != RIGHT or options.only:
                    print(f"{given.name} {tool}: {found.kind}: {found.why[:200]}", flush=True)
                began = time.monotonic()


def head() -> dict[str, Any]:
    runtimes = {"taso-mirage": __version__, "onnxruntime": runtime.child_version()}
    versions = {**runtimes, **peer_versions((*TOOLS, "torch"))}
    return {"bench": "public", "device": runtime.device(), "versions": versions}


def write(files: Sequence[Path], output: Path) -> None:
    """Count the lines of all shards."""
    there, lines = merged(files)
    found = counted(lines, TOOLS)
    output.write_text(json.dumps({**there, "corpora": found}, indent=1) + "\n")
    for corpus in found:
        for row in corpus["rows"]:
            said = ", ".join(f"{row[kind]} {kind}" for kind in row if isinstance(row[kind], int) and row[kind])
            print(f"{corpus['corpus']} {row['case']}: {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpora = (OF_REPORTS, GENERATED, GRAPHNET)
    parser.add_argument("--corpus", nargs="+", choices=corpora, default=[OF_REPORTS, GENERATED])
    parser.add_argument("--count", type=int, default=200, help="generated models, or samples of GraphNet")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one: a seed, or a place")
    parser.add_argument("--graphnet", type=Path, metavar="CLONE", help="a clone of github.com/PaddlePaddle/GraphNet")
    parser.add_argument("--parameters", type=float, default=30e6, help="the most that a sample of GraphNet may have")
    parser.add_argument("--exporter", nargs="+", choices=[*EXPORTERS], default=[*EXPORTERS], help="of GraphNet")
    parser.add_argument("--exports", type=Path, metavar="FOLDER", help="where exported samples are kept")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=[*TOOLS])
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL", help="these models, without results")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a file")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="every N-th model, from the I-th")
    parser.add_argument("--lines", type=Path, default=Path("public.jsonl"), help="the file of findings")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="LINES", help="only count these files")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "public-cpu2.json")
    options = parser.parse_args()
    if GRAPHNET in options.corpus and options.merge is None and options.graphnet is None:
        parser.error("--corpus graphnet needs --graphnet CLONE")
    with tempfile.TemporaryDirectory() as place:
        options.exports = options.exports or Path(place)
        if options.merge is None:
            judge(options, None if options.only else Lines(options.lines, head()))
    if not options.only and options.shard == "1/1":
        write(options.merge or [options.lines], options.output)


if __name__ == "__main__":
    main()
