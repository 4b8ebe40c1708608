"""The options of ONNX Runtime's CUDA provider that a target has, or may have in a file: data, by
name and value."""

from __future__ import annotations

PROVIDER = "CUDAExecutionProvider"
GRAPH = "enable_cuda_graph"
CHANNELS_LAST = ("prefer_nhwc", "1")
CHOSEN = ("cudnn_conv_algo_search", "HEURISTIC")
"""The option for cuDNN's own choice of algorithm; the provider's trials can select one that is ten
times as slow."""
TF32 = "use_tf32"
DEFAULT = ((TF32, "0"),)
ROUNDED = (TF32, "1")
"""Products and convolutions in single precision may round their operands to 10 bits."""
KNOWN = {
    TF32: ("0", "1"),
    "prefer_nhwc": ("0", "1"),
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    GRAPH: ("0", "1"),
}
USER_STREAM = "user_compute_stream"
EXACT_SIZES = {"arena_extend_strategy": "kSameAsRequested"}
"""The option to allocate memory as requested, because PyTorch uses the same GPU."""
