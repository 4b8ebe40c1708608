"""The functions of forms: their buffers, the names of their operands, and their text.

A function is written twice. The first text has stand-ins for the operands, so its names are the
function's own; in the second one the operands have other names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from taso_mirage.emit.gpu.epilogue import Epilogue
from taso_mirage.emit.gpu.forms import Buffers, LaunchedFunction, OperandTensors, own_names, reserved_names
from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.gpu.moved_tensors import MovedTensor
from taso_mirage.emit.gpu.program import LaunchSchedule, Traffic, TritonBuffer, TritonLaunch, guessed, not_specialized
from taso_mirage.emit.statements import TRITON, Parameter, ProgramFunction, Statement
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import Node

TENSOR_CORES = 16
"""The speed of products on tensor cores, which `Traffic.flops` counts, relative to those of a
thread in single precision."""


class FormFunction(LaunchedFunction):
    """The function of one term, with a name in Triton for each buffer, `names`.

    `free`: the sizes that a run gives. Raises Unsupported as `_read_sizes` does.
    """

    others = 2
    """The number of operands before those of elementwise functions."""

    def __init__(
        self, node: Node, name: str, reads: OperandTensors, writes: Buffers, sizes: Sequence[str] = ()
    ) -> None:
        self.node, self.name = node, name
        if any(isinstance(x, MovedTensor) for x in reads):
            raise Unsupported(f"{node.op} of an operand that is moved elements; its operands are tensors in memory")
        self.buffers = [b for b in (*reads, *writes) if isinstance(b, TritonBuffer)]
        self.free = tuple(sizes) if any(not isinstance(n, int) for n in node.args[0].shape) else ()
        self._read_sizes()
        self.taken: frozenset[str] | None = None
        """The names that operands must not have; None in the first text."""
        self._name_operands([f"operand_{i}" for i, _ in enumerate(self.buffers)])
        self.taken = reserved_names() | own_names(self.source())
        self._name_operands(operand_names([b.name for b in self.buffers], self.taken, self.others))

    @abstractmethod
    def _read_sizes(self) -> None:
        """Read the sizes of the term and of its blocks. Raises Unsupported if there is no function
        for them."""

    def _name_operands(self, names: list[str]) -> None:
        self.names = names

    def _text(self, parameters: Iterable[str | Parameter], body: Iterable[Statement]) -> str:
        """The function with this body, and these parameters after the operands and the sizes."""
        given: list[str | Parameter] = [*self.names, *self.free, *parameters]
        return TRITON.function(ProgramFunction(self.name, given, tuple(body), not_specialized(self.free)))

    def _launched(
        self,
        schedule: LaunchSchedule | None,
        grid: Dim,
        lanes: int,
        traffic: Traffic,
        loop: int = 1,
        **first: Any,
    ) -> TritonLaunch:
        """A launch of so many blocks with tiles of so many lanes. `first`: settings of the schedule
        that it has where none is given."""
        guess = guessed(usual_size(grid), loop, lanes, traffic.in_flight, False)
        names = tuple([b.name for b in self.buffers])
        chosen = schedule or replace(guess, **first)
        return TritonLaunch(self.name, (grid,), loop, names, chosen, traffic, self.free)

    def _check_block(self, sizes: Iterable[int], least: int = 1) -> None:
        """Raise Unsupported unless the sizes of a block are powers of two of at least this."""
        if any(n < least or n & (n - 1) for n in sizes):
            block = self.node.attr("block")
            raise Unsupported(f"{self.node.op} with blocks of {block}; powers of two have a form in Triton")


class FusedFunction(FormFunction):
    """The function of one convolution with channels first, and its epilogue.

    Its operands are the data, the weights, those of the epilogue, and the result. Raises
    Unsupported for floats that are not in `floats`, and for sizes that only a run knows of anything
    but the number of images.
    """

    floats: tuple[str, ...] = ("float32",)
    """The floats of its tensors; sums are in single precision."""

    def _read_sizes(self) -> None:
        if wrong := next((b for b in self.buffers if b.dtype not in self.floats or b.batched), None):
            raise Unsupported(f"{self.node.op} with {wrong.name} of {wrong.dtype}, which has no form in Triton")
        x, w = self.node.args[:2]
        if not all(isinstance(n, int) for n in (*w.shape, *x.shape[1:])):
            raise Unsupported(f"{self.node.op} of {x.type} with {w.type}; images have fixed sizes")
        self.images = x.shape[0]

    @property
    def _stored(self) -> int:
        """Bytes of the result, and of the operands of the epilogue."""
        return sum(b.bytes for b in self.buffers[2:])

    def _name_operands(self, names: list[str]) -> None:
        super()._name_operands(names)
        self.epilogue = Epilogue(self.node, names[2:-1])


def flags(*names: str) -> list[Parameter]:
    """Compile-time parameters of a function that are false unless a launch gives them."""
    return [Parameter(name, "False") for name in names]


def operand_names(given: Sequence[str], taken: frozenset[str], first: int = 2) -> list[str]:
    """Names of the operands in their order, made of those of their buffers.

    An operand of an elementwise function, from number `first` on, has a tile of its own,
    `NAME_tile`, so no other operand has that name.
    """
    names, found = Lines(taken, True), list[str]()
    for i, hint in enumerate(given):
        found.append(names.name(hint))
        while first <= i < len(given) - 1 and names.name(tile := f"{found[-1]}_tile") != tile:
            found[-1] = names.name(hint)
    return found
