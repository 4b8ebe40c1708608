"""The properties with which OpenVINO compiles a model: data, by name and value."""

from __future__ import annotations

from collections.abc import Iterable

from taso_mirage.devices.cpu import options as cpu
from taso_mirage.devices.cpu.options import THREADS

PLACE = "CPU"
"""OpenVINO's name of the device."""
DEFAULT = (("INFERENCE_PRECISION_HINT", "f32"), ("PERFORMANCE_HINT", "LATENCY"))
"""Single precision, as in the model; on some processors OpenVINO would round to bfloat16, which the
check rejects. One run at a time uses all cores."""
SERIAL = ("clock", "processor")
"""The option for one thread with CPU time as clock; no property of OpenVINO."""
THREAD_PROPERTY = "INFERENCE_NUM_THREADS"
KNOWN = {
    "INFERENCE_PRECISION_HINT": ("f32",),
    "PERFORMANCE_HINT": ("LATENCY", "THROUGHPUT"),
    THREADS: cpu.KNOWN[THREADS],
}


def properties(options: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The properties that a model is compiled with."""
    given = dict(options)
    threads = "1" if given.pop(SERIAL[0], None) else given.pop(THREADS, None)
    given.pop(THREADS, None)
    return given if threads is None else {**given, THREAD_PROPERTY: threads}
