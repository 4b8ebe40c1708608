"""Operands of kernels that are moved elements of tensors: no memory has them, a kernel loads each
element from its place (`meanings/index_maps.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Node
from taso_mirage.meanings.index_maps import IndexMap
from taso_mirage.operators.movements import index_map


@dataclass(frozen=True, slots=True)
class MovedTensor:
    """The elements that `map` gives of its sources, with the buffer of each source but
    constants."""

    map: IndexMap
    buffers: Mapping[Node, TritonBuffer]

    @property
    def dtype(self) -> str:
        return self.map.dtype

    @property
    def shape(self) -> Shape:
        return self.map.shape

    @property
    def dims(self) -> Iterator[Dim]:
        """The indices, conditions and counts that its loads compute with, and the strides of its
        sources."""
        for piece in self.map.pieces:
            yield from (*piece.index, *piece.conditions)
        for _, row in self.map.rows:
            yield from (*row.index, *row.conditions, row.count)
        yield from (stride for buffer in self.buffers.values() for stride in buffer.strides)


OperandTensor: TypeAlias = TritonBuffer | MovedTensor


def buffers_of(operand: OperandTensor) -> tuple[TritonBuffer, ...]:
    """The tensors in memory that are read for an operand."""
    return (operand,) if isinstance(operand, TritonBuffer) else tuple(operand.buffers.values())


def operand_tensor(node: Node, buffers: Mapping[Node, TritonBuffer]) -> OperandTensor | None:
    """The tensor of a kernel's operand; None if it is absent."""
    if node in buffers or not node.args:
        return buffers.get(node)
    found = index_map(node)
    return MovedTensor(found, {source: buffers[source] for source in found.sources if source.op != "constant"})
