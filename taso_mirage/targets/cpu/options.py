"""ONNX Runtime's CPU provider: it has no options here."""

from __future__ import annotations

PROVIDER = "CPUExecutionProvider"
KNOWN: dict[str, tuple[str, ...]] = {}
