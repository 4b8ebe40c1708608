"""Programs in Triton's interpreter. It runs one block after the other; a program with clusters runs
once more for each exchange, and has the values that the blocks gave to it in the run before."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import interpreter
import numpy as np

from taso_mirage.ir.terms import Graph

WITHOUT = "_without_small_floats"
"""How the name ends of a program that is to run as on a GPU that has no floats of 8 bits."""


RUN = """
import sys
from pathlib import Path
import in_turn

in_turn.numbers_of_one_element()
for name in sys.argv[2:]:
    in_turn.run(Path(sys.argv[1]), name)
"""


class Exchanges:
    """The exchanges of the runs so far; in this one the exchanges number `run` of all clusters are
    noted."""

    def __init__(self) -> None:
        self.given: dict[Any, dict[int, Any]] = {}
        self.run = 0
        self.begin()

    def begin(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.noted = 0

    def exchanged(self, x: Any, over: str, blocks: int, to: int) -> Any:
        """In place of the function that a program has for it."""
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle, interpreter_builder

        first, *others = interpreter_builder.grid_idx
        number = self.counts[first, *others]
        self.counts[first, *others] += 1
        given = self.given.setdefault((first // blocks, *others, number), {})
        if number == self.run:
            given[first % blocks] = x.handle.data.copy()
            self.noted += 1
        if number >= self.run:
            return x
        if first % blocks >= to:
            return tl.core.tensor(TensorHandle(np.full_like(x.handle.data, np.nan), x.handle.dtype), x.type)
        fold = np.maximum if over == "max" else np.add
        found = reduce(fold, [given[block] for block in range(blocks)])
        return tl.core.tensor(TensorHandle(found, x.handle.dtype), x.type)


def launched(module: ModuleType, *inputs: Any) -> Any:
    """The results of a program's `launch`. Floats of 8 bits are there unless the module's name says
    that they are not."""
    if hasattr(module, "has_small_floats"):
        module.has_small_floats = lambda: not module.__name__.endswith(WITHOUT)  # type: ignore[attr-defined]
    if not hasattr(module, "exchanged"):
        return module.launch(*inputs)
    exchanges = Exchanges()
    module.exchanged = exchanges.exchanged  # type: ignore[attr-defined]
    module.launch_clusters = _launch_clusters  # type: ignore[attr-defined]
    while True:
        exchanges.begin()
        results = module.launch(*inputs)
        if not exchanges.noted:
            return results
        exchanges.run += 1


def _launch_clusters(function: Any, grid: tuple[int, ...], blocks: int, *args: Any, **options: Any) -> None:
    function[grid[0] * blocks, *grid[1:]](*args, **options)


def interpreted(folder: Path, programs: Mapping[str, tuple[str, Graph, Sequence[np.ndarray]]]) -> None:
    """Run programs (source, the graph whose inputs it takes, their values); NAME.npy has the first
    result of each in float64."""
    for name, (source, graph, values) in programs.items():
        (folder / f"{name}.py").write_text(source)
        wide = [v.astype(np.float32) if v.dtype.kind in "fV" else v for v in values]
        np.savez(folder / f"{name}.npz", **{f"{i:02}": v for i, v in enumerate(wide)})
        (folder / f"{name}.txt").write_text(" ".join(x.dtype for x in graph.inputs))
    made = interpreter.run(RUN, folder, *programs)
    assert made.returncode == 0, made.stderr[-3000:]


def numbers_of_one_element() -> None:
    """numpy from 2.4 on makes no number of an array of one element, which a loop is asked for whose
    iterations a run counts."""
    from triton.runtime import interpreter as of_triton

    patch = of_triton._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    of_triton._patch_lang_tensor = patched


def run(folder: Path, name: str) -> None:
    import torch

    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data, dtypes = np.load(folder / f"{name}.npz"), (folder / f"{name}.txt").read_text().split()
    inputs = [torch.from_numpy(data[key]) for key in sorted(data.files)]
    found = launched(module, *[x.to(getattr(torch, dtype)) for x, dtype in zip(inputs, dtypes, strict=True)])
    found = found[0] if isinstance(found, tuple) else found
    np.save(folder / f"{name}.npy", found.to(torch.float64).numpy())
