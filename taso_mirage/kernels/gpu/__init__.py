"""Goals with kernels for a GPU that are written by hand, and when a model has them."""
