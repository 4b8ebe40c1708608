"""ONNX Runtime's CPU provider: a user gives it no options."""

from __future__ import annotations

PROVIDER = "CPUExecutionProvider"
KNOWN: dict[str, tuple[str, ...]] = {}
WITHOUT_OPTIMIZATIONS = (("optimizations", "off"),)
"""For a look at what the runtime's own optimizations change; nothing is measured so."""
