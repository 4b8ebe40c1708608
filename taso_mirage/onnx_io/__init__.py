"""The border to ONNX: the only package that imports onnx or onnx-ir. What is not understood becomes `opaque` and survives."""

from taso_mirage.onnx_io.files import load, save
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.onnx_io.write import serialize, to_ir

__all__ = ["from_ir", "load", "save", "serialize", "to_ir"]
