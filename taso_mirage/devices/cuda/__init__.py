"""NVIDIA GPUs, and the options of ONNX Runtime's CUDA provider."""
