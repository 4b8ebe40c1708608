"""The state of the child process (`child.py`): a target's sessions and prepared runs, by number."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import RuntimeCrashed
from taso_mirage.ir.terms import Tensor
from taso_mirage.targets.onnx_runtime import first_line, installed_providers, onnx_runtime_version, starts
from taso_mirage.targets.protocol import Arrays, RuntimeSession, Source, Target

__all__ = ["Arrays", "first_line", "installed_providers", "onnx_runtime_version", "starts"]
T = TypeVar("T")
Run = Callable[[], float]
SPINNING = 0.06
"""Seconds for which the threads of a session spin after a run.

On a CPU they share the cores with other sessions (half the speed on two cores), for twice as long
if those run.
"""
SETTLED = 0.003
"""Seconds of uncounted runs of a model after other models ran."""
LONG_RUN = 0.1
"""Seconds of a run that counts as it is."""
ALIGNED = 64
"""Bytes: a line of a cache."""


def turn(run: Callable[[], float]) -> float:
    start = time.perf_counter()
    first = run()  # a run with cold caches is not counted, unless it is so long that they do not matter
    if first > 10 * SETTLED:
        return first if first > LONG_RUN else run()
    counted: list[float] = []
    while len(counted) < 5:
        taken = run()
        if time.perf_counter() - start > SETTLED:
            counted.append(taken)
    return float(np.median(counted))


def spins(run: Callable[[], float], seconds: float) -> bool:
    """Whether threads of a session continue after a run: whether this process uses CPU time while
    it has no call."""
    run()
    start = time.process_time()
    time.sleep(seconds)
    return time.process_time() - start > seconds / 10


def pause_between(runs: Sequence[Run], target: Target, spins: Callable[[Run, float], bool]) -> float:
    """Seconds before a turn of one of several sessions: none where none `spins`, as after runs that
    are so small that they take one thread."""
    if len(runs) == 1 or not target.on_cores:
        return 0.0
    return SPINNING if any(spins(run, SPINNING / 3) for run in runs) else 0.0


BYTES = bytes(1 << 16)
"""A digest of this many bytes takes some microseconds, in which Python's lock is free for
others."""


def cores_got(seconds: float) -> tuple[float, int]:
    """The share of this process's cores that is free for it, and their number: the CPU time over
    the wall time of as many threads as cores, measured for `seconds`."""

    def work(_: int) -> tuple[float, float]:
        start, began = time.thread_time(), time.perf_counter()
        while time.perf_counter() < began + seconds:
            hashlib.sha256(BYTES)
        return time.thread_time() - start, time.perf_counter() - began

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as threads:
        spent = list(threads.map(work, range(cores)))
    return sum(own for own, _ in spent) / sum(wall for _, wall in spent), cores


class _Kept(dict[int, T]):
    """Objects that this process keeps, by number.

    Raises RuntimeCrashed for a number of the process before this one, which ended while another
    thread was about to call.
    """

    def __missing__(self, number: int) -> T:
        raise RuntimeCrashed("ONNX Runtime's process ended, and another one began, during a call")


_NUMBERS = count(int.from_bytes(os.urandom(5)) << 20)
_WEIGHTS = _Kept[NDArray[Any]]()
_SESSIONS = _Kept[RuntimeSession]()
_RUNS = _Kept[Callable[[], float]]()


def device_key(target: Target, options: bool = True) -> str:
    """The device, options and versions that a measurement on this machine holds for."""
    said = "".join(f" {name}={value}" for name, value in target.options) if options else ""
    return f"{target.name}{said} | {target.machine} | {target.runtime}"


def start_runtime(content: bytes, target: Target) -> None:
    """Load the target's runtime with its libraries, and make a GPU's context, by a model whose
    inputs are vectors of one number: the first run of a model would wait for these."""
    session = target.open(content, False, {})
    session.run({name: np.zeros(1, type.dtype) for name, type in session.inputs().items()})


def keep_weights(arrays: Sequence[NDArray[Any]], aligned: bool = True) -> list[int]:
    """The numbers of weights, which any session may use from then on.

    If they are to be `aligned`, each lies at a multiple of ALIGNED bytes, as where the runtime
    itself reads it: that may make a CPU's run faster or slower. A GPU copies them, from any place.
    """
    numbers = [next(_NUMBERS) for _ in arrays]
    for number, array in zip(numbers, arrays, strict=True):
        given = array.flags.c_contiguous and (not aligned or array.ctypes.data % ALIGNED == 0)
        _WEIGHTS[number] = array if given else _aligned(array)
    return numbers


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    room = np.empty(array.nbytes + ALIGNED, np.uint8)
    begin = -room.ctypes.data % ALIGNED
    own = room[begin : begin + array.nbytes]
    own[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # an odd address makes a copy of floats slow
    return own.view(array.dtype).reshape(array.shape)


def open_session(source: Source, target: Target, alone: bool, apart: Mapping[str, int]) -> tuple[int, bool]:
    """The number of a new session, and whether it captures CUDA graphs.

    `apart`: the numbers of the weights that the source leaves out.
    """
    given = {name: _WEIGHTS[number] for name, number in apart.items()}
    session, number = target.open(source, alone, given), next(_NUMBERS)
    _SESSIONS[number] = session
    return number, session.captures


def session_of(number: int) -> RuntimeSession:
    """The session of this process with a number."""
    return _SESSIONS[number]


def run_prepared(number: int, inputs: Arrays) -> list[Any]:
    return _SESSIONS[number].run(inputs)


def input_types(number: int) -> dict[str, Tensor]:
    return _SESSIONS[number].inputs()


def prepare(number: int, inputs: Arrays, bound: bool) -> int:
    """The number of a new prepared run of a session."""
    own = {name: np.array(array) for name, array in inputs.items()}  # as if numpy had allocated them
    session, made = _SESSIONS[number], next(_NUMBERS)
    _RUNS[made] = session.bound(own) if bound else session.prepared(own)
    return made


def once(number: int) -> float:
    """Seconds of one prepared run."""
    return _RUNS[number]()


def turn_of(number: int) -> float:
    """Seconds of a prepared run, see `turn`."""
    return turn(_RUNS[number])


def spins_after(number: int, seconds: float) -> bool:
    """Whether threads go on after a prepared run, see `spins`."""
    return spins(_RUNS[number], seconds)


def let_go(numbers: Iterable[int]) -> None:
    """Forget weights, sessions and prepared runs; a session keeps the weights that it uses."""
    for number in numbers:
        _WEIGHTS.pop(number, None)
        _SESSIONS.pop(number, None)
        _RUNS.pop(number, None)
