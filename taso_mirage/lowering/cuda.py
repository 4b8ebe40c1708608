"""Kernels for NVIDIA GPUs: muGraphs as Triton programs, tuned on the GPU of the machine and
compiled for all supported GPUs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from taso_mirage.devices.cuda.device import SPECIALIZED, described, gpu
from taso_mirage.devices.device import Device
from taso_mirage.devices.machine import cores
from taso_mirage.emit import compile_jobs, triton, tune
from taso_mirage.emit.compile import OVERLAPPING, CompiledKernel, compiled, load_source
from taso_mirage.emit.gpu.buffers import kernel_terms
from taso_mirage.emit.gpu.program import (
    TF32_PARTS,
    TF32_ROUNDED,
    LaunchSchedule,
    TritonProgram,
)
from taso_mirage.emit.ranges import ranges
from taso_mirage.errors import RuntimeUnavailable, TasoMirageError, Unsupported
from taso_mirage.forms.base.form import GPU_GOALS, PreparedKinds
from taso_mirage.ir.dims import learn
from taso_mirage.ir.mugraph import Batch
from taso_mirage.ir.terms import Graph
from taso_mirage.lowering.backend import BATCH, MeasuredSizes, Record, at_most
from taso_mirage.lowering.exact import Float64Oracle, contracted_on_gpu, give_memory_back
from taso_mirage.lowering.shipping import Shipping
from taso_mirage.meanings.arrays import CONTRACTING, pairwise_in_parts
from taso_mirage.measure.child import child
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes, at_sizes, with_free_sizes
from taso_mirage.mugraph.horizontal import FusedGoal, together
from taso_mirage.mugraph.labels import label
from taso_mirage.regions.free_regions import goal_at
from taso_mirage.runtime.compilation import library
from taso_mirage.runtime.plan import KernelImage, PlannedNode, ProgramRange, cuda_kernel, images
from taso_mirage.system.spending import Purpose, spent
from taso_mirage.system.workers import Workers

SHIPPED = (80, 86, 89, 90, 100, 120)
"""The compute capabilities (8.0, 8.6, ...) for which a model has cubins, in addition to that of the
GPU on which it was made."""
PORTABLE = 80
"""The capability of the PTX: the driver of a later GPU compiles it when a session is created
(`cuModuleLoadData` takes both), and keeps the result."""
SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""KiB of shared memory that a block can have (CUDA C++ Programming Guide, table of technical
specifications)."""
LEAST = 99
"""KiB of shared memory that a block can have on every GPU from PORTABLE on."""
BESIDE = 4
"""The number of other programs, the fastest by the model, that are tuned together with one with
stationary weights. On an H100 that one was the fastest in most rows, and each other program takes a
compiler a second."""
FIRST = 4
"""The number of muGraphs among which a predicted kernel is chosen, by measurement."""


