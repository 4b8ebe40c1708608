"""Sessions of the tests whose threads sleep between two runs: as they are by default, they spin for
40 ms after each, on the core of another worker. No test asks how fast a model is."""

from __future__ import annotations

from typing import Any

import onnxruntime

from taso_mirage.measure.native import cores_got as counted_cores
from taso_mirage.measure.native import open_session as opened

__all__ = ["cores_got", "counted_cores", "open_session"]

made = onnxruntime.SessionOptions


def options() -> Any:
    own = made()
    own.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return own


def open_session(*given: Any) -> tuple[int, bool]:
    """In place of that of `native`, in the process of the runtime."""
    onnxruntime.SessionOptions = options
    return opened(*given)


def cores_got(seconds: float) -> tuple[float, int]:
    """In place of that of `native`: no other process works."""
    return 1.0, 2
