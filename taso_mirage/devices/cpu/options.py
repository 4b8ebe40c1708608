"""The options of ONNX Runtime's CPU provider; users set the number of threads only."""

from __future__ import annotations

PROVIDER = "CPUExecutionProvider"
THREADS = "threads"
"""The option with the number of threads of one run; without it, as many as there are cores."""
MOST_THREADS = 1024
KNOWN: dict[str, tuple[str, ...]] = {THREADS: tuple(map(str, range(1, MOST_THREADS + 1)))}
OPTIMIZATIONS_OFF = ("optimizations", "off")
"""The option that disables the runtime's optimizations, for a check of them; it is not used for
measurements."""
SERIAL = ("clock", "processor")
"""The option for one thread with CPU time as clock."""
RESTING = ("spinning", "in runs")
"""Threads spin while a run waits for them, and sleep between runs."""
