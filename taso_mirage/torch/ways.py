"""The ways to run a captured graph, and those of PyTorch: eager, Inductor's code, and pieces around
the operators that have to stay in eager PyTorch.

Inductor's compilation has eager's semantics as far as `torch.compile` has them, so it is given
whole graphs, not the parts of a split. Its results are compared with eager's, as all others are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_leaves

from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.targets.onnx_runtime import first_line
from taso_mirage.torch.comparison import both_short, check_equal, in_float64, slower
from taso_mirage.torch.functionalization import (
    CALLS,
    Captured,
    Observer,
    are_apart,
    changed_arguments,
    copy_strided,
    placeholders_of,
    value_of,
)
from taso_mirage.torch.inductor import code_of
from taso_mirage.torch.random_ops import drawing, random_state, restore_random_state

OURS, COMPOSED, INDUCTOR, EAGER = "ours", "composed", "inductor", "eager"
"""The ways: ONNX Runtime, Inductor's code of the optimized graph, Inductor's code of the captured
graph, and eager PyTorch."""
FALLBACKS = (EAGER, INDUCTOR)
"""The ways of PyTorch with which a graph is compared, by the option `fallback`: eager alone, or
Inductor, too."""
DEVICES = frozenset((torch.device("cpu"), torch.device("cuda:0")))
"""The devices on which times are measured."""
PLACES = 8
"""The largest number of places of a graph at which operators may stay in PyTorch: each piece
between them is compiled."""
GraphCall = Callable[..., Any]
PieceCompiler = Callable[[Captured], GraphCall]
"""A captured graph, which gives a tuple, as a function."""


@dataclass(frozen=True)
class Way:
    """How a captured graph, or a piece of one, runs: by OURS, COMPOSED, INDUCTOR or EAGER, with its
    number of operations, and the reason against ours; if ours was slower, also the optimizer's
    notes."""

    by: str
    operations: int
    reason: str = ""
    notes: tuple[str, ...] = ()


def check_fallback(options: Mapping[str, Any]) -> str | None:
    """The value of the option; None if it depends on the device.

    Raises InvalidOption.
    """
    found = options.get("fallback")
    if found is not None and found not in FALLBACKS:
        raise InvalidOption(f"fallback={found!r}: it is one of {', '.join(map(repr, FALLBACKS))}")
    return found


class Fallback:
    """PyTorch's ways to run a captured graph that draws no random numbers of its own.

    `wanted` is an option of FALLBACKS; None is Inductor on CUDA, eager on a CPU, where Inductor
    takes as long to compile as all else and is hardly ever faster.
    """

    def __init__(self, captured: Captured, wanted: str | None) -> None:
        self._captured, self._wanted = captured, wanted
        self.code: GraphCall | None = None
        """Inductor's code, once there is one."""
        self._tried = False
        self._changed: frozenset[int] = frozenset()

    def beats(self, call: GraphCall, given: Sequence[Any]) -> float | None:
        """The ratio of a call's time to that of Inductor's code on these arguments, if the call is
        slower."""
        code = self.code_for(call, given)
        return None if code is None else self._race(call, code, given)

    def slower_than_eager(self, call: GraphCall, given: Sequence[Any]) -> float | None:
        """The ratio of a call's time to that of eager PyTorch on these arguments, if the call is
        slower; the measurement does not change the state of random numbers."""
        changed = changed_arguments(self._captured, given)
        if changed is None or not _is_measurable(given):
            return None
        self._changed, state = changed, random_state(_cuda(given))
        try:
            with torch.no_grad():
                return self._race(call, self._captured.forward, given)
        finally:
            restore_random_state(state)

    def _race(self, call: GraphCall, other: GraphCall, given: Sequence[Any]) -> float | None:
        """The ratio of a call's time to that of another way, if the call is slower."""
        with suppress(torch.OutOfMemoryError):  # both ways need memory at the same time
            copies = self._copies(given)
            return slower(lambda: call(*copies), lambda: other(*copies), _cuda(given))
        return None

    def code_for(self, call: GraphCall, given: Sequence[Any]) -> GraphCall | None:
        """Inductor's code, if it is wanted for arguments like these, and this call or eager PyTorch
        takes long enough for a difference."""
        if not self.measures(given):
            return None
        if not self._tried:
            with suppress(torch.OutOfMemoryError):
                self._try(call, given, _cuda(given))
        return self.code

    def measures(self, given: Sequence[Any]) -> bool:
        """Whether Inductor's code is wanted for arguments like these."""
        return (_cuda(given) if self._wanted is None else self._wanted == INDUCTOR) and _is_measurable(given)

    def _try(self, call: GraphCall, given: Sequence[Any], cuda: bool) -> None:
        """Compile the graph by Inductor, once."""
        eager, changed = self._captured.forward, changed_arguments(self._captured, given)
        self._changed = changed or frozenset()
        copies = self._copies(given)
        # the compiled code would draw other random numbers than eager PyTorch
        self._tried = changed is None or drawing(lambda: eager(*copies), cuda)[1]
        if self._tried or both_short(lambda: call(*copies), lambda: eager(*copies), cuda):
            return
        self._tried = True
        try:
            found = code_of(self._captured, copies, cuda)
            self._compare(found, given)
        except Unsupported as differs:
            warnings.warn(f"taso_mirage: Inductor's code of a graph is not used: {differs}", stacklevel=2)
            return
        except Exception as error:
            warnings.warn(
                f"taso_mirage: Inductor does not compile a graph, so it is compared with eager PyTorch only: "
                f"{type(error).__name__}: {first_line(error)}",
                stacklevel=2,
            )
            return
        self.code = self._apart(found) if self._changed else found

    def _compare(self, code: GraphCall, given: Sequence[Any]) -> None:
        """Raise Unsupported if results, or arguments changed in place, differ from eager's."""

        def results(call: GraphCall) -> list[Any]:
            copies = self._copies(given)
            with torch.no_grad():
                return _tensors([call(*copies), [copies[i] for i in sorted(self._changed)]])

        def exact() -> list[Any] | None:
            found = in_float64(self._captured, self._copies(given))
            return None if found is None else _tensors(found)

        check_equal(results(code), results(self._captured.forward), cache(exact))

    def _copies(self, given: Sequence[Any]) -> list[Any]:
        """The arguments, with copies of those that change in place."""
        return [copy_strided(each) if i in self._changed else each for i, each in enumerate(given)]

    def _apart(self, compiled: GraphCall) -> GraphCall:
        """A call that leaves the work to eager PyTorch if an argument that is changed in place
        shares memory with another: the compiled code is for arguments without shared memory."""
        eager, changed = self._captured.forward, self._changed

        def call(*given: Any) -> Any:
            return compiled(*given) if are_apart(changed, given) else eager(*given)

        return call