@dataclass(frozen=True, slots=True)
class CudaLowering:
    """The GPU of this machine: its model, its name with the versions of the compilers, its compute
    capability, and the tuner's compiler."""

    device: Device
    key: str
    capability: int
    compiler: Workers = field(default_factory=lambda: compile_jobs.compilers(cores()))
    shipping: Shipping = field(default_factory=lambda: Shipping(f"{__name__}:{shippable.__name__}"))
    lanes: int = 4
    prepared: PreparedKinds | None = GPU_GOALS
    arranged: bool = True
    batched: bool = True
    """Whether kernels have free sizes. A region without such a kernel keeps its operators, or has a
    kernel of samples. A model that distinguished sizes would contain an `If`, with which ONNX
    Runtime captures no CUDA graph."""

    @property
    def searching(self) -> int:
        """The GPU measures while all cores search."""
        return cores()

    def predicted(
        self, goal: Graph, found: Sequence[FoundMuGraph], measured: Sequence[MeasuredSizes] = ()
    ) -> Callable[[], Record]:
        """The programs of the muGraphs that are the fastest by the model, with the schedules that
        the generator guesses. All compilers work at once; the fastest program whose results are
        right in float64 is chosen at the first of the measured sizes."""
        graphs = [graph for each in found if (graph := each.free if measured else each.graph) is not None]
        known = _programs(graphs[:FIRST], self.device)
        if not known:
            raise Unsupported(f"none of {len(found)} muGraphs has a form in Triton")
        programs = [self._rounding(program) for _, program in known.values()]
        sizes = measured[0] if measured else {}
        overlaps = self.capability >= OVERLAPPING
        scheduled = [tune.overlapped(each) if overlaps else each for each in programs]
        begun = {job["source"]: self.compiler(job) for job in map(compile_jobs.job, scheduled)}
        self.shipping.start()
        for each in scheduled:  # the kernel in a model is compiled apart from the one that is measured
            self.shipping.begin(_record(known, each), [self.capability])

        def chosen() -> Record:
            at = _at_sizes(goal, FreeSizes.of(graphs[0]), sizes, _named(found)) if measured else goal
            check = Float64Oracle(at, self.device.rounds)
            return _record(known, self._tuned(programs, check, None, sizes, lambda job: begun[job["source"]]))

        return chosen

    def fastest(
        self, goal: Graph, found: Sequence[FoundMuGraph], end: float, measured: Sequence[MeasuredSizes] = ()
    ) -> Record:
        """The quickest program with its best schedules, of those whose results are right in
        float64; with free sizes a table of those that are at each of the measured ones, the least
        first."""
        graphs = [graph for each in found if (graph := each.free if measured else each.graph) is not None]
        known = _programs(graphs, self.device)
        if not known:
            raise Unsupported(f"none of {len(found)} muGraphs has a form in Triton")
        programs = [self._rounding(program) for _, program in known.values()]
        if (read := GPU_GOALS.read(goal)) is not None and read.once:
            measured = measured[:1]
        if not measured:
            return _record(known, self._tuned(programs, Float64Oracle(goal, self.device.rounds), end))
        goals = [_at_sizes(goal, FreeSizes.of(graphs[0]), sizes, _named(found)) for sizes in measured]
        best, before = self._ranges(programs, goals, measured, end)
        others = [_record(known, each) | {"most": most} for each, most in before]
        return _record(known, best) | {"before": others}

    def _rounding(self, program: TritonProgram) -> TritonProgram:
        """The back end with rounded operands if that is permitted, which is always faster."""
        for i, launch in enumerate(program.launches):
            if self.device.rounds and TF32_ROUNDED in launch.precisions:
                program = tune.scheduled(program, i, replace(launch.schedule, precision=TF32_ROUNDED))
        return program

    def _ranges(
        self,
        programs: Sequence[TritonProgram],
        goals: Sequence[Graph],
        measured: Sequence[MeasuredSizes],
        end: float,
    ) -> tuple[TritonProgram, list[tuple[TritonProgram, int]]]:
        """The program for most runs, and the programs for smaller runs with their limits. Each was
        tuned at one of the measured sizes and is compared with all others at all of these sizes."""
        checks = [Float64Oracle(goal, self.device.rounds) for goal in goals]
        start, best = time.monotonic(), list[TritonProgram]()
        for i, (sizes, check) in enumerate(zip(measured, checks, strict=True)):
            until = start + (end - start) * (i + 1) / (len(measured) + 1)
            best.append(self._tuned(programs, check, until, sizes))
        times = [
            [self._seconds(each, check, sizes) for each in best] for sizes, check in zip(measured, checks, strict=True)
        ]
        last, before = ranges(measured, times, 0)
        return best[last], [(best[i], most) for i, most in before]

    def _tuned(
        self,
        programs: Sequence[TritonProgram],
        check: Float64Oracle,
        end: float | None,
        sizes: MeasuredSizes | None = None,
        compiler: compile_jobs.Compiler | None = None,
    ) -> TritonProgram:
        """The fastest program, with its best schedules until `end`; without one, with the first
        ones."""
        return tune.tuned_program(
            programs,
            device=self.device,
            compiler=compiler or self.compiler,
            check=check,
            late=lambda: end is not None and time.monotonic() > end,
            sizes=sizes or {},
            prepare=check.prepare,
            first=end is None,
        ).program

    def _seconds(self, program: TritonProgram, check: Float64Oracle, sizes: MeasuredSizes) -> float:
        found = tune.tuned_program(
            [program], device=self.device, check=check, late=lambda: True, sizes=sizes, prepare=check.prepare
        )
        return found.seconds

    def joined(self, goal: Graph, parts: Sequence[FusedGoal], records: Sequence[Record]) -> Record:
        """One muGraph of them all, each kernel with its schedule: the runtime launches those that
        share no memory beside each other. A limit of one is one of all."""
        limits = sorted({each["most"] for record in records for each in record.get("before", ())})
        before = [
            self._joined(goal, parts, [at_most(each, most) for each in records]) | {"most": most} for most in limits
        ]
        found = self._joined(goal, parts, [at_most(each, None) for each in records])
        return found | ({"before": before} if before else {})

    @staticmethod
    def _joined(goal: Graph, parts: Sequence[FusedGoal], records: Sequence[Record]) -> dict[str, Any]:
        graphs = [from_json(each["mugraph"]) for each in records]
        graph, origins = together(goal, parts, graphs)
        known = [dict(zip(kernel_terms(g), r["schedules"], strict=True)) for g, r in zip(graphs, records, strict=True)]
        chosen = {node: known[lane][term] for node, (lane, term) in origins.items() if term in known[lane]}
        terms = kernel_terms(graph)
        if not chosen.keys() >= {*terms}:  # copies
            launches = triton.program(graph).launches
            chosen = {n: asdict(x.schedule) for n, x in zip(terms, launches, strict=True)} | chosen
        return {"mugraph": to_json(graph), "schedules": [chosen[node] for node in terms]}

    @spent(Purpose.COMPILING)
    def kernel(self, record: Record) -> PlannedNode:
        """Cubins for the GPU of this machine."""
        self.shipping.join(record, self.capability)
        return self._planned(record, ())

    @spent(Purpose.COMPILING)
    def shipped(self, records: Sequence[Record]) -> list[PlannedNode]:
        """Cubins for all of SHIPPED too, and PTX, with the Triton source to be read.

        Raises OutOfTime.
        """
        self.shipping.wait(records, self._every, child().deadline.last())
        return [self._planned(record, SHIPPED) for record in records]

    def begin_shipping(self, record: Record) -> None:
        """Compile the kernels of a choice for all of SHIPPED into Triton's cache, in processes."""
        self.shipping.begin(record, self._every)

    def end_shipping(self) -> None:
        self.shipping.close()

    @property
    def _every(self) -> list[int]:
        """The compute capabilities for which a model has kernels."""
        return sorted({*SHIPPED, self.capability})

    def _planned(self, record: Record, others: Sequence[int]) -> PlannedNode:
        """Images for the GPU of this machine and for others."""
        made = [
            ProgramRange(
                program := _form(part, SPECIALIZED),
                everywhere(program, self.capability, others, _form(part, PORTABLE)),
                int(part.get("most", 0)),
            )
            for part in (record, *record.get("before", ()))
        ]
        return cuda_kernel(made[0].program, made[0].images, made[1:])

    def rounding(self) -> CudaLowering:
        """With the GPU as one that rounds."""
        return replace(self, device=replace(self.device, rounds=True), key=f"{self.key} {TF32_ROUNDED}")

    def fine(self, record: Record) -> Record:
        """With operands in two parts where they are rounded, in Triton, as other GPUs have it: more
        registers than it guesses may take the compiler minutes."""
        schedules = [
            {**(asdict(other.schedule) if each.get("specialized") else each), "precision": TF32_PARTS}
            if each.get("precision") == TF32_ROUNDED
            else each
            for each, other in zip(record["schedules"], _form(record, PORTABLE).launches, strict=True)
        ]
        before = [self.fine(each) for each in record.get("before", ())]
        return {**record, "schedules": schedules, **({"before": before} if before else {})}

    def start(self) -> None:
        """Processes that compile import PyTorch, and compile small programs, first; float64
        references have their products and convolutions on the GPU. The library that runs kernels in
        models is built, which takes seconds on a fresh machine."""
        self.compiler.start(compile_jobs.first_job())
        CONTRACTING.by = contracted_on_gpu
        with suppress(TasoMirageError):  # reported when a model is opened
            library()

    def close(self) -> None:
        CONTRACTING.by = pairwise_in_parts
        self.compiler.close()
        give_memory_back()


