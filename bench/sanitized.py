"""One launch of each kind of generated GPU kernel on a GPU, compared with float64, and under
NVIDIA's compute-sanitizer.

    python bench/sanitized.py FILE --prepare
    python bench/sanitized.py FILE [--tools memcheck racecheck] [--limit 150] [-o RESULTS.json]

`--prepare` writes the programs, which needs no GPU: of the forms (`tests/forms/*_gpu.py`) with
their epilogues and prologues, of the common forms of `goal_forms.py`, and of the goals whose
elements move. Sizes are small and odd, so that blocks are not full. The other command runs them,
first without a tool, which also compiles them, then below each tool. It prints the programs that
are off or of which a tool reports an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
PATHS = [str(ROOT / each) for each in ("", "bench", "tests/harness", "tests/forms")]
sys.path[:0] = PATHS

from goal_forms import FORMS  # noqa: E402
from goal_peers import with_floats  # noqa: E402
from goal_times import programs  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.emit import triton, tune  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.forms.base.form import GPU_GOALS, in_operators  # noqa: E402
from taso_mirage.ir.terms import Graph  # noqa: E402
from taso_mirage.mugraph.checkpoint import to_json  # noqa: E402
from taso_mirage.mugraph.search import superoptimize  # noqa: E402

Case = tuple[str, str, Graph]
"""A name, a program, and the goal that it computes."""
TOOL = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
BOUND = 2e-2
"""The largest difference from float64 over the largest number of the result."""
RUN = """
import json, os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import numpy as np, torch
import goal_checks
from taso_mirage.emit.compile import load_source
from taso_mirage.mugraph.checkpoint import from_json
torch.set_deterministic_debug_mode("error")  # new tensors are full of NaN: memory may hold what is right
folder = Path(sys.argv[1])
for i, each in enumerate(json.loads((folder / "given.json").read_text())):
    goal = from_json(each["goal"])
    print("CASE", each["name"], flush=True)
    arrays = goal_checks.arrays(goal)
    try:
        module = load_source(each["source"], folder, f"program_{i}")
        given = [torch.tensor(a.astype(np.float32) if a.dtype.kind == "V" else a) for a in arrays]
        types = [getattr(torch, x.dtype) for x in goal.inputs]
        found = module.launch(*[x.to(dtype).cuda() for x, dtype in zip(given, types)])
        found = [x.double().cpu().numpy() for x in (found if isinstance(found, tuple) else (found,))]
        torch.cuda.synchronize()
    except Exception as error:
        print("PROBLEM", f"{type(error).__name__}: {error}".splitlines()[0][:200], flush=True)
        continue
    print("ERROR", goal_checks.difference(found, goal_checks.exact(goal, arrays)), flush=True)
