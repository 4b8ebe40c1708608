"""The options of ONNX Runtime's CUDA provider that a target has, or may have in a file: data, by
name and value."""

from __future__ import annotations

PROVIDER = "CUDAExecutionProvider"
GRAPH = "enable_cuda_graph"
CHANNELS_LAST = ("prefer_nhwc", "1")
CHOSEN = ("cudnn_conv_algo_search", "HEURISTIC")
"""cuDNN's own choice of algorithm: the provider's trial of all of them can take one ten times as
slow."""
DEFAULT = (("use_tf32", "0"),)
KNOWN = {
    "use_tf32": ("0", "1"),
    "prefer_nhwc": ("0", "1"),
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    GRAPH: ("0", "1"),
}
