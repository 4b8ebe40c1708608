"""Graph optimizers on models that others reported and on random ones: who keeps results and
interfaces.

    python bench/public.py [--corpus reports generated] [--count 200] [--seed 0] [--tools NAME ...]
    python bench/public.py --only generated:17 --tools onnxsim

Every tool optimizes every model in a process of its own, with a limit for each file; the judge
(`public_judge.py`) compares results with float64 and interfaces with the original's. `generated`
are the first `--count` random models of a seed, `reports` those of `public_reports.py`. The second
form judges single models, prints their findings, and writes no results. Prints a table and writes
bench/results/public-cpu2.json after each tool.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests"), str(ROOT / "tests" / "harness")]

from fuzz.graphs import random_model  # noqa: E402
from peers import peer_versions  # noqa: E402
from public_judge import KINDS, NOT_LOADED, RIGHT, Judged, Verdict  # noqa: E402
from public_reports import REPORTS  # noqa: E402
from public_tools import WRITERS, ToolProcess  # noqa: E402
from rows import Rows  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402

GENERATED, OF_REPORTS = "generated", "reports"
SHOWN = 40
"""The largest number of findings of a tool that a row lists."""


def generated(count: int, seed: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Random models, without inputs and nodes on which no output depends: several tools remove such
    inputs, and one of the other models has one."""
    for number in range(seed, seed + count):
        model = onnx.load_from_string(random_model(number))
        read = {each.name for each in model.graph.output}
        for node in reversed([*model.graph.node]):
            if read.isdisjoint(node.output):
                model.graph.node.remove(node)
            read |= {*node.input} if not read.isdisjoint(node.output) else set()
        for each in [each for each in model.graph.input if each.name not in read]:
            model.graph.input.remove(each)
        yield f"{GENERATED}:{number}", model


def reported() -> Iterator[tuple[str, onnx.ModelProto]]:
    for name, build in REPORTS.items():
        yield f"{OF_REPORTS}:{name}", build()


def models(options: argparse.Namespace) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The models by names that `--only` takes."""
    if options.only:
        for name in options.only:
            corpus, _, rest = name.partition(":")
            if corpus == OF_REPORTS and rest in REPORTS:
                yield name, REPORTS[rest]()
            elif corpus == GENERATED and rest.isdecimal():
                yield from generated(1, int(rest))
            else:
                raise SystemExit(
                    f"no model is named {name!r}: {GENERATED}:NUMBER, or {OF_REPORTS}: {', '.join(REPORTS)}"
                )
        return
    yield from reported() if OF_REPORTS in options.corpus else ()
    yield from generated(options.count, options.seed) if GENERATED in options.corpus else ()


def judged_models(options: argparse.Namespace) -> tuple[dict[str, Judged], int]:
    """The models that can be judged, and the number of the others."""
    found, others = dict[str, Judged](), 0
    for name, proto in models(options):
        judged = Judged.of(proto)
        found |= {} if judged is None else {name: judged}
        others += judged is None
    return found, others


def verdict(tool: ToolProcess, judged: Judged, place: Path) -> Verdict:
    source, target = place / "source.onnx", place / "result.onnx"
    target.unlink(missing_ok=True)
    onnx.save(judged.proto, source)
    if (failed := tool.optimize(source, target)) is not None:
        return failed
    try:
        return judged.verdict(onnx.load(target))
    except Exception as error:  # the file is no model
        return Verdict(NOT_LOADED, native.first_line(error)[:200])


def row(name: str, there: Mapping[str, Judged], limit: float) -> dict[str, Any]:
    """The findings about a tool."""
    counts, findings, start = Counter[str](), list[dict[str, str]](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, closing(ToolProcess(name, limit)) as tool:
        for model, judged in there.items():
            found = verdict(tool, judged, Path(folder))
            counts[found.kind] += 1
            if found.kind != RIGHT:
                findings.append({"model": model, "kind": found.kind, "why": found.why})
    seconds = round(time.monotonic() - start, 1)
    kinds = {kind: counts[kind] for kind in KINDS}
    return {"case": name, "models": len(there), **kinds, "seconds": seconds, "findings": findings[:SHOWN]}


def versions(tools: Sequence[str]) -> dict[str, str]:
    return {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), **peer_versions(tools)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", nargs="+", choices=(OF_REPORTS, GENERATED), default=[OF_REPORTS, GENERATED])
    parser.add_argument("--count", type=int, default=200, help="generated models")
    parser.add_argument("--seed", type=int, default=0, help="of the first generated model")
    parser.add_argument("--tools", nargs="+", choices=WRITERS, default=[*WRITERS])
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL", help="these models, without results")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a file")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "public-cpu2.json")
    options = parser.parse_args()
    there, others = judged_models(options)
    print(f"{len(there)} models; {others} more do not run in ONNX Runtime, or have no float64 reference", flush=True)
    head = {
        "bench": "public",
        "device": runtime.device(),
        "corpora": options.corpus,
        "generated": options.count if GENERATED in options.corpus else 0,
        "seed": options.seed,
        "versions": versions(options.tools),
    }
    rows = None if options.only else Rows(options.output, head)
    for name in options.tools:
        found = row(name, there, options.limit)
        said = ", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind])
        print(f"{name}: {said} ({found['seconds']} s)", flush=True)
        for each in found["findings"][: SHOWN if options.only else 5]:
            print(f"    {each['model']}: {each['kind']}: {each['why'][:160]}", flush=True)
        if rows is not None:
            rows.keep(found)


if __name__ == "__main__":
    main()
