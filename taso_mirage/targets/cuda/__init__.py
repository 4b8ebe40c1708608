"""NVIDIA GPUs: ONNX Runtime's CUDA provider with CUDA graphs, and kernels in Triton."""
