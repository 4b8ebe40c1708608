"""The options of ONNX Runtime's CPU provider; users set the number of threads only."""

from __future__ import annotations

PROVIDER = "CPUExecutionProvider"
THREADS = "threads"
"""The option with the number of threads of one run; without it, as many as there are cores."""
MOST_THREADS = 1024
OPTIMIZATIONS = "optimizations"
"""The option of a lower level of the runtime's own optimizations than the full one, for models that
these break."""
LEVELS = {"extended": "ORT_ENABLE_EXTENDED", "basic": "ORT_ENABLE_BASIC", "off": "ORT_DISABLE_ALL"}
"""The lower levels, the highest first, each with the runtime's name."""
FULL_LEVEL = "ORT_ENABLE_ALL"
KNOWN: dict[str, tuple[str, ...]] = {
    THREADS: tuple(map(str, range(1, MOST_THREADS + 1))),
    OPTIMIZATIONS: tuple(LEVELS),
}
SERIAL = ("clock", "processor")
"""The option for one thread with CPU time as clock."""
RESTING = ("spinning", "in runs")
"""Threads spin while a run waits for them, and sleep between runs."""
