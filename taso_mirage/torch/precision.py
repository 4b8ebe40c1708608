"""A model in parts, each of which rounds operands to TF32 or not: PyTorch decides this by kinds of
operators, ONNX Runtime's CUDA provider for a whole session.

The model is cut as it was exported, before anything is optimized. So the replacement of an
operator, for example of a convolution by a product, stays in the part of that operator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx_ir as ir
import torch

from taso_mirage.onnx_io.walk import bodies, graphs_inside
from taso_mirage.targets.protocol import STANDARD

TF32 = "tf32"
"""PyTorch's name for single precision whose products round their operands to 10 bits."""
MOST = 4
"""The largest number of parts of a model: each costs a launch."""
WIDE = (None, ir.DataType.FLOAT)
"""The dtypes of operands that may be rounded; None if a dtype is not known."""


KINDS: Mapping[str, frozenset[str]] = {
    "conv": frozenset(("Conv", "ConvTranspose")),
    "rnn": frozenset(("GRU", "LSTM", "RNN")),
    "matmul": frozenset(("Attention", "DeformConv", "Einsum", "Gemm", "MatMul")),
}
"""ONNX's operators by the setting of PyTorch that says whether their operands are rounded on
CUDA."""
ROUNDING = frozenset().union(*KINDS.values())
"""The operators whose operands ONNX Runtime rounds where its `use_tf32` is on."""


def rounded_now(operators: frozenset[str]) -> frozenset[str]:
    """The operators among these whose operands PyTorch rounds to TF32 on CUDA, by its settings as
    they are."""
    return frozenset().union(*[kind for setting, kind in _kinds(operators) if _rounds(setting)])


def _rounds(setting: str) -> bool:
    """Whether a setting allows rounding; without cuDNN PyTorch computes the other operators as
    products."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found = getattr(cudnn, setting) if cudnn.enabled and setting != "matmul" else products
    return bool(found.fp32_precision == TF32)


@cache
def _kinds(operators: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    return [(setting, kind & operators) for setting, kind in KINDS.items() if kind & operators]


@dataclass(frozen=True)
class PrecisionPart:
    """A part of a model as a model, whose inputs are inputs of the whole or results of parts before
    it, by name; `tf32`: whether operands are rounded."""

    model: ir.Model
    tf32: bool

    @property
    def inputs(self) -> list[str]:
        return [str(each.name) for each in self.model.graph.inputs]

    @property
    def results(self) -> list[str]:
        return [str(each.name) for each in self.model.graph.outputs]

    def save(self, path: Path) -> None:
        """Write the model as it is, with its weights in another file: protobuf is limited to 2
        GB."""
        ir.save(self.model, path, external_data=f"{path.name}.weights")


def rounding_operators(model: ir.Model) -> frozenset[str]:
    """The operators of a model whose operands a GPU may round, by name: also those that only the
    runtime knows."""
    return frozenset(node.op_type for graph in graphs_inside(model) for node in graph if _may_round(node))


def _may_round(node: ir.Node) -> bool:
    known = node.domain in STANDARD and node.op_type not in ROUNDING
    return not known and any(value.dtype in WIDE for value in node.inputs if value is not None)


def parts_of(model: ir.Model, rounded: Collection[str]) -> tuple[PrecisionPart, ...]:
    """A model in parts, in their order, that round the operands of these operators and of no
    others; one part that rounds nothing if that takes more than MOST."""
    operators = rounding_operators(model)
    whole = PrecisionPart(model, bool(operators) and operators <= frozenset(rounded))
    if whole.tf32 or operators.isdisjoint(rounded) or model.functions or any(map(bodies, model.graph)):
        return (whole,)
    model.graph.sort()
    places = min((_places(model.graph, rounded, first) for first in (True, False)), key=lambda each: len(each.regimes))
    return (_cut(model, places) if len(places.regimes) <= MOST else ()) or (whole,)


@dataclass(frozen=True)
class _Places:
    """The part of each node, by number, and whether each part rounds. Nodes without a part are
    computed in each that needs them."""

    of: Mapping[ir.Node, int]
    regimes: Sequence[bool]


def _places(graph: ir.Graph, rounded: Collection[str], first: bool) -> _Places:
    """The part of each node, as early as possible, with rounding and exact parts in turn."""
    free, parts = _free(graph), dict[ir.Node, int]()
    for node in graph:
        number = max((parts[each] for each in _producers(node)), default=0)
        rounds = (number % 2 == 0) == first
        parts[node] = number + (_may_round(node) and (node.op_type in rounded) != rounds)
    of = {node: number for node, number in parts.items() if node not in free}
    return _Places(of, [(i % 2 == 0) == first for i in range(max(of.values(), default=0) + 1)])


def _free(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that depend on inputs alone, or give integers, such as sizes: their operands go
    from part to part instead of them."""
    found: set[ir.Node] = set()
    for node in graph:
        integers = all(value.dtype == ir.DataType.INT64 for value in node.outputs)
        if not _may_round(node) and (integers or all(each in found for each in _producers(node))):
            found.add(node)
    return found


def _producers(node: ir.Node) -> list[ir.Node]:
    found = [value.producer() for value in node.inputs if value is not None]
    return [each for each in found if each is not None]


def _cut(model: ir.Model, places: _Places) -> tuple[PrecisionPart, ...]:
    """The parts; none if the type of a value between them is not known."""
    last = len(places.regimes) - 1
    wanted: list[dict[ir.Value, None]] = [{} for _ in places.regimes]
    for value in model.graph.outputs:
        wanted[places.of.get(value.producer(), last)][value] = None
    taken: list[list[ir.Value]] = []
    for number in range(last, -1, -1):
        taken.insert(0, _taken(wanted[number], places, number))
        for value in taken[0]:
            if value.producer() is not None:
                wanted[places.of[value.producer()]][value] = None
    if any(value.dtype is None or value.shape is None for each in taken for value in each):
        return ()
    return tuple(
        PrecisionPart(
            ir.Model(ir.convenience.extract(model.graph, ins, list(outs)), ir_version=model.ir_version), regime
        )
        for ins, outs, regime in zip(taken, wanted, places.regimes, strict=True)
        if outs
    )


def _taken(wanted: Iterable[ir.Value], places: _Places, number: int) -> list[ir.Value]:
    """The values that a part needs to compute `wanted`: inputs of the model, and values of parts
    before it."""
    found, seen, waiting = list[ir.Value](), set[ir.Value](), list(wanted)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is not None and places.of.get(node, number) == number:
            waiting += [each for each in node.inputs if each is not None]
        elif node is not None or not value.is_initializer():
            found.append(value)
    return found
