"""The times of generated programs: measured if there is a GPU, else by an analytic model; the
result says which.

A measurement replays a CUDA graph (Mirage, OSDI'25, section 8) whose calls go round sets of inputs.
Together the sets are larger than the L2 cache, so that weights come from memory as in a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, ModuleType
from typing import Any, Protocol

from taso_mirage.devices.cuda.device import H100
from taso_mirage.devices.device import Device
from taso_mirage.emit.compile import OVERLAPPING, load_source
from taso_mirage.emit.compile_jobs import Compiler, is_triton, job
from taso_mirage.emit.estimates import ranked
from taso_mirage.emit.gpu.program import (
    TF32_ROUNDED,
    LaunchSchedule,
    TritonLaunch,
    TritonProgram,
)
from taso_mirage.emit.replays import REPLAYED, input_sets, measured
from taso_mirage.emit.triton import options_text
from taso_mirage.errors import RuntimeUnavailable, Unsupported
from taso_mirage.system.spending import Purpose, spent, waited

FINALISTS = 4
"""The number of programs, of different grids, loops or forms, that get other schedules."""
DEEPEST = 8
"""The largest number of iterations whose loads are in flight."""
DEPTHS = 5
"""The number of pipeline depths that are tried for a launch, the deepest that fit."""
BEHIND = 1.2
"""A program that takes this many times as long as the best so far is measured in one round."""
REGISTERS = 256
"""The largest number of elements that a thread holds: more of them go to memory, and the compiler
may take minutes."""
ONCE = 2.1
"""The factor to that limit without a loop: an operator's result replaces its operand there, so
little more than half of both is held at a time."""
OPTIONS = "OPTIONS = ("
"""The place of the schedules in a program's source."""
Check = Callable[[Sequence[Any], Sequence[Any]], bool]
"""A function that tells whether results (tensors on the GPU) are right for inputs."""
Prepare = Callable[[Sequence[Any]], None]
"""A function that changes random inputs (tensors on the GPU) in place to ones like those of a
model."""


