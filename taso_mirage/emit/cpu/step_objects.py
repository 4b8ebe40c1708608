"""Objects that compute with a tensor that is the same in all steps of a loop (`team.h`,
`best_column.h`): they read it in an order of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taso_mirage.emit.cpu.lazy_tensors import CppBuffer
from taso_mirage.emit.statements import Expression, Let, Statement, v
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import product_factor


@dataclass
class StepObjects:
    """The objects of a loop, over its operands `tensors`; `made` are the statements before the
    first step."""

    tensors: Sequence[CppBuffer]
    together: bool
    """Whether two threads take part in the steps of the only block."""
    made: list[Statement] = field(default_factory=list)
    count: int = 0

    def __contains__(self, x: object) -> bool:
        """Whether a value is one of the tensors, of floats."""
        return isinstance(x, CppBuffer) and x.dtype == "float32" and x.name in {own.name for own in self.tensors}

    def matrix(self, start: Expression, stride: Dim, columns: Dim, depth: Dim) -> str:
        """The object of the products with a matrix, whose rows lie `stride` elements apart."""
        return self.add(f"StepMatrix<{depth}, {columns}>", start, stride)

    def add(self, type: str, start: Expression, stride: Dim) -> str:
        """A new object of a class, by name."""
        name = f"own{self.count}"
        made = Let(name, v[f"of_thread<{self.count}, {type}>"](), "auto&")
        threads = v.team if self.together else v.nullptr
        self.made += [made, v[f"{name}.begin"](threads, start, product_factor(stride))]
        self.count += 1
        return name
