"""A superoptimizer for ONNX models: proved substitutions, partial equivalence and fused kernels."""

__version__ = "0.1.0"
