"""Values of a random graph: their types, and what is known about their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

Dim = int | str
Shape = tuple[Dim, ...]

FLOAT, DOUBLE, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16
INT64, INT32, INT8, UINT8, BOOL, STRING = (
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.BOOL,
    TensorProto.STRING,
)
FLOATS = (FLOAT, DOUBLE, HALF, BFLOAT)
INTEGERS = (INT64, INT32, INT8, UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
NUMBERS = (*FLOATS, *INTEGERS)
EVERY = (*NUMBERS, BOOL)
TENSOR, SEQUENCE, OPTIONAL = "tensor", "sequence", "optional"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor, or a sequence or an optional of tensors. Numbers are at most `bound` in magnitude;
    `exact` ones have only been selected and moved since they were given, so no rounding decides on
    a comparison of them. A sequence has `length` elements."""

    name: str
    dtype: int
    shape: Shape
    bound: float = 3.0
    exact: bool = True
    container: str = TENSOR
    length: int = 0
    fixed: bool = field(default=False, compare=False)
    """Whether it depends on no input."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def elements(self) -> int:
        """Elements, with 4 for each free dim."""
        return int(np.prod([d if isinstance(d, int) else 4 for d in self.shape], dtype=np.int64))

    def ints(self) -> tuple[int, ...]:
        """The shape of a static value."""
        return tuple(d for d in self.shape if isinstance(d, int))

    def proto(self) -> onnx.TypeProto:
        dims = [None if str(d).startswith("?") else d for d in self.shape]
        inner = helper.make_tensor_type_proto(self.dtype, dims)
        if self.container == TENSOR:
            return inner
        make = helper.make_sequence_type_proto if self.container == SEQUENCE else helper.make_optional_type_proto
        return make(inner)

    def info(self) -> onnx.ValueInfoProto:
        return helper.make_value_info(self.name, self.proto())


def array(dtype: int, numbers: object) -> np.ndarray:
    """An array of an ONNX dtype."""
    return np.asarray(numbers).astype(object if dtype == STRING else helper.tensor_dtype_to_np_dtype(dtype))
