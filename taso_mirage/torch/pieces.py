"""A captured graph in pieces, around those of its operators that have to stay in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx.passes.split_module import split_module
from torch.utils._python_dispatch import TorchDispatchMode

from taso_mirage.errors import Unsupported
from taso_mirage.torch.functionalization import CALLS, Captured, value_of

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
    finder = _Finder(captured, stays)
    given = [value_of(node) for node in captured.graph.nodes if node.op == "placeholder"]
    modes = [each.fake_mode for each in given if hasattr(each, "fake_mode")]
    if not modes:
        return set()
    try:
        with modes[0], torch.no_grad():
            finder.run(*given)
    except Exception:  # a call that runs with elements alone
        return set()
    return finder.found


class _Finder(torch.fx.Interpreter):  # type: ignore[misc]
    def __init__(self, captured: Captured, stays: Callable[[Any], bool]) -> None:
        super().__init__(captured)
        self.found: set[Any] = set()
        self._stays = stays

    def run_node(self, n: Any) -> Any:
        with _Watch(self._stays) as watch:
            value = super().run_node(n)
        if watch.seen:
            self.found.add(n)
        return value


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, stays: Callable[[Any], bool]) -> None:
        super().__init__()
        self.seen, self._stays = False, stays

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= self._stays(func)
        return func(*args, **(kwargs or {}))


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
