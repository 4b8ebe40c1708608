"""The CPU: ONNX Runtime's CPU provider, and kernels in C++."""
