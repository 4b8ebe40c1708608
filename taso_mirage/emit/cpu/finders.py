"""The largest product of each step of a loop, found with a copy of the matrix in 8 bits
(`best_column.h`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.lazy_tensors import BestColumn, Contract, CppBuffer, LoopValue
from taso_mirage.emit.cpu.step_objects import StepObjects
from taso_mirage.emit.statements import v
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import Node
from taso_mirage.rewriting.forms import RegionPattern

BEST = RegionPattern("argmax(y, axis=1, keepdims=k)")
ENOUGH, DEEPEST, FEWEST = 16, 65_536, 512
"""The least number of steps for which a matrix is read in advance, the largest number of its rows,
whose sums have 32 bits, and the least number of columns."""


@dataclass
class Finders:
    """The objects that find, in each step, the column of an operand `fixed` of all steps whose
    product with a row is the largest (`best_column.h`): each reads its operand once, in the
    first step."""

    lazy: LazyMeaning
    objects: StepObjects
    steps: int

    def value(self, node: Node, found: Mapping[Node, LoopValue | None]) -> LoopValue | None:
        """The value of a term that is such a column; None for others."""
        read = BEST.match(node) if self.steps >= ENOUGH else None
        product = None if read is None else found[read["y"]]
        if not isinstance(product, Contract) or node.attr("select_last_index") or not _fits(product):
            return None
        x, b = product.args
        if not isinstance(b, CppBuffer) or b not in self.objects:
            return None
        depth, columns = b.shape
        name = self.objects.add(f"BestColumn<{depth}, {columns}>", v[b.name] + b.start, b.strides[0])
        value = BestColumn(node.dtype, x.shape[:1], ("mk", "kn", "m"), args=(x, b), finder=name)
        return self.lazy.reshape(value, node.shape)


def _fits(product: Contract) -> bool:
    """Whether `best_column.h` has code for a product: of rows with a matrix whose columns lie side
    by side."""
    (x, b), (rows, matrix, result) = product.args, product.letters
    if len(x.shape) != 2 or len(b.shape) != 2 or (rows[1], rows[0] + matrix[1]) != (matrix[0], result):
        return False
    depth, columns = b.shape
    known = isinstance(depth, int) and isinstance(columns, int) and x.dtype == b.dtype == "float32"
    side_by_side = isinstance(b, CppBuffer) and b.strides[1] == 1
    fitting = usual_size(depth) % 4 == 0 and usual_size(depth) <= DEEPEST and usual_size(columns) >= FEWEST
    return known and side_by_side and fitting
