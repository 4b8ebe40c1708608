"""Ahead of time: a generated program's kernels as cubins, without a GPU, with all that a launch by
hand needs.

Triton adds two hidden pointers after a kernel's own parameters (global and profile scratch memory);
a launch passes null for both.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from taso_mirage.devices.cuda.device import SPECIALIZED, largest_cluster
from taso_mirage.emit.gpu.program import LaunchSchedule, TritonLaunch, TritonProgram
from taso_mirage.emit.triton import pointer
from taso_mirage.errors import RuntimeUnavailable, Unsupported
from taso_mirage.ir.dims import Dim, Shape

SWIZZLES = (0, 32, 64, 128)
"""Bytes that are swizzled, by the driver's number (`CUtensorMapSwizzle`)."""
OVERLAPPING = 90
"""The first compute capability whose kernels may start before the end of the preceding kernel."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor map for Hopper's TMA, which the host encodes from an argument
    (`cuTensorMapEncodeTiled`): dims and strides of the tensor in elements, the outermost first, the
    box of one copy, and the bytes that are swizzled in shared memory. Elements outside of the
    tensor are read as 0, or as NaN."""

    argument: int
    shape: Shape
    strides: Shape
    box: tuple[int, ...]
    swizzle: int
    nan: bool = False


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One kernel for one architecture.

    A launch has `grid` blocks of 32 * `warps` threads, `cluster` of which along the first dim are
    launched as one, `shared` bytes of dynamic shared memory, and as arguments one pointer for each
    of `buffers`, the sizes that a run gives in 32 bits, then `hidden` null pointers (Triton's own
    scratch). `overlap`: the kernel itself waits for the preceding one (programmatic dependent
    launch). `maps`: these arguments are tensor maps, each followed by its dims in 32 bits and its
    strides in 64. `ptx`: the text from which the cubin was assembled. Later GPUs accept the text
    for sm_80 and sm_89; the text for sm_90 and newer is for one architecture alone.
    """

    symbol: str
    cubin: bytes
    ptx: str
    grid: tuple[Dim, Dim, Dim]
    warps: int
    shared: int
    buffers: tuple[str, ...]
    hidden: int
    capability: int
    overlap: bool = False
    cluster: int = 1
    maps: tuple[TensorMap, ...] = ()


def load_source(source: str, folder: Path, name: str = "generated") -> ModuleType:
    """The module of a program's source, from a file in `folder`. It imports triton.

    The compiled code contains no line information, which would name the folder, so that no two
    builds would be equal. Products are contracted with sums, for every version of Triton. This
    setting is part of the key in Triton's cache, so all processes that share the cache have to use
    it.
    """
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuntimeUnavailable(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise RuntimeUnavailable(f"{error.name} is not installed; pip install 'taso-mirage[triton]' torch") from None
    module.triton.knobs.compilation.disable_line_info = True
    module.triton.knobs.language.default_fp_fusion = True
    return module


def compiled(
    program: TritonProgram, capability: int = 90, schedules: tuple[LaunchSchedule, ...] | None = None
) -> list[CompiledKernel]:
    """Cubins of all launches for sm_`capability` (80, 90, 100...).

    `schedules` replace the program's own.

    Buffers must be aligned to 16 bytes, as every allocator aligns them. Raises RuntimeUnavailable
    without Triton.
    """
    with TemporaryDirectory() as folder:  # Triton reads the source again from its file
        module = load_source(program.source, Path(folder))
        chosen = schedules or tuple(each.schedule for each in program.launches)
        return [
            _compiled(module, program, each, s, capability) for each, s in zip(program.launches, chosen, strict=True)
        ]


def _compiled(
    module: ModuleType, program: TritonProgram, launch: TritonLaunch, schedule: LaunchSchedule, capability: int
) -> CompiledKernel:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if launch.cluster > (most := largest_cluster(capability)):
        raise Unsupported(f"{launch.name} has clusters of {launch.cluster} blocks; sm_{capability} has {most} at most")
    function: Any = getattr(module, launch.name)
    launch = replace(launch, schedule=replace(schedule, overlap=schedule.overlap and capability >= OVERLAPPING))
    types = [pointer(program.buffer(b).pointed) for b in launch.buffers] + ["i32"] * len(launch.sizes)
    if schedule.specialized and capability != SPECIALIZED:
        raise Unsupported(f"{launch.name} has groups of warps, for sm_{SPECIALIZED} alone")
    types = [_tiled(t, m.tile, module) for t, m in zip(types, launch.maps, strict=False)] + types[len(launch.maps) :]
    names = list(function.arg_names)
    signature = dict(zip(names, types, strict=False)) | dict.fromkeys(names[len(types) :], "constexpr")
    constants = dict.fromkeys(names[len(types) :], False) | launch.constants
    aligned: dict[tuple[int], list[Any]] = {
        (i,): [["tt.divisibility", 16]] for i in range(len(launch.maps), len(launch.buffers))
    }
    named = [i for i, name in enumerate(names) if isinstance(constants.get(name), str)]
    # A launch treats the text of a constant as a statement about its alignment, which is in the
    # key of Triton's cache.
    aligned |= {(i,): [] for i in named}
    source = (_gluon_source() if schedule.specialized else ASTSource)(function, signature, constants, aligned)
    options = {k: v for k, v in launch.options.items() if k not in constants}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    metadata = made.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise Unsupported(f"{launch.name} wants scratch memory of the runtime")
    plain = len(launch.buffers) - len(launch.maps)
    hidden = made.asm["ptx"].count(".param .u64") - plain - 2 * len(launch.maps)  # two strides follow a map
    return CompiledKernel(
        metadata.name,
        made.asm["cubin"],
        made.asm["ptx"],
        launch.launched,
        metadata.num_warps,
        metadata.shared,
        launch.buffers,
        hidden,
        capability,
        launch.schedule.overlap,
        launch.cluster,
        _tensor_maps(launch, getattr(metadata, "tensordesc_meta", None) or ()),
    )


def _tensor_maps(launch: TritonLaunch, made: Sequence[Mapping[str, Any]]) -> tuple[TensorMap, ...]:
    """The maps of a launch, with the boxes in which the compiler copies its tiles."""
    return tuple(
        [
            TensorMap(i, tile.shape, (tile.shape[1], 1), tuple(found["block_size"]), SWIZZLES[found["swizzle"]])
            for i, (tile, found) in enumerate(zip(launch.maps, made, strict=True))
        ]
    )


def _gluon_source() -> Any:
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def _tiled(pointed: str, tile: tuple[int, int], module: ModuleType) -> str:
    """Triton's name of the type of an argument that is copied in tiles."""
    return f"tensordesc<{pointed.removeprefix('*')}{list(tile)},{module.TILED.value!r}>"
