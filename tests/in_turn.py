"""Programs with clusters in Triton's interpreter, which runs one block after the other: the program
runs once more for each exchange, and has what the blocks gave to it in the run before."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from types import ModuleType
from typing import Any

import numpy as np


class Exchanges:
    """Of the runs so far; in this one the exchanges number `run` of all clusters are noted."""

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
    """The results of a program's `launch`."""
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