class Cache(Protocol):
    """A store of measurements (`optimize.cache.CostCache` is one)."""

    def get(self, target: str, signature: str) -> float | None: ...
    def put(self, target: str, signature: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A program and its seconds; infinity if it does not compile, does not fit, or is wrong."""

    program: TritonProgram
    seconds: float


@dataclass(frozen=True, slots=True)
class TunedProgram:
    """The fastest program with its best schedules.

    `measured`: whether `seconds` are measured or the model's; `trials` are all tried programs.
    """

    program: TritonProgram
    seconds: float
    measured: bool
    trials: tuple[Trial, ...] = ()


def tuned_program(
    programs: Sequence[TritonProgram],
    cache: Cache | None = None,
    device: Device = H100,
    compiler: Compiler | None = None,
    check: Check | None = None,
    late: Callable[[], bool] = lambda: False,
    sizes: Mapping[str, int] = MappingProxyType({}),
    prepare: Prepare | None = None,
    first: bool = False,
) -> TunedProgram:
    """The fastest of some programs for one goal, with the best schedule for each of its launches:
    measured where there is a GPU, else by the model. A program that does not compile or fit, or
    whose results `check` refuses, is skipped; Unsupported is raised if none is left.

    All are measured with the generator's first schedule; the best FINALISTS are tuned together, one
    launch after the other, until it is `late`. Without a `compiler` this process compiles, one
    program after the other. `sizes` are those that a run gives; `prepare` changes the random inputs
    of a goal that does not take any. With `first` all programs are measured, and no other
    schedules.
    """
    late = (lambda: False) if first else late
    try:
        target = gpu_and_versions()
    except RuntimeUnavailable:
        cost = partial(_by_model, device=device, sizes=sizes)
        return _tuned(programs, cost, device, False, (lambda: True) if first else late)
    with TemporaryDirectory() as folder:
        bench = _Bench(target, Path(folder), cache, compiler, check, sizes, late, prepare)
        overlapping = [overlapped(p) for p in programs] if bench.overlaps() else programs
        return _tuned(overlapping, bench.seconds, device, True, (lambda: True) if first else late)


def _by_model(programs: Sequence[TritonProgram], device: Device, sizes: Mapping[str, int]) -> list[float]:
    return [ranked([each], device, sizes)[0][0] for each in programs]


def _tuned(
    programs: Sequence[TritonProgram],
    cost: Callable[[Sequence[TritonProgram]], list[float]],
    device: Device,
    measured: bool,
    late: Callable[[], bool],
) -> TunedProgram:
    trials = [Trial(*pair) for pair in zip(programs, cost(programs), strict=True)]
    different: dict[object, Trial] = {}
    for trial in sorted(trials, key=lambda t: t.seconds):
        different.setdefault(tuple((x.grid, x.loop, x.schedule.specialized) for x in trial.program.launches), trial)
    finalists = [trial for trial in islice(different.values(), FINALISTS) if math.isfinite(trial.seconds)]
    finalists += _simplest(finalists, different.values())
    count = max((len(trial.program.launches) for trial in finalists), default=0)
    orders = [(i, tries) for i in range(count) for tries in (precisions, schedules, earlier)]
    again = [(i, earlier) for i in range(count)]  # the best start of the next kernel depends on the next kernel
    for i, tries in orders + again if count > 1 else orders:
        if late():
            break
        finalists = _rescheduled(finalists, i, partial(tries, device=device), cost, trials)
    best = min(trials, key=lambda t: t.seconds)
    if not math.isfinite(best.seconds):
        raise Unsupported(f"none of {len(trials)} programs compiles, fits and is right")
    return TunedProgram(best.program, best.seconds, measured, tuple(trials))


def newness(program: TritonProgram) -> tuple[int, int]:
    """The number of newer forms in a program (warps with roles, clusters, blocks that take tiles in
    turn), and the number of its kernels: the least is the simplest."""
    schedules = [x.schedule for x in program.launches]
    roles, turns = (any(s.specialized for s in schedules), any(s.persistent for s in schedules))
    return roles + turns + any(x.cluster != 1 for x in program.launches), len(schedules)


def _simplest(finalists: Sequence[Trial], trials: Iterable[Trial]) -> list[Trial]:
    """The fastest trial without newer forms, if all finalists have some and it is not much slower:
    other schedules may make it the fastest."""
    if not finalists or any(not newness(each.program)[0] for each in finalists):
        return []
    plain = [each for each in trials if not newness(each.program)[0]]
    return [each for each in plain[:1] if each.seconds < BEHIND * finalists[0].seconds]


def _rescheduled(
    finalists: Sequence[Trial],
    i: int,
    tries: Callable[[TritonLaunch], list[LaunchSchedule]],
    cost: Callable[[Sequence[TritonProgram]], list[float]],
    trials: list[Trial],
) -> list[Trial]:
    """Each finalist with the best schedule for its launch `i` (its own is the first of `tries`);
    new trials are added to `trials`."""
    known = {trial.program.source for trial in trials}
    tried = [
        (k, scheduled(trial.program, i, schedule))
        for k, trial in enumerate(finalists)
        if i < len(trial.program.launches)
        for schedule in tries(trial.program.launches[i])[1:]
    ]
    tried = [(k, program) for k, program in tried if program.source not in known]
    found = [Trial(program, seconds) for (_, program), seconds in zip(tried, cost([p for _, p in tried]), strict=True)]
    trials += found
    best = list(finalists)
    for (k, _), trial in zip(tried, found, strict=True):
        best[k] = min(best[k], trial, key=lambda t: t.seconds)
    return best


def overlapped(program: TritonProgram) -> TritonProgram:
    """The program whose launches begin while the preceding one ends. One of clusters, or with a
    loop and more blocks than processors, lets the next one start late: it leaves room on few
    processors, on which the next one's blocks would gather."""
    for i, launch in enumerate(program.launches):
        many = launch.loop != 1 and launch.blocks > H100.processors
        late = (many or launch.cluster != 1) and not launch.schedule.specialized
        program = scheduled(program, i, replace(launch.schedule, overlap=True, late=late))
    return program


@dataclass
class _Bench:
    """The GPU as a function from programs to seconds."""

    versions: str
    folder: Path
    cache: Cache | None
    compiler: Compiler | None
    check: Check | None
    sizes: Mapping[str, int] = field(default_factory=dict)
    late: Callable[[], bool] = lambda: False
    prepare: Prepare | None = None
    modules: dict[str, ModuleType] = field(default_factory=dict)
    sets: list[list[Any]] = field(default_factory=list)
    """Random inputs, in several sets."""
    best: float = math.inf

    @property
    def target(self) -> str:
        """The name of these measurements in the cache."""
        at = "".join(f" {name}={size}" for name, size in self.sizes.items())
        return f"{self.versions} graphs of {REPLAYED} calls{at}"

    def overlaps(self) -> bool:
        """Whether a kernel may begin while the preceding one ends."""
        import torch

        return bool(10 * torch.cuda.get_device_capability()[0] >= OVERLAPPING)

    def seconds(self, programs: Sequence[TritonProgram]) -> list[float]:
        """The seconds of each program: from the cache, else compiled and measured one after the
        other, until one was measured and it is late. The first program of the simplest form is
        always measured, so that none of a newer form is preferred to it unmeasured."""
        names = [blake2b(p.source.encode(), digest_size=16).hexdigest() for p in programs]
        cache = self.cache if self.check is None else None  # the cache does not tell whether results were right
        known = [cache.get(self.target, name) if cache is not None else None for name in names]
        found = [math.inf if seconds is None else seconds for seconds in known]
        which = [i for i, seconds in enumerate(known) if seconds is None]
        waiting = {min(which, key=lambda i: newness(programs[i]))} if which and math.isinf(self.best) else set()
        for i, compiles in self._compiled(programs, which):
            found[i] = self._measured(programs[i]) if compiles else math.inf
            waiting.discard(i)
            if self.cache is not None and math.isfinite(found[i]):
                self.cache.put(self.target, names[i], found[i])
            if math.isfinite(self.best) and not waiting and self.late():
                break
        return found

    def _compiled(self, programs: Sequence[TritonProgram], which: Sequence[int]) -> Iterator[tuple[int, bool]]:
        """Programs as soon as they are compiled, each with whether it compiles: the others are
        compiled while it is measured."""
        if self.compiler is None:
            yield from ((i, True) for i in which)
            return
        futures = {self.compiler(job(programs[i])): i for i in which}
        try:
            for future in waited(as_completed(futures), Purpose.COMPILING):
                yield futures[future], bool(future.result())
        finally:
            for future in futures:
                future.cancel()

    @spent(Purpose.TUNING)
    def _measured(self, program: TritonProgram) -> float:
        functions = program.source[: program.source.index(OPTIONS)]
        if functions not in self.modules:
            self.modules[functions] = load_source(program.source, self.folder, f"generated_{len(self.modules)}")
        if not self.sets:
            self.sets = input_sets(program, self.sizes)
            if self.prepare is not None:
                for inputs in self.sets:
                    self.prepare(inputs)
        found = _seconds(self.modules[functions], program, self.sets, self.check, BEHIND * self.best)
        self.best = min(self.best, found)
        return found


def schedules(launch: TritonLaunch, device: Device = H100) -> list[LaunchSchedule]:
    """The schedules that are tried for a launch, its own first."""
    loop = launch.loop if isinstance(launch.loop, int) else DEEPEST
    if launch.schedule.specialized:
        own = launch.schedule
        return [own, *[replace(own, stages=s) for s in launch.depths if s != own.stages and s <= loop]]
    most = min(loop, device.shared // max(launch.traffic.in_flight, 1))
    depths = [s for s in (2, 3, 4, 5, 6, DEEPEST) if s <= most] or [1]
    own = launch.schedule
    if launch.loop != 1:
        pairs = [(warps, stages) for warps in (1, 2, 4, 8) for stages in depths[-DEPTHS:]]
    else:
        pairs = [(warps, 1) for warps in (1, 2, 4, 8, 16, 32)]
    widest = max(warps for warps, _ in pairs)
    held = REGISTERS if launch.loop != 1 else ONCE * REGISTERS
    fitting = [(w, s) for w, s in pairs if w == widest or launch.traffic.live <= 32 * w * held]
    found = [LaunchSchedule(w, s, own.overlap, precision=own.precision) for w, s in fitting]
    return list(dict.fromkeys([own, *found]))


def precisions(launch: TritonLaunch, device: Device = H100) -> list[LaunchSchedule]:
    """The launch's own schedule, and variants with other ways to multiply in single precision; no
    variants if operands are rounded, which is always faster."""
    own = launch.schedule
    ways = [each for each in launch.precisions if each != TF32_ROUNDED] if own.precision != TF32_ROUNDED else []
    others = [replace(own, precision=each) for each in ways]
    return list(dict.fromkeys([own, *others]))


def earlier(launch: TritonLaunch, device: Device = H100) -> list[LaunchSchedule]:
    """The launch's own schedule, and its variants that let the next kernel start after this one's
    wait, at its end, or (without a loop) before its wait."""
    own = launch.schedule
    plain = replace(own, late=False, early=False)
    others = [plain, replace(plain, late=True), *([replace(plain, early=True)] if launch.loop == 1 else [])]
    return list(dict.fromkeys([own, *(others if own.overlap else [])]))


def scheduled(program: TritonProgram, i: int, schedule: LaunchSchedule) -> TritonProgram:
    """The program with another schedule of one launch.

    The functions are the same, and so is the source except for OPTIONS.
    """
    launches = tuple(replace(each, schedule=schedule) if k == i else each for k, each in enumerate(program.launches))
    old = program.source
    start, stop = old.index(OPTIONS), old.index("\ndef launch(")
    return replace(program, launches=launches, source=f"{old[:start]}{options_text(launches)}\n\n{old[stop:]}")


def gpu_and_versions() -> str:
    """The name of the GPU and the versions that a measurement depends on.

    Raises RuntimeUnavailable without a GPU.
    """
    try:
        import torch
        import triton
    except ImportError as error:
        raise RuntimeUnavailable(f"{error.name} is not installed") from None
    if not torch.cuda.is_available():
        raise RuntimeUnavailable("there is no CUDA device to measure on")
    return f"{torch.cuda.get_device_name()} torch {torch.__version__} triton {triton.__version__}"


def _seconds(
    module: ModuleType, program: TritonProgram, sets: Sequence[Sequence[Any]], check: Check | None, enough: float
) -> float:
    """The seconds of a call; infinity if Triton does not compile the program, it does not fit, or
    its results are refused."""
    options = [each.options for each in program.launches]

    def call(*inputs: Any) -> Any:
        return module.launch(*inputs, options=options)

    try:
        results = _into_nan(call, sets[0])
    except Exception as error:
        if not is_triton(error):
            raise
        return math.inf
    if check is not None and not check(sets[0], results if isinstance(results, tuple) else (results,)):
        return math.inf
    return measured(call, sets, enough=enough)


def _into_nan(call: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """The results of a call whose new tensors are filled with NaN: elements that it does not write
    could otherwise have the right values of an earlier program."""
    import torch

    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")  # `use_deterministic_algorithms` imports the compiler of torch: 8 s
    try:
        return call(*inputs)
    finally:
        torch.set_deterministic_debug_mode(before)
