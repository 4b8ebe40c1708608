"""The options of ONNX Runtime's CPU provider, which users do not set."""

from __future__ import annotations

PROVIDER = "CPUExecutionProvider"
KNOWN: dict[str, tuple[str, ...]] = {}
OPTIMIZATIONS_OFF = ("optimizations", "off")
"""The option that disables the runtime's optimizations, for a check of them; it is not used for
measurements."""
SERIAL = ("threads", "1")
"""The option for one thread with CPU time as clock."""
RESTING = ("spinning", "in runs")
"""Threads spin while a run waits for them, and sleep between runs."""