"""


def of_forms() -> Iterator[Case]:
    """The programs of the hand-written forms, with a few epilogues and prologues in each."""
    convolutions, shifted = (import_module(f"test_{name}_gpu") for name in ("convolutions", "shifted"))
    for name, ((own, goal), block) in convolutions.FORMS.items():
        yield f"convolution: {name}", triton.program(convolutions.mugraph(own, goal, block)).source, goal
    for name, ((own, goal), block) in shifted.FORMS.items():
        yield f"shifted: {name}", shifted.program(own, goal, block).source, goal
    for kind in ("depthwise", "grouped_transposed", "max_pool"):
        module = import_module(f"test_{kind}_gpu")
        for name, (goal, block) in module.FORMS.items():
            yield f"{kind}: {name}", module.program(goal, block).source, goal[1]
    epilogues = import_module("test_epilogues_gpu")
    for name, graph in epilogues.cases():
        yield f"epilogue: {name}", epilogues.program(graph), Graph(graph.inputs, in_operators(graph.outputs))


def of_searches() -> Iterator[Case]:
    """The first programs of searched goals, without and with roles of warps."""
    moved = import_module("moved_goals")
    goals = {f"form: {name}": with_floats(made(), "float16") for name, made in FORMS.items()}
    goals |= {f"moved: {name}": moved.goal(outputs) for name, outputs in moved.GOALS.items()}
    for name, goal in goals.items():
        by_hand = GPU_GOALS.read(goal)
        try:
            found = by_hand.mugraphs(goal, H100)[:1] if by_hand else superoptimize(goal, best=1, budget=20, device=H100)
        except TasoMirageError as error:
            print(f"{name}: {error}", flush=True)
            continue
        for i, program in enumerate(programs([to_json(each.graph) for each in found])):
            yield f"{name} {i}", tune.overlapped(program).source, goal


def prepare(path: Path) -> None:
    cases: list[dict[str, Any]] = []
    for kind in (of_forms, of_searches):
        cases += [{"name": name, "source": source, "goal": to_json(goal)} for name, source, goal in kind()]
    path.write_text(json.dumps(cases, indent=0))
    print(f"{len(cases)} programs in {path}")


def ran(cases: list[dict[str, Any]], folder: Path, limit: float, *tool: str) -> tuple[dict[str, Any], str]:
    """The results of each case: the error relative to float64 or the problem, and the reports of
    the tool."""
    (folder / "given.json").write_text(json.dumps(cases))
    (folder / "run.py").write_text(RUN)
    command = [*tool, sys.executable, str(folder / "run.py"), str(folder), *PATHS]
    with (folder / "out.txt").open("w") as out:
        try:
            code = subprocess.run(
                command,
                env={"TRITON_CACHE_DIR": str(folder / "triton")} | os.environ,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=limit,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    text = (folder / "out.txt").read_text(errors="replace")
    found: dict[str, Any] = {}
    for part in text.split("CASE ")[1:]:
        name, _, rest = part.partition("\n")
        found[name] = {"reports": rest.count("========= Invalid") + rest.count("========= Error: Race")}
        for line in rest.splitlines():
            if line.startswith("ERROR "):
                found[name]["error"] = float(line.split()[1])
            elif line.startswith("PROBLEM "):
                found[name]["problem"] = line.removeprefix("PROBLEM ")
            elif line.startswith("========= ") and "reported" not in found[name] and "SUMMARY" not in line:
                found[name]["reported"] = line.removeprefix("========= ")
    summary = [line for line in text.splitlines() if "SUMMARY" in line]
    return found, f"exit {code}; {len(found)} of {len(cases)} launched; {' '.join(summary) or text[-300:]}"


def wrong(found: dict[str, Any]) -> dict[str, Any]:
    """The cases that did not run, are off, or of which a tool reports something."""
    return {k: v for k, v in found.items() if v["reports"] or not v.get("error", 1.0) < BOUND or "reported" in v}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--tools", nargs="*", default=["memcheck", "racecheck"])
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of a run of all programs")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "sanitized.json")
    options = parser.parse_args()
    if options.prepare:
        prepare(options.file)
        return
    cases = json.loads(options.file.read_text())
    cases = [c for c in cases if not options.only or any(part in c["name"] for part in options.only)]
    head = {"bench": "sanitized", "device": tune.gpu_and_versions(), "versions": {"taso-mirage": __version__}}
    runs: dict[str, Any] = {}
    with TemporaryDirectory() as place:
        for tool in ("", *options.tools):
            start = time.perf_counter()
            asked = [TOOL or "compute-sanitizer", "--tool", tool, "--error-exitcode", "9"] if tool else []
            found, said = ran(cases, Path(place), options.limit, *asked)
            seconds = round(time.perf_counter() - start, 1)
            runs[tool or "alone"] = {"said": said, "seconds": seconds, "cases": len(found), "wrong": wrong(found)}
            print(tool or "alone", f"{seconds} s:", said, f"{len(wrong(found))} wrong", flush=True)
            for name, each in wrong(found).items():
                print("  ", name, each, flush=True)
            options.output.write_text(json.dumps({**head, "programs": len(cases), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
