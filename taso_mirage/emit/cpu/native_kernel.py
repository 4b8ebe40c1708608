"""Generated C++ that the machine's compiler has compiled, as functions for tests and benchmarks; a
model calls its kernels by itself."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.cpu.prepared import header
from taso_mirage.ir.dims import evaluate, fixed, learn
from taso_mirage.ir.mugraph import size_names
from taso_mirage.ir.terms import Graph
from taso_mirage.system.builds import built, compile_files, private_folder

FLAGS = ("-std=c++17", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC")
"""Compiler flags that keep the meaning of infinities, NaN and the order of additions outside of
folds."""
NATIVE = ("-march=native",)
LINE = 64
"""Bytes of a cache line."""


def build(source: str, folder: Path | None = None, flags: Sequence[str] = NATIVE) -> Path:
    """The shared library of a source, which is compiled once: its name is a hash of the source, the
    compiler and the flags.

    Raises RuntimeUnavailable with the compiler's first message.
    """
    folder = folder or private_folder("cpp")
    command = [*compiler(), *FLAGS, *flags]
    key = hashlib.blake2b("\0".join([source, *command]).encode(), digest_size=16).hexdigest()

    def make(place: Path) -> Path:
        (place / "source.cpp").write_text(source)
        compile_files([*command, "-shared", "-o", f"{place}/made", f"{place}/source.cpp"])
        return place / "made"

    return built(folder, key, ".so", make)


@cache
def _pool(threads: int, folder: Path | None, flags: tuple[str, ...]) -> tuple[Any, Any]:
    """The function that runs blocks on a pool, and the pool. There is one pool for all kernels, as
    the spinning workers of several would disturb each other; it has one caller at a time."""
    library = ctypes.CDLL(str(build(header("pool.cpp"), folder, (*flags, "-pthread"))))
    library.pool_new.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.pool_new(ctypes.c_size_t(threads)))
    return ctypes.cast(library.pool_run, ctypes.c_void_p), made


@dataclass
class NativeKernel:
    """A compiled muGraph.

    `threads`: the number of threads that run a grid's blocks, with the caller. `library`: the
    library with its code, if it is compiled.
    """

    graph: Graph
    name: str = "kernel"
    folder: Path | None = None
    flags: Sequence[str] = NATIVE
    threads: int = 1
    library: Path | None = None

    def __post_init__(self) -> None:
        library = ctypes.CDLL(str(self.library or build(generate_cpp(self.graph, self.name), self.folder, self.flags)))
        self._entry = getattr(library, self.name)
        self._entry.restype = None
        self._bytes = getattr(library, f"{self.name}_scratch")
        self._bytes.restype = ctypes.c_size_t
        self._names = size_names([x.shape for x in self.graph.inputs])
        self._scratch = empty_aligned((0,), np.uint8)
        self._prepare: Any = None
        if hasattr(library, f"{self.name}_prepare"):
            self._prepare = getattr(library, f"{self.name}_prepare")
            self._prepared = ctypes.c_size_t.in_dll(library, f"{self.name}_prepared").value
        self._parallel: Any = None
        self._pool: Any = None
        if self.threads > 1:
            self._parallel, self._pool = _pool(self.threads, self.folder, tuple(self.flags))

    def __call__(self, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """The outputs for inputs of the graph's types."""
        sizes = self.sizes(inputs)
        outputs = [empty_aligned([evaluate(n, sizes) for n in o.shape], o.dtype) for o in self.graph.outputs]
        prepared = self.prepared(inputs)
        self.bound(inputs, outputs, prepared)()
        return outputs

    def sizes(self, inputs: Sequence[NDArray[Any]]) -> dict[str, int]:
        """The sizes that a run gives."""
        found: dict[str, int] = {}
        for array, term in zip(inputs, self.graph.inputs, strict=True):
            learn(term.shape, array.shape, found)
        return found

    def prepared(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute the prepared arrays that a run reads besides its inputs, from the inputs that are
        weights."""
        if self._prepare is None:
            return []
        made = empty_aligned((self._prepared,), np.uint8)
        places = (ctypes.c_void_p * len(inputs))(*[array.ctypes.data for array in inputs])
        self._prepare(places, ctypes.c_void_p(made.ctypes.data))
        return [made]

    def bound(
        self,
        inputs: Sequence[NDArray[Any]],
        outputs: Sequence[NDArray[Any]],
        prepared: Sequence[NDArray[Any]] = (),
        scratch: NDArray[Any] | None = None,
    ) -> Callable[[], None]:
        """A run on these arrays, which must be dense; it keeps all arrays that it reads and writes
        alive. `scratch`: memory of others that it may use, of `scratch_bytes` at least."""
        sizes = self.sizes(inputs)
        given = self._given(sizes)
        places = []
        for arrays, terms in ((inputs, self.graph.inputs), (outputs, self.graph.outputs)):
            for array, term in zip(arrays, terms, strict=True):
                if (
                    array.dtype.name != term.dtype
                    or array.shape != fixed(term.shape, sizes)
                    or not array.flags.c_contiguous
                ):
                    raise ValueError(f"an array {array.dtype}{array.shape} for {term.tensor}, or not in row order")
            places.append([array.ctypes.data for array in arrays])
        places[0] += [array.ctypes.data for array in prepared] or [0]
        places[0] += [ctypes.addressof(given)] if self._names else []
        taken, made = ((ctypes.c_void_p * len(each))(*each) for each in places)
        if scratch is None:
            scratch = self._scratch_of(self.scratch_bytes(sizes))

        def run(kept: object = (inputs, outputs, prepared, given)) -> None:  # pointers do not keep arrays alive
            self._entry(taken, made, ctypes.c_void_p(scratch.ctypes.data), self._parallel, self._pool)

        return run

    def scratch_bytes(self, sizes: Mapping[str, int]) -> int:
        """The bytes of scratch memory that a run needs for values between its parts."""
        return int(self._bytes(self._given(sizes)) if self._names else self._bytes())

    def _given(self, sizes: Mapping[str, int]) -> Any:
        return (ctypes.c_size_t * len(self._names))(*[sizes[name] for name in self._names])

    def _scratch_of(self, wanted: int) -> NDArray[Any]:
        """Scratch memory of so many bytes, the same for all runs that need no more."""
        if wanted > self._scratch.nbytes:
            self._scratch = empty_aligned((wanted,), np.uint8)
        return self._scratch


def empty_aligned(shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """An array that is aligned to a cache line, like those of runtimes: vectors that cross lines
    take twice as long."""
    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    found: NDArray[Any] = raw[start : start + size].view(dtype).reshape(shape)
    return found
