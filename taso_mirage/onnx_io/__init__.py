"""The border to ONNX: only it imports onnx and onnx-ir. A node without a definition becomes
`opaque`."""

from taso_mirage.onnx_io.files import load, save
from taso_mirage.onnx_io.protos import from_proto
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.onnx_io.serialization import serialize, serialize_apart, serialize_types
from taso_mirage.onnx_io.write import to_ir

__all__ = ["from_ir", "from_proto", "load", "save", "serialize", "serialize_apart", "serialize_types", "to_ir"]
