"""The branch that replaces an If: the one that a constant condition selects, or the only one with
which the model runs.

Exporters write `x.squeeze(-1)` of an unknown size as an If whose branches give results of different
ranks. If later nodes accept only one of them, every run that succeeds has taken that branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile
from typing import Protocol, Self

import onnx_ir as ir

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import ABSENT, Node, Tensor, topological
from taso_mirage.onnx_io.walk import bodies

TRIED = 8
"""The largest number of Ifs of a model for which both branches are read with all following
nodes."""
RANKS: Mapping[str, tuple[int, ...]] = {"LSTM": (3, 3, 3), "GRU": (3, 3, 3), "RNN": (3, 3, 3)}
"""Standard operators that ONNX Runtime runs only with first operands of these ranks."""
ALIKE = frozenset({"Conv", "ConvTranspose"})
"""Standard operators whose first two operands have one rank."""


class Reading(Protocol):
    """A reader that reads a model node by node."""

    source: ir.Model
    tried: int
    refused: set[Node]

    def value(self, value: ir.Value) -> Node: ...
    def inside(self, graph: ir.Graph) -> None: ...
    def node(self, node: ir.Node) -> None: ...
    def put(self, node: ir.Node, branch: ir.Graph) -> None: ...
    def copied(self) -> Self: ...


def branch_taken(reader: Reading, node: ir.Node) -> ir.Graph | None:
    """The branch that replaces a node, if the node is an If with a known branch."""
    if (node.domain, node.op_type) != ("", "If") or len(node.inputs) != 1 or node.inputs[0] is None:
        return None
    condition = reader.value(node.inputs[0])
    named = [node.attributes[name] for name in ("else_branch", "then_branch") if name in node.attributes]
    if len(bodies(node)) != 2 or len(named) != 2 or condition.dtype != "bool":
        return None
    branches = [each.as_graph() for each in named]
    if any(len(branch.outputs) != len(node.outputs) for branch in branches):
        return None
    if condition.op == "constant":
        return branches[int(condition.attr("value").numpy().reshape(-1)[0])]
    return _only_runnable(reader, node, branches)


def _only_runnable(reader: Reading, node: ir.Node, branches: list[ir.Graph]) -> ir.Graph | None:
    """The branch with which the rest of the model runs, if it does not run with the other one.
    Inside a branch that was put into the model, it is unknown which values an output of the model
    needs."""
    if reader.tried >= TRIED or node.graph is not reader.source.graph:
        return None
    try:
        readers = [_with(reader, node, branch) for branch in branches]
        ranks = [[_rank(each.value(output)) for output in node.outputs] for each in readers]
        if ranks[0] == ranks[1]:
            return None
        reader.tried += 1
        running = [branch for each, branch in zip(readers, branches, strict=True) if _runs(each, node)]
    except TasoMirageError:
        return None
    return running[0] if len(running) == 1 else None


def _with(reader: Reading, node: ir.Node, branch: ir.Graph) -> Reading:
    """A copy of a reader in which a branch replaces a node."""
    copy = reader.copied()
    copy.tried = TRIED  # no nested trials
    copy.put(node, branch)
    return copy


def _runs(reader: Reading, node: ir.Node) -> bool:
    """Whether the nodes after a node may run: the runtime rejects no operator that an output
    needs."""
    graph = reader.source.graph
    for each in list(dropwhile(lambda each: each is not node, graph))[1:]:
        reader.node(each)
    needed = topological([reader.value(output) for output in graph.outputs])
    return reader.refused.isdisjoint(needed)


def _rank(term: Node) -> int | None:
    return len(term.type.shape) if isinstance(term.type, Tensor) and term.type.shape is not None else None


def refuses(node: ir.Node, operands: list[Node]) -> bool:
    """Whether ONNX Runtime rejects a node because of the ranks of its operands."""
    if node.domain != "":
        return False
    ranks = [None if operand is ABSENT else _rank(operand) for operand in operands]
    wrong = any(rank not in (None, wanted) for rank, wanted in zip(ranks, RANKS.get(node.op_type, ()), strict=False))
    return wrong or (node.op_type in ALIKE and None not in ranks[:2] and len(set(ranks[:2])) == 2)