def _named(found: Sequence[FoundMuGraph]) -> Graph | None:
    """The goal of some muGraphs by its terms for all sizes, if it moves elements."""
    return next((each.named for each in found if each.named is not None), None)


def _at_sizes(goal: Graph, free: FreeSizes, sizes: MeasuredSizes, named: Graph | None = None) -> Graph:
    """A goal with these names for some of its sizes, at others: by its terms for all sizes
    (`named`), or by its labels, if it has any."""
    if named is not None:
        return at_sizes(named, sizes)
    if GPU_GOALS.read(goal) is not None:
        return with_free_sizes(goal, free, sizes)
    labelled = label(goal)
    return goal_at(labelled, free.labels(labelled) or {}, sizes)


def shippable(job: Mapping[str, Any]) -> bool:
    """Compile a record's kernels for a compute capability into Triton's cache, in a process: the
    compiler holds Python's lock."""
    capability = job["capability"]
    return bool(_fitting(_form(job["record"], capability), capability, SHARED.get(capability, LEAST)))


def _programs(graphs: Sequence[Graph], device: Device) -> dict[str, tuple[Graph, TritonProgram]]:
    """The distinct programs, without their schedules, with the first muGraph of each. If rounding
    is permitted, these are the programs that can only round, and BESIDE others."""
    known: dict[str, tuple[Graph, TritonProgram]] = {}
    for graph in graphs:
        for program in triton.program_forms(graph, device.specialized):
            if device.rounds or not _rounds_always(program):
                known.setdefault(_functions(program), (graph, program))
    rounding = {key: pair for key, pair in known.items() if _rounds_always(pair[1])}
    return {**rounding, **dict(islice(known.items(), BESIDE + len(rounding)))} if rounding else known


