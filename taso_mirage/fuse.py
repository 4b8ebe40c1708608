"""The last stage of `optimize`: searched kernels in place of a model's regions, kept only where the whole model was measured faster.

For a CPU: each distinct region's muGraphs are searched, compiled and run here (Mirage, OSDI'25); what is faster than the runtime on
the region alone is tried in the model, one kind of region after the other, and the result passes the check of every other rewrite.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taso_mirage import __version__
from taso_mirage.codegen.cpu.tune import tuned
from taso_mirage.cpu import CPU as DEVICE
from taso_mirage.cpu import cores
from taso_mirage.errors import InvalidOption, TasoMirageError
from taso_mirage.ir import Graph
from taso_mirage.kernels.checkpoint import from_json, to_json
from taso_mirage.kernels.regions import Spot, fragments
from taso_mirage.kernels.search import Options, Search
from taso_mirage.model import Model, random_inputs
from taso_mirage.onnx_io.build import standalone
from taso_mirage.optimize import session as runtime
from taso_mirage.optimize.cache import cache_path
from taso_mirage.optimize.check import cases, compare
from taso_mirage.optimize.pipeline import KEPT, Config, Result, Stop, passes_checker
from taso_mirage.optimize.search import Budget
from taso_mirage.optimize.session import Session
from taso_mirage.optimize.target import CPU
from taso_mirage.optimize.timing import Timing, compared
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
"""A kind of region is kept if the whole model was measured so many times as fast with it, and so is the result."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A kind of region with its kernel: the seconds of one on its own, as a kernel and in the runtime."""

    operators: tuple[str, ...]
    spots: tuple[Spot, ...]
    kernel: Kernel
    seconds: float
    runtime: float

    @property
    def saved(self) -> float:
        """Seconds of all its places together, if nothing else changes."""
        return (self.runtime - self.seconds) * len(self.spots)


def check_mode(mode: str, measure: bool) -> None:
    """Raise InvalidOption for a mode that is not known, or that needs measurements where there are none."""
    if mode not in MODES:
        raise InvalidOption(f"--kernels {mode} is not known; it is one of {', '.join(MODES)}")
    if mode != "off" and not measure:
        raise InvalidOption(
            f"--kernels {mode} and --no-measure exclude each other: a kernel is kept if it was measured faster"
        )


def fused(
    result: Result,
    config: Config,
    mode: str,
    progress: Progress = lambda stage, done, total: None,
    stop: Stop | None = None,
) -> Result:
    """The result with kernels in it, if the model is faster so; else the result, with a note that says why.

    `mode`: "search", or "cached" for the regions that were searched on this machine before. The searches together may take the budget of
    `config`; `stop` ends them, and what was measured to be faster until then is kept.
    """
    check_mode(mode, config.measure)
    if mode == "off":
        return result
    if result.target.name != CPU.name or result.model.symbols():
        reason = "has dims without fixed sizes" if result.model.symbols() else f"is for {result.target.name}"
        return _noted(result, f"no kernels: they are searched for fixed sizes on cpu, the model {reason}")
    stop = stop or Stop()
    stop.budget = Budget(config.budget)
    try:
        return _Stage(result, config, mode, progress, stop.budget).run()
    finally:
        stop.budget = None


def _noted(result: Result, *notes: str) -> Result:
    return replace(result, notes=(*result.notes, *notes))


class _Ended(Exception):
    """An interrupt, in the middle of a search."""


