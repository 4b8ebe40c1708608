"""The CPU as a device: its parameters for the analytic model, which selects the candidates to
compile; a measurement decides among them."""

from __future__ import annotations

from taso_mirage.devices.device import Device, Reached

SLOW = {"skip_layer_norm": 8.0, "skip_layer_norm_sum": 8.0, "skip_rms_norm": 1.6, "skip_rms_norm_sum": 1.6}
"""ONNX Runtime computes them element by element, its sums and norms by vectors."""
CPU_DEVICE = Device(
    "CPU",
    processors=2,
    bandwidth=4e10,
    cache=1.5e11,
    flops=2e11,
    shared=2**30,
    registers=2**20,
    threads=2,
    latency=1e-7,
    launch=2e-6,
    resident=1,
    sector=2048,
    longest=2**30,
    elementwise=8,
    padded=1,
    general=True,
    operator=Reached(launch=3e-6, flops=5e10, bandwidth=1e10, slow=SLOW),
)
"""Two cores with vectors of 16 floats, fp32.

A tile is read where it lies, so only sums have to fit somewhere (the second cache); memory streams
rows of two kibibytes or more.
"""
