"""ONNX Runtime's CPU provider: a user gives it no options."""

from __future__ import annotations

PROVIDER = "CPUExecutionProvider"
KNOWN: dict[str, tuple[str, ...]] = {}
OPTIMIZATIONS_OFF = ("optimizations", "off")
"""For a check of the runtime's own optimizations; nothing is measured so."""
SERIAL = ("threads", "1")
"""One thread, timed by the clock of the processor."""
RESTING = ("spinning", "in runs")
"""Threads spin while a run waits for them, and sleep between runs."""
