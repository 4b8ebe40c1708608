"""TensorRT plugins for the fused kernels of a model: C++ and Python source, the model that uses
them, and samples to check with."""
