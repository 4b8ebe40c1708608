"""The properties that OpenVINO compiles a model with: data, by name and value."""

from __future__ import annotations

PLACE = "CPU"
"""OpenVINO's name of the device."""
DEFAULT = (("INFERENCE_PRECISION_HINT", "f32"), ("PERFORMANCE_HINT", "LATENCY"))
"""In single precision, as the model says: on some processors it would round to bfloat16, which the
check refuses. One run at a time takes all cores."""
SERIAL = ("INFERENCE_NUM_THREADS", "1")
"""One thread, timed by the clock of the processor."""
KNOWN = {"INFERENCE_PRECISION_HINT": ("f32",), "PERFORMANCE_HINT": ("LATENCY", "THROUGHPUT")}
