"""Compiling a program's launches into Triton's cache, in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from taso_mirage.emit.compile import load_source
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.ir.mugraph import USUAL
from taso_mirage.system.workers import Workers

Compiler = Callable[[Mapping[str, Any]], "Future[Any]"]
"""A function that does a `job` in another process (`compilers` makes one), and returns whether the
program compiles."""
COMPILERS = 12
"""The largest number of processes that compile: each imports PyTorch, and takes half a gigabyte of
the GPU."""
SMALL = "import triton\nimport triton.language as tl\n\n@triton.jit\ndef kernel(x):\n    tl.store(x, 0.0)\n"
"""A program that compiles quickly."""
REFUSALS = ("PassManager", "Triton Error [CUDA]: invalid argument")
"""Texts of errors after which a GPU runs other kernels."""
ASSEMBLER = "TRITON_PTXAS_PATH"
"""The variable that names the assembler, which PyTorch's compiler sets."""
LIMIT = 10.0
"""The largest time for a program in seconds. Most take one or two; beyond the limit the compiler is
stuck."""


def compilers(count: int) -> Workers:
    """At most COMPILERS processes that compile programs into Triton's cache."""
    return Workers(f"{__name__}:{warmed.__name__}", min(count, COMPILERS), LIMIT, ("torch", "triton"))


def job(program: TritonProgram) -> dict[str, Any]:
    """The compiler's job for a program, as JSON."""
    launches = [
        [
            x.name,
            [program.buffer(b).pointed for b in x.buffers],
            [[m.shape, m.tile] for m in x.maps],
            len(x.sizes),
            x.options,
        ]
        for x in program.launches
    ]
    return {"source": program.source, "launches": launches, "settings": _settings()}


def first_job() -> dict[str, Any]:
    """A small `job`: every process takes seconds for its first one."""
    return {"source": SMALL, "launches": [["kernel", ["float32"], [], 0, {"num_warps": 1}]], "settings": _settings()}


def _settings() -> dict[str, str]:
    """The settings in the key of Triton's cache: PyTorch sets some of them when it compiles."""
    import triton

    found = {name: value for name, value in os.environ.items() if name.startswith("TRITON_") and name != ASSEMBLER}
    found |= {} if (assembler := _assembler()) is None else {ASSEMBLER: assembler}
    library = triton.knobs.nvidia.libdevice_path
    return found | ({} if library is None else {"TRITON_LIBDEVICE_PATH": str(library)})


@cache
def _assembler() -> str | None:
    """The assembler in this process's keys: Triton asks for its version once."""
    return os.environ.get(ASSEMBLER)


def warmed(job: Mapping[str, Any]) -> bool:
    """Compile a program's launches into Triton's cache, in a process with access to the GPU.
    Returns whether they compile."""
    import torch

    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        del os.environ[name]
    os.environ.update(job["settings"])
    with TemporaryDirectory() as folder:
        module = load_source(job["source"], Path(folder))
        for name, dtypes, maps, sizes, options in job["launches"]:
            types: list[Any] = [getattr(torch, dtype) for dtype in dtypes]
            for i, (shape, tile) in enumerate(maps):
                types[i] = module.tiles(module.triton.MockTensor(types[i]), shape, tile)
            try:  # a grid is no part of the compiled code
                made = getattr(module, name).warmup(*types, *[USUAL] * sizes, grid=(1,), **options)
            except Exception as error:
                if not is_triton(error):
                    raise
                return False
            with suppress(Exception):  # a launch reports it
                _build_launcher(made)
    return True


def _build_launcher(kernel: Any) -> None:
    """Compile the C code that launches a kernel into Triton's cache; a first launch would do it,
    which takes some tenths of a second."""
    from triton.runtime import driver

    driver.active.launcher_cls(kernel.src, kernel.metadata)


def is_triton(error: Exception) -> bool:
    """Whether Triton raised an error: its errors have no common base, and some are plain
    RuntimeErrors of its passes, or of the driver, which refuses to launch a kernel."""
    return type(error).__module__.split(".")[0] == "triton" or any(text in str(error) for text in REFUSALS)
