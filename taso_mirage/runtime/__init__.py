"""Kernels inside models: the custom-operator library that ONNX Runtime loads, its build, and how a
kernel becomes a node."""

from taso_mirage.runtime.compilation import library
from taso_mirage.runtime.register import build_kernels, carries_kernels, register

__all__ = ["build_kernels", "carries_kernels", "library", "register"]
