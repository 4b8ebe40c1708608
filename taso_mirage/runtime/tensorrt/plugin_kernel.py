"""The kernel of one plugin: its plan as the model has it, the plan's images, and the tensors of
both at the model's sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Tensor
from taso_mirage.runtime.plan import KernelImage

TYPES = {"float32": "FP32", "float16": "FP16"}
"""The dtypes that a plugin takes and gives, as TensorRT's Python interface names them."""
MOST_DIMS = 8
"""The largest number of dims of a TensorRT tensor."""


@dataclass(frozen=True, slots=True)
class PluginLaunch:
    """One kernel on the GPU.

    `arguments` name the tensors that it takes: i0 the first input, o0 the first output, s0 scratch
    memory. `cluster`: the number of blocks along the first dim of the grid that run as one.
    """

    grid: tuple[int, int, int]
    arguments: tuple[str, ...]
    images: tuple[KernelImage, ...]
    cluster: int = 1


@dataclass(frozen=True)
class PluginKernel:
    """One plugin: dense tensors of fixed sizes in row order, and launches in order.

    `plan` and `images` (in base64) are the node's.

    Raises Unsupported where TensorRT's interface cannot take it.
    """

    plan: str
    images: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    launches: tuple[PluginLaunch, ...]

    def __post_init__(self) -> None:
        for role, tensors in (("input", self.inputs), ("output", self.outputs)):
            for i, tensor in enumerate(tensors):
                _refuse(f"{role} {i}", tensor)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that identify a kernel and the sizes at which it is used."""
        return blake2b(repr((self.plan, self.images, self.inputs)).encode(), digest_size=8).hexdigest()


def _refuse(what: str, tensor: Tensor) -> None:
    if tensor.dtype not in TYPES:
        raise Unsupported(f"{what} is {tensor.dtype}; a TensorRT plugin takes and gives {' and '.join(TYPES)}")
    if len(tensor.shape or ()) > MOST_DIMS:
        raise Unsupported(f"{what} has {len(tensor.shape or ())} dims; a TensorRT tensor has {MOST_DIMS} at most")
