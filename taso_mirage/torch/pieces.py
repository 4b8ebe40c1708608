"""A captured graph in pieces, around those of its operators that have to stay in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx.passes.split_module import split_module

from taso_mirage.errors import Unsupported
from taso_mirage.torch.functionalization import CALLS, Captured, Observer, value_of

PieceCompiler = Callable[[Captured], Callable[..., Any]]
"""A captured graph, which gives a tuple, as a function."""
PLACES = 8
"""The most places of a graph at which operators may stay: each piece between them is compiled."""


class StaysInPart(Unsupported):
    """A graph of which the operators (`torch._ops.OpOverload`) that `stays` knows cannot be
    compiled."""

    def __init__(self, reason: str, stays: Callable[[Any], bool]) -> None:
        super().__init__(reason)
        self.stays = stays


def in_pieces(captured: Captured, stays: Callable[[Any], bool], compiled: PieceCompiler) -> tuple[Any, int] | None:
    """The graph as calls of pieces in their order, those between the nodes that stay compiled, and
    how many nodes these are; None where that cannot be said, or would be many.

    A piece that changes an argument in place does so in its turn.
    """
    staying = _staying(captured, stays)
    parts = _parts(captured, staying)
    left = {parts[node] for node in staying}
    if not left or len(left) > PLACES or len(left) == len(set(parts.values())):
        return None
    try:
        whole = split_module(captured, None, parts.__getitem__, keep_original_order=True)
    except (AssertionError, KeyError, RuntimeError):  # regions of autocast, or sizes that only numbers tell
        return None
    for name, part in list(whole.named_children()):
        if int(name.rpartition("_")[2]) not in left:
            setattr(whole, name, _Piece(part, compiled))
    return whole, len(staying)


class _Piece(torch.nn.Module):  # type: ignore[misc]
    """A piece as its caller has it: one result is no tuple."""

    def __init__(self, part: Captured, compiled: PieceCompiler) -> None:
        super().__init__()
        output = part.graph.output_node()
        self._alone = isinstance(output.args[0], torch.fx.Node)
        if self._alone:
            output.args = ((output.args[0],),)
            part.recompile()
        self._compiled = compiled(part)

    def forward(self, *arguments: Any) -> Any:
        found = self._compiled(*arguments)
        return found[0] if self._alone else found


def _staying(captured: Captured, stays: Callable[[Any], bool]) -> set[Any]:
    """The nodes that call such operators, seen in a run without elements."""
    runner, found = _Runner(captured), set[Any]()

    def observe(operator: Any, *_: Any) -> None:
        if stays(operator):
            found.add(runner.node)

    given = [value_of(node) for node in captured.graph.nodes if node.op == "placeholder"]
    modes = [each.fake_mode for each in given if hasattr(each, "fake_mode")]
    if not modes:
        return set()
    try:
        with modes[0], Observer(observe), torch.no_grad():
            runner.run(*given)
    except Exception:  # a call that runs with elements alone
        return set()
    return found


class _Runner(torch.fx.Interpreter):  # type: ignore[misc]
    """`node` is the one that runs."""

    node: Any = None

    def run_node(self, n: Any) -> Any:
        self.node = n
        return super().run_node(n)


def _parts(captured: Captured, staying: Collection[Any]) -> dict[Any, int]:
    """The number of each node's piece, in their order; a result that is taken from several of a
    node is in its piece."""
    parts: dict[Any, int] = {}
    number, stayed = 0, False
    for node in captured.graph.nodes:
        if node.op not in CALLS:
            continue
        if getattr(node.target, "__name__", "") == "getitem" and isinstance(value_of(node.args[0]), tuple | list):
            parts[node] = parts.get(node.args[0], number)
            continue
        if (node in staying) != stayed and parts:
            number += 1
        stayed = node in staying
        parts[node] = number
    return parts