def _tensors(results: Any) -> list[Any]:
    return [each for each in tree_leaves(results) if isinstance(each, torch.Tensor)]


def _cuda(given: Sequence[Any]) -> bool:
    return any(each.device.type == "cuda" for each in given if isinstance(each, torch.Tensor))


def _is_measurable(given: Sequence[Any]) -> bool:
    """Whether there are no gradients, and all tensors are on a device where times are measured."""
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    trained = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    return not trained and all(each.device in DEVICES for each in tensors)


# ------------------------------------------------------------ pieces


def in_pieces(captured: Captured, stays: Callable[[Any], bool], compiled: PieceCompiler) -> tuple[Any, int] | None:
    """The graph as calls of pieces in their order, and the number of nodes that stay in PyTorch:
    the pieces between these nodes are compiled.

    None if the nodes are not known, or too many. A piece that changes an argument in place does so
    in its turn.
    """
    staying = _staying(captured, stays)
    parts = _parts(captured, staying)
    left = {parts[node] for node in staying}
    if not left or len(left) > PLACES or len(left) == len(set(parts.values())):
        return None
    try:
        whole = split_module(captured, None, parts.__getitem__, keep_original_order=True)
    except (AssertionError, KeyError, RuntimeError):  # regions of autocast, or sizes that depend on elements
        return None
    for name, part in list(whole.named_children()):
        if int(name.rpartition("_")[2]) not in left:
            setattr(whole, name, _Piece(part, compiled))
    return whole, len(staying)


class _Piece(torch.nn.Module):  # type: ignore[misc]
    """A piece in its caller's form: a single result is no tuple."""

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
    """The nodes that call operators which stay, seen in a run without elements."""
    runner, found = _Runner(captured), set[Any]()

    def observe(operator: Any, *_: Any) -> None:
        if stays(operator):
            found.add(runner.node)

    given = [value_of(node) for node in placeholders_of(captured)]
    modes = [each.fake_mode for each in given if hasattr(each, "fake_mode")]
    if not modes:
        return set()
    try:
        with modes[0], Observer(observe), torch.no_grad():
            runner.run(*given)
    except Exception:  # a call that needs elements
        return set()
    return found


class _Runner(torch.fx.Interpreter):  # type: ignore[misc]
    """An interpreter whose `node` is the node that runs."""

    node: Any = None

    def run_node(self, n: Any) -> Any:
        self.node = n
        return super().run_node(n)


def _parts(captured: Captured, staying: Collection[Any]) -> dict[Any, int]:
    """The number of each node's piece, in their order; an item of a node's tuple is in the node's
    piece."""
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
