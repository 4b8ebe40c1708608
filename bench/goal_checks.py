"""The steps of one goal of `goals.py`, each a job of a worker process: labels and searches,
programs for a CPU and for a GPU, and their results.

A step returns what it found as JSON; `problem` is the text of a refusal. Inputs are normal numbers;
indices are rows of the tensors that they are for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "harness")]

import goal_times  # noqa: E402
from goal_peers import row_counts, with_floats  # noqa: E402

from taso_mirage.devices.cpu.device import CPU_DEVICE  # noqa: E402
from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.devices.device import Device  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.forms.base.form import CPU_GOALS, GPU_GOALS  # noqa: E402
from taso_mirage.ir.mugraph import kernels  # noqa: E402
from taso_mirage.ir.terms import Graph, Node  # noqa: E402
from taso_mirage.meanings.reals import EXACT  # noqa: E402
from taso_mirage.mugraph.checkpoint import from_json, to_json  # noqa: E402
from taso_mirage.mugraph.found import FoundMuGraph  # noqa: E402
from taso_mirage.mugraph.horizontal import fused_goals  # noqa: E402
from taso_mirage.mugraph.moved_goal import core_labels, labelled_goal  # noqa: E402
from taso_mirage.mugraph.refusals import results  # noqa: E402
from taso_mirage.mugraph.search import superoptimize  # noqa: E402
from taso_mirage.mugraph.stored_goal import stored_goal  # noqa: E402
from taso_mirage.operators.interpret import interpret  # noqa: E402

Found = dict[str, Any]
TOLERANCE = {"cpu": 1e-4, "gpu": 2e-2}
"""The largest difference from float64 over the largest number of the result: of sums in single
precision, and of values between operators in half precision."""
CAPABILITY = 90
"""The GPU for which programs are compiled: sm_90."""


def step(job: Mapping[str, Any]) -> Found:
    """One step; errors of the package are its `problem`, others are said to be internal."""
    start = time.perf_counter()
    try:
        found = STEPS[job["step"]](job)
    except TasoMirageError as error:
        found = {"problem": str(error)}
    except Exception as error:
        found = {"problem": f"internal error: {type(error).__name__}: {error}"[:400]}
    return found | {"seconds": round(time.perf_counter() - start, 2)}


def halved(graph: Graph) -> Graph:
    """The graph in half precision."""
    return with_floats(graph, "float16")


def arrays(goal: Graph, seed: int = 0) -> list[Any]:
    """Inputs of a goal."""
    rng = np.random.default_rng(seed)
    return [_drawn(x, n, rng) for x, n in zip(goal.inputs, row_counts(goal), strict=True)]


def _drawn(x: Node, rows: int, rng: np.random.Generator) -> Any:
    shape = [int(n) for n in x.shape]
    floats = x.dtype.startswith(("float", "bfloat"))
    return (rng.standard_normal(shape) if floats else rng.integers(0, rows, shape)).astype(x.dtype)


def exact(goal: Graph, given: Sequence[Any]) -> list[Any]:
    """The results in float64."""
    with np.errstate(all="ignore"):
        found = interpret(goal.outputs, EXACT, {x: EXACT.load(a) for x, a in zip(goal.inputs, given, strict=True)})
    return [np.asarray(found[output]) for output in goal.outputs]


def difference(results: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference over the largest number of each result; infinity for another shape or
    where only one of both is finite."""
    worst = 0.0
    for got, want in zip(results, wanted, strict=True):
        fine = np.isfinite(want)
        if got.shape != want.shape or not np.isfinite(got[fine]).all():
            return float("inf")
        gap = np.abs(got[fine].astype(np.float64) - want[fine])
        worst = max(worst, float(gap.max(initial=0.0) / max(np.abs(want[fine]).max(initial=0.0), 1e-30)))
    return worst


# ---------------------------------------------------------------- steps


def labelled(job: Mapping[str, Any]) -> Found:
    """Whether a goal is expressed: by labels, or by a form with kernels of its own."""
    goal = from_json(job["goal"])
    kinds = {"cpu": CPU_GOALS, "gpu": GPU_GOALS}
    forms = [name for name, kind in kinds.items() if kind.read(goal) is not None]
    try:
        if stored_goal(goal).stores:
            return {"forms": forms, "labels": sum(len(core_labels(x.graph).sizes) for x in fused_goals(goal))}
        return {"forms": forms, "labels": len(labelled_goal(goal)[1].sizes)}
    except TasoMirageError:
        if not forms:
            raise
        return {"forms": forms}


