"""Nothing parses in two threads: before Python 3.11.8 `ast.parse` fails where a finalizer lets the
other parse (python/cpython#106905)."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import mugraphs
import pytest

from taso_mirage.emit import triton as codegen
from taso_mirage.lowering.cuda import SHIPPED, everywhere
from taso_mirage.operators.expressions import Expr


@contextmanager
def switching(threshold: int, seconds: float) -> Iterator[None]:
    """Collect garbage after every `threshold` objects, and let other threads run meanwhile."""

    def switch(phase: str, info: dict[str, int]) -> None:
        time.sleep(seconds)

    before = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(threshold)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(switch)


@pytest.mark.parametrize("gpus", [(80, 120), pytest.param(SHIPPED, marks=pytest.mark.slow)])
def test_cubins_are_made_for_every_gpu(gpus: tuple[int, ...]) -> None:
    """The test with every GPU, while no thread takes turns, is in test_fuse_cuda.py."""
    program = codegen.program(mugraphs.ntrans(dtype="float32")[0])
    with switching(20, 1e-6):
        assert {x.capability for x in everywhere(program, 90, gpus)} == {90, *gpus}


def test_expressions_are_read_in_threads() -> None:
    sources = [f"(n + {i}) * (n - {i}) if n > {i} else -n" for i in range(1000)]
    with switching(5, 1e-3), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda source: Expr(source)({"n": 3}), sources))
    assert found == [9 - i * i if i < 3 else -3 for i in range(1000)]