def _record(known: Mapping[str, tuple[Graph, TritonProgram]], program: TritonProgram) -> dict[str, Any]:
    """The choice of a program of these."""
    schedules = [asdict(launch.schedule) for launch in program.launches]
    return {"mugraph": to_json(known[_functions(program)][0]), "schedules": schedules}


def _rounds_always(program: TritonProgram) -> bool:
    return any(each.precisions == (TF32_ROUNDED,) for each in program.launches)


def _program(record: Record) -> TritonProgram:
    """The program of a record.

    That of samples has no warps with roles: the schedules are taken for the form in Triton then.
    """
    schedules = [LaunchSchedule(**each) for each in record["schedules"]]
    batch = Batch(**record[BATCH]) if BATCH in record else None
    if batch is not None:
        schedules = [replace(each, specialized=False) for each in schedules]
    return triton.program(from_json(record["mugraph"]), schedules, batch)


def _form(record: Record, capability: int) -> TritonProgram:
    """The program of a record for a compute capability: kernels in Gluon have their form in Triton,
    which rounds nothing, with the schedule that the generator guesses, where there is no other.
    Buffers and grids are the same."""
    program = _program(record)
    if capability == SPECIALIZED or not any(each.schedule.specialized for each in program.launches):
        return program
    schedules = [None if each.schedule.specialized else each.schedule for each in program.launches]
    plain = triton.program(from_json(record["mugraph"]), schedules)
    pairs = zip(plain.launches, [each.schedule for each in program.launches], strict=True)
    same = [replace(p.schedule, overlap=own.overlap, persistent=own.persistent) for p, own in pairs]
    return triton.program(from_json(record["mugraph"]), same)