class _Stage:
    def __init__(self, result: Result, config: Config, mode: str, progress: Progress, budget: Budget) -> None:
        self.result, self.config, self.mode, self.progress, self.budget = result, config, mode, progress, budget
        self.kinds = fragments(result.model, {})
        self.cache = cache_path().parent / "kernels"
        self.notes: list[str] = []

    def run(self) -> Result:
        model = self._placed(self._worth())
        if self.budget.stop:
            self.notes.append("interrupted: kernels were tried for a part of the regions")
        seconds = {**self.result.seconds, "kernels": time.monotonic() - self.budget.start}
        result = replace(self.result, seconds=seconds)
        if model is None:
            none = f"no kernels: of {len(self.kinds)} kinds of regions none makes the model measurably faster"
            return _noted(result, *self.notes, none)
        return self._checked(result, model)

    # ------------------------------------------------------------ kernels

    def _worth(self) -> list[Fused]:
        """What is faster than the runtime on its own, the largest gain over all places first."""
        found = []
        for i, (graph, spots) in enumerate(self.kinds.items()):
            self.progress("kernels", i, len(self.kinds))
            operators = tuple(n.op for n in graph if n.args)
            try:
                best = self._best(graph, max(self.budget.left(), 0.0) / (len(self.kinds) - i))
                if best is not None and best[1] + NODE < (alone := self._alone(graph)):
                    found.append(Fused(operators, tuple(spots), cpu_kernel(best[0]), best[1], alone))
            except (_Ended, TasoMirageError):
                continue  # it has no kernel: the operators stay
            except Exception as error:  # a bug; it must not cost what was found before
                said = f"{type(error).__name__}: {error}"
                self.notes.append(f"no kernel for {' '.join(operators)}: internal error, please report it: {said}")
        return sorted(found, key=lambda f: -f.saved)

    def _best(self, graph: Graph, share: float) -> tuple[Graph, float] | None:
        """The fastest muGraph of a region and its seconds, from the disk where it was found before."""
        path = self.cache / f"{_key(graph)}.json"
        known = _read(path)
        if known is not None or self.mode == "cached" or share <= 0:
            return known
        found = Search(graph, Options(), DEVICE).run(BEST, share, self._searching)
        if not found:
            return None
        best = tuned([f.graph for f in found], cores(), 1.0)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({"mugraph": to_json(best.kernel.graph), "seconds": best.seconds}))
        return best.kernel.graph, best.seconds

    def _searching(self, stage: str, done: int, total: int) -> None:
        if self.budget.stop:
            raise _Ended

    def _alone(self, graph: Graph) -> float:
        """Seconds of the region in the runtime."""
        model = standalone(graph, self.result.model.opsets)
        run = runtime.opened(model).prepared(random_inputs(model, 0, {}))
        return min(run() for _ in range(RUNS))

    # ------------------------------------------------------------ the model

    def _placed(self, worth: Sequence[Fused]) -> Model | None:
        """The model with the kinds that make it faster as a whole, each tried on top of those before; None where none does."""
        base, best = self.result.model, None
        placed: list[Region] = []
        for i, kind in enumerate(worth):
            self.progress("kernels in the model", i, len(worth))
            if self.budget.stop:
                break
            regions = [*placed, *(Region(s.inputs, s.outputs, kind.kernel) for s in kind.spots)]
            try:
                model = embed(base, regions)
                gain = self._timed(runtime.opened(best or base), runtime.opened(model), self.config.seconds / 2).ratio
            except TasoMirageError:
                continue  # a region that cannot be one node
            if gain >= KEEP:
                best, placed = model, regions
                said = f"kernel for {' '.join(kind.operators)} in {len(kind.spots)} places"
                self.notes.append(f"{said}: the model is {gain:.3f} times as fast as before")
        return best

    def _timed(self, before: Session, after: Session, seconds: float) -> Timing:
        inputs = self.config.inputs[0] if self.config.inputs else random_inputs(self.result.original, 0, {})
        times = runtime.interleaved([before, after], inputs, seconds)
        return compared([times[0]], [times[1]], [1.0])

    def _checked(self, result: Result, model: Model) -> Result:
        """The result with the model, if it passes the check and is faster than the original."""
        original = runtime.opened(result.original, source=True)
        session = runtime.opened(model, check=passes_checker(result.original))
        differences = compare(result.original, session, list(cases(result.original, original, {}, self.config.inputs)))
        bad = next((d for d in differences if not d.passed), None)
        if bad is not None:
            return _noted(result, f"the check failed with kernels ({bad}): they are left out, please report it")
        timing = self._timed(original, session, self.config.seconds)
        if timing.ratio < KEEP:
            return _noted(
                result, f"no kernels: with them the model is {timing.ratio:.3f} times as fast as the original"
            )
        notes = [n for n in result.notes if not n.endswith(KEPT)]
        made = replace(
            result, model=model, changed=True, timing=timing, differences=tuple(differences), notes=tuple(notes)
        )
        return _noted(made, *self.notes)


def _read(path: Path) -> tuple[Graph, float] | None:
    """A muGraph with its seconds from a file; None where there is none, or none that can be read: it is searched again."""
    try:
        known = json.loads(path.read_text())
        return from_json(known["mugraph"]), float(known["seconds"])
    except (OSError, ValueError, LookupError, TypeError, TasoMirageError):
        return None


def _key(graph: Graph) -> str:
    """What a search of a region hangs on: its structure and shapes, the machine, and this version."""
    program = "\n".join(to_json(graph)["program"])
    said = "\0".join([program, runtime.device(), __version__])
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
