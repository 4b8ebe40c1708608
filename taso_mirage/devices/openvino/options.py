"""The properties with which OpenVINO compiles a model: data, by name and value."""

from __future__ import annotations

PLACE = "CPU"
"""OpenVINO's name of the device."""
DEFAULT = (("INFERENCE_PRECISION_HINT", "f32"), ("PERFORMANCE_HINT", "LATENCY"))
"""Single precision, as in the model; on some processors OpenVINO would round to bfloat16, which the
check rejects. One run at a time uses all cores."""
SERIAL = ("INFERENCE_NUM_THREADS", "1")
"""The properties for one thread with CPU time as clock."""
KNOWN = {"INFERENCE_PRECISION_HINT": ("f32",), "PERFORMANCE_HINT": ("LATENCY", "THROUGHPUT")}