def launcher(record: Record, shapes: Sequence[Sequence[int]]) -> Callable[..., Any]:
    """The function that runs a record's kernels on tensors of these shapes, on this machine's GPU:
    Triton compiles them at the first call."""
    sizes: dict[str, int] = {}
    for x, shape in zip(from_json(record["mugraph"]).inputs, shapes, strict=True):
        learn(x.shape, shape, sizes)
    found = gpu()
    program = _form(at_most(record, prod(sizes.values())), SPECIALIZED if found is None else found.capability)
    folder = TemporaryDirectory()
    return partial(_launched, load_source(program.source, Path(folder.name)), folder)


def _launched(module: ModuleType, folder: TemporaryDirectory[str], *inputs: Any) -> Any:
    """`folder` has the source, which Triton reads again."""
    return module.launch(*inputs)


def here() -> CudaLowering:
    """The back end of this machine's GPU."""
    try:
        key = tune.gpu_and_versions()
    except RuntimeUnavailable as error:
        raise RuntimeUnavailable(
            f"kernels for cuda are compiled by Triton and tuned on the GPU that is there: {error}; "
            "on a machine with the GPU, pip install 'taso-mirage[triton]' torch"
        ) from None
    found = gpu()
    if found is None:
        raise RuntimeUnavailable("kernels for cuda need the driver of the GPU, libcuda.so.1, which is not found")
    return CudaLowering(described(found), key, found.capability)


def _functions(program: TritonProgram) -> str:
    """The part of a program's source that is independent of the schedule: the kernels and their
    launches. Several muGraphs may have the same source."""
    head, _, launched = program.source.partition(tune.OPTIONS)
    return head[head.index(triton.IMPORTS) :] + launched[launched.index("\ndef launch(") :]


def everywhere(
    program: TritonProgram, capability: int, others: Sequence[int], plain: TritonProgram | None = None
) -> list[KernelImage]:
    """A program's kernels for `capability`; with others also for those of them that they fit on,
    and as PTX. `plain`: the program for all but SPECIALIZED, where warps have roles there.

    Where a schedule takes more shared memory than a GPU has, fewer loads are in flight there.
    Raises Unsupported where they do not fit on `capability`.
    """
    # One after another: `ast.parse`, which Triton calls, is not safe in threads before Python
    # 3.11.8 (python/cpython#106905).
    forms = defaultdict(lambda: plain or program, {SPECIALIZED: program})
    found = _fitting(forms[capability], capability, SHARED.get(capability, LEAST))
    if not found:
        raise Unsupported(f"a kernel takes more shared memory than a GPU of sm_{capability} has")
    made = {c: _tried(forms[c], c, SHARED.get(c, LEAST)) for c in others} | {capability: found}
    later = _tried(forms[PORTABLE], PORTABLE, LEAST) if others else []
    fixed = [image for c in sorted(made) for image in images(made[c])]
    return fixed + [image.with_ptx(c.ptx) for image, c in zip(images(later), later, strict=True)]


def _tried(program: TritonProgram, capability: int, room: int) -> list[CompiledKernel]:
    """None where Triton fails, whose errors share no base class: such a GPU takes an image of
    another one (`choose` in `cuda.cpp`)."""
    try:
        return _fitting(program, capability, room)
    except Exception:
        return []


def _fitting(program: TritonProgram, capability: int, room: int) -> list[CompiledKernel]:
    """The kernels for a GPU with `room` KiB of shared memory for a block; none where they take more
    at any depth of the loop."""
    schedules = tuple(launch.schedule for launch in program.launches)
    while True:
        found = compiled(program, capability, schedules)
        large = [each.shared > room * 1024 for each in found]
        if not any(large):
            return found
        if any(big and schedule.stages == 1 for big, schedule in zip(large, schedules, strict=True)):
            return []
        schedules = tuple(
            replace(s, stages=s.stages - 1) if big else s for big, s in zip(large, schedules, strict=True)
        )
