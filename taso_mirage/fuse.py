"""The last stage of `optimize`: searched kernels in place of a model's regions, kept only where the whole model was measured faster.

For a CPU: each distinct region's muGraphs are searched, compiled and run here (Mirage, OSDI'25); what is faster than the runtime on
the region alone is tried in the model, one kind of region after the other, and the result passes the check of every other rewrite.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taso_mirage import __version__
from taso_mirage.codegen.cpu.tune import tuned
from taso_mirage.cpu import CPU as DEVICE
from taso_mirage.errors import InvalidOption, TasoMirageError
from taso_mirage.ir import Graph
from taso_mirage.kernels.checkpoint import from_json, to_json
from taso_mirage.kernels.regions import Spot, fragments
from taso_mirage.kernels.search import Options, Search
from taso_mirage.model import Model, random_inputs
from taso_mirage.onnx_io.build import standalone
from taso_mirage.optimize import session as runtime
from taso_mirage.optimize.check import cases, compare
from taso_mirage.optimize.pipeline import Config, Result
from taso_mirage.optimize.target import CPU
from taso_mirage.optimize.timing import compared
from taso_mirage.runtime.embed import Region, embed
from taso_mirage.runtime.plan import Kernel, cpu_kernel
from taso_mirage.toml import write_file

Progress = Callable[[str, int, int], None]
MODES = ("off", "cached", "search")
BEST = 24
"""muGraphs of a region that are compiled and run."""
RUNS = 40
"""Runs of a region alone in the runtime, of which the fastest counts."""
NODE = 1e-6
"""Seconds that a node costs in the runtime, besides its kernel."""
KEEP = 1.01
"""A kind of region is kept if the whole model was measured so many times as fast with it."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A kind of region with its kernel: the seconds of one on its own, as a kernel and in the runtime, and the whole model's gain
    (1: it was not kept)."""

    operators: tuple[str, ...]
    places: int
    kernel: float
    runtime: float
    gain: float = 1.0


def fused(
    result: Result, config: Config, mode: str, budget: float, progress: Progress = lambda stage, done, total: None
) -> Result:
    """The result with kernels in it, if the model is faster so; else the result, with a note that says why.

    `mode`: "search", or "cached" for the regions that were searched on this machine before. `budget`: seconds for all searches.
    """
    if mode not in MODES:
        raise InvalidOption(f"--kernels {mode} is not known; it is one of {', '.join(MODES)}")
    if mode == "off":
        return result
    if result.target.name != CPU.name or result.model.symbols():
        reason = "has dims without fixed sizes" if result.model.symbols() else f"is for {result.target.name}"
        return replace(
            result, notes=(*result.notes, f"no kernels: they are searched for fixed sizes on cpu, the model {reason}")
        )
    return _Stage(result, config, mode, progress).run(budget)


class _Stage:
    def __init__(self, result: Result, config: Config, mode: str, progress: Progress) -> None:
        self.result, self.config, self.mode, self.progress = result, config, mode, progress
        self.kinds = fragments(result.model, {})
        self.cache = _folder()

    def run(self, budget: float) -> Result:
        start = time.monotonic()
        worth = self._worth(start + budget)
        found, kept = self._kept(worth)
        seconds = {**self.result.seconds, "kernels": time.monotonic() - start}
        said = [
            f"kernel for {' '.join(f.operators)} in {f.places} places: {f.gain:.3f} times as fast"
            for f in kept
            if f.gain > 1
        ]
        if found is None:
            note = f"no kernels: of {len(self.kinds)} kinds of regions none makes the model measurably faster"
            return replace(self.result, seconds=seconds, notes=(*self.result.notes, note))
        return self._checked(found, seconds, said)

    # ------------------------------------------------------------ kernels

    def _worth(self, end: float) -> list[tuple[Fused, Kernel, list[Spot]]]:
        """What is faster than the runtime on its own, the largest gain over all places first."""
        found = []
        for i, (graph, spots) in enumerate(self.kinds.items()):
            self.progress("kernels", i, len(self.kinds))
            try:
                kernel = self._best(graph, max(end - time.monotonic(), 0.0) / (len(self.kinds) - i))
            except TasoMirageError:
                continue  # it has no kernel: the operators stay
            if kernel is None:
                continue
            alone = self._alone(graph)
            if kernel[1] + NODE < alone:
                operators = tuple(n.op for n in graph if n.args)
                found.append((Fused(operators, len(spots), kernel[1], alone), cpu_kernel(kernel[0]), spots))
        return sorted(found, key=lambda f: (f[0].kernel - f[0].runtime) * f[0].places)

    def _best(self, graph: Graph, share: float) -> tuple[Graph, float] | None:
        """The fastest muGraph of a region and its seconds, from the disk where it was searched before."""
        path = self.cache / f"{_key(graph)}.json"
        if path.exists():
            known = json.loads(path.read_text())
            return (from_json(known["mugraph"]), known["seconds"]) if known["mugraph"] is not None else None
        if self.mode == "cached" or share <= 0:
            return None
        found = Search(graph, Options(), DEVICE).run(BEST, share)
        best = tuned([f.graph for f in found], _threads(), 1.0)[0] if found else None
        value = {
            "mugraph": None if best is None else to_json(best.kernel.graph),
            "seconds": None if best is None else best.seconds,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(value))
        return None if best is None else (best.kernel.graph, best.seconds)

    def _alone(self, graph: Graph) -> float:
        """Seconds of the region in the runtime."""
        model = standalone(graph, self.result.model.opsets)
        run = runtime.opened(model).prepared(random_inputs(model, 0, {}))
        return min(run() for _ in range(RUNS))

    # ------------------------------------------------------------ the model

    def _kept(self, worth: Sequence[tuple[Fused, Kernel, list[Spot]]]) -> tuple[Model | None, list[Fused]]:
        """The model with the kinds that make it faster as a whole, each tried on top of those before."""
        base = self.result.model
        best: Model | None = None
        placed: list[Region] = []
        kept: list[Fused] = []
        inputs = self.config.inputs[0] if self.config.inputs else random_inputs(base, 0, {})
        for i, (kind, kernel, spots) in enumerate(worth):
            self.progress("kernels in the model", i, len(worth))
            regions = [*placed, *(Region(s.inputs, s.outputs, kernel) for s in spots)]
            try:
                model = embed(base, regions)
                sessions = [runtime.opened(m) for m in (best or base, model)]
            except TasoMirageError:
                continue  # a region that cannot be one node
            times = runtime.interleaved(sessions, inputs, self.config.seconds / 2)
            gain = compared([times[0]], [times[1]], [1.0]).ratio
            if gain >= KEEP:
                best, placed = model, regions
                kept.append(replace(kind, gain=gain))
        return best, kept

    def _checked(self, model: Model, seconds: dict[str, float], said: Sequence[str]) -> Result:
        """The result with the model, if it passes the check and is faster than the original."""
        result = self.result
        original = runtime.opened(result.original, source=True)
        session = runtime.opened(model)
        prepared = list(cases(result.original, original, {}, self.config.inputs))
        differences = compare(result.original, session, prepared)
        bad = next((d for d in differences if not d.passed), None)
        if bad is not None:
            return replace(
                result,
                seconds=seconds,
                notes=(*result.notes, f"the check failed with kernels ({bad}): they are left out"),
            )
        inputs = self.config.inputs[0] if self.config.inputs else random_inputs(result.original, 0, {})
        times = runtime.interleaved([original, session], inputs, self.config.seconds)
        timing = compared([times[0]], [times[1]], [1.0])
        return replace(
            result,
            model=model,
            changed=True,
            timing=timing,
            differences=tuple(differences),
            seconds=seconds,
            notes=(*result.notes, *said),
        )


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _key(graph: Graph) -> str:
    """What a search of a region hangs on: its structure and shapes, the machine, and this version."""
    program = "\n".join(to_json(graph)["program"])
    said = "\0".join([program, runtime.device(), str(_threads()), __version__])
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def _folder() -> Path:
    from taso_mirage.optimize.cache import cache_path

    return cache_path().parent / "kernels"