def searched(job: Mapping[str, Any]) -> Found:
    """The first verified muGraph for a target."""
    goal, device = _for(job)
    kind = CPU_GOALS if device is CPU_DEVICE else GPU_GOALS
    by_hand = kind.read(goal)
    found: Sequence[FoundMuGraph] = (
        by_hand.mugraphs(goal, device)
        if by_hand is not None
        else superoptimize(goal, best=1, budget=job["budget"], device=device)
    )
    if not found:
        return {"problem": f"{results(goal)}: no muGraph was verified within the budget"}
    graph = found[0].graph
    shown = [{"grid": list(n.attr("grid")), "loop": n.attr("loop")} for n in kernels(graph.outputs) if n.op == "kernel"]
    return {"graph": to_json(graph), "proved": found[0].evidence.tests > 0, "kernels": shown}


def _for(job: Mapping[str, Any]) -> tuple[Graph, Device]:
    goal = from_json(job["goal"])
    return (goal, CPU_DEVICE) if job["target"] == "cpu" else (halved(goal), H100)


def native(job: Mapping[str, Any]) -> Found:
    """The C++ library of a muGraph, and its results."""
    from taso_mirage.emit.cpu.native_kernel import NativeKernel

    goal, graph = from_json(job["goal"]), from_json(job["graph"])
    kernel = NativeKernel(graph)
    by_name = dict(zip((x.attr("name") for x in goal.inputs), arrays(goal), strict=True))
    results = kernel(*[by_name[x.attr("name")] for x in graph.inputs])
    return {"error": difference(results, exact(goal, [*by_name.values()]))}


def cubins(job: Mapping[str, Any]) -> Found:
    """The program of a muGraph in Triton, and its kernels compiled."""
    from taso_mirage.emit import triton
    from taso_mirage.emit.compile import compiled

    program = triton.program(from_json(job["graph"]))
    made = compiled(program, CAPABILITY)
    return {"source": program.source, "shared": max(each.shared for each in made)}


def interpreted(job: Mapping[str, Any]) -> Found:
    """The results of a program in Triton's interpreter, in a process of its own kind."""
    import interpreter

    with TemporaryDirectory() as place:
        folder, goal, graph = Path(place), halved(from_json(job["goal"])), from_json(job["graph"])
        given = dict(zip((x.attr("name") for x in goal.inputs), arrays(goal), strict=True))
        np.savez(folder / "given.npz", *[given[x.attr("name")] for x in graph.inputs])
        (folder / "source.py").write_text(job["source"])
        done = interpreter.run(LAUNCH, folder)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            return {"problem": f"the interpreter: {''.join(last)}"[:400]}
        with np.load(folder / "results.npz") as results:
            found = [results[name].astype(np.float64) for name in results.files]
    return {"error": difference(found, exact(goal, [*given.values()]))}


LAUNCH = """
import sys
from pathlib import Path
import numpy as np, torch
from taso_mirage.emit.compile import load_source
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor


def patched(tensor, scope):  # numpy from 2.4 on makes no number of an array of one element
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = patched
torch.set_deterministic_debug_mode("error")  # new tensors are full of NaN: memory may hold what is right
folder = Path(sys.argv[1])
module = load_source((folder / "source.py").read_text(), folder)
with np.load(folder / "given.npz") as given:
    results = module.launch(*[torch.tensor(given[name]) for name in given.files])
results = results if isinstance(results, tuple) else (results,)
np.savez(folder / "results.npz", *[x.double().numpy() for x in results])
"""


def timed(job: Mapping[str, Any]) -> Found:
    """Microseconds of the best program of a goal on this machine's GPU, and of its peers."""
    goal, device = _for(job)
    by_hand = GPU_GOALS.read(goal)
    found = (
        by_hand.mugraphs(goal, device)[: job["programs"]]
        if by_hand is not None
        else superoptimize(goal, best=job["programs"], budget=job["budget"], device=device)
    )
    given = {"goal": to_json(goal), "graphs": [to_json(each.graph) for each in found], **job["settings"]}
    ours = goal_times.tuned(given)
    peers = goal_times.timed_peers(given)
    return {"us": ours["ours"], "programs": ours["programs"], "peers": peers["baselines"], "notes": peers["notes"]}


STEPS: Mapping[str, Callable[[Mapping[str, Any]], Found]] = {
    "labels": labelled,
    "search": searched,
    "native": native,
    "cubins": cubins,
    "interpreter": interpreted,
    "time": timed,
}
