"""A captured graph run by PyTorch itself: where it cannot be compiled here, or is no faster.

Inductor's compilation has eager's semantics as far as `torch.compile` has them, so it is given
whole graphs, not the parts of a split. Its results are compared with eager's, as all others are.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch._dynamo import lookup_backend
from torch.utils._pytree import tree_leaves

from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.targets.onnx_runtime import first_line
from taso_mirage.torch.changes import are_apart, changed_arguments
from taso_mirage.torch.comparison import check_equal, in_float64
from taso_mirage.torch.functionalization import Captured, value_of
from taso_mirage.torch.race import both_short, slower
from taso_mirage.torch.random_ops import drawing, random_state, restore_random_state

EAGER, INDUCTOR = "eager", "inductor"
FALLBACKS = (EAGER, INDUCTOR)
"""The ways of PyTorch that a graph is measured beside, by the option `fallback`: eager alone, or
Inductor, too."""
DEVICES = frozenset((torch.device("cpu"), torch.device("cuda:0")))
"""Where times are measured."""
GraphCall = Callable[..., Any]


def checked_fallback(options: Mapping[str, Any]) -> str | None:
    """The option, None where it depends on the device.

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
        """How many times as long as Inductor's code a call takes on these arguments, where that is
        slower."""
        code = self.compiled(call, given)
        if code is None:
            return None
        return self._raced(call, code, given)

    def slower_than_eager(self, call: GraphCall, given: Sequence[Any]) -> float | None:
        """How many times as long as eager PyTorch a call takes on these arguments, where that is
        slower; random numbers come as if it had not been measured."""
        eager, changed = self._captured.forward, changed_arguments(self._captured, given)
        if changed is None or not _is_measurable(given):
            return None
        self._changed, state = changed, random_state(_cuda(given))
        try:
            with torch.no_grad():
                return self._raced(call, eager, given)
        finally:
            restore_random_state(state)

    def _raced(self, call: GraphCall, other: GraphCall, given: Sequence[Any]) -> float | None:
        """How many times as long as another way a call takes, if it is slower."""
        with suppress(torch.OutOfMemoryError):  # both ways keep memory
            copies = self._copies(given)
            return slower(lambda: call(*copies), lambda: other(*copies), _cuda(given))
        return None

    def compiled(self, call: GraphCall, given: Sequence[Any]) -> GraphCall | None:
        """Inductor's code, if it is wanted for arguments like these, and this call or eager
        PyTorch is long enough that it can matter."""
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
        """Compile it, once."""
        eager, changed = self._captured.forward, changed_arguments(self._captured, given)
        self._changed = changed or frozenset()
        copies = self._copies(given)
        # it draws other random numbers than eager
        self._tried = changed is None or drawing(lambda: eager(*copies), cuda)[1]
        if self._tried or both_short(lambda: call(*copies), lambda: eager(*copies), cuda):
            return
        self._tried = True
        try:
            found = ran_once(self._captured, copies, cuda)
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
        """Raise Unsupported where results, or arguments changed in place, are not eager's."""

        def results(call: GraphCall) -> list[Any]:
            copies = self._copies(given)
            with torch.no_grad():
                found = [*tree_leaves(call(*copies)), *(copies[i] for i in sorted(self._changed))]
            return [each for each in found if isinstance(each, torch.Tensor)]

        def exact() -> list[Any] | None:
            found = in_float64(self._captured, self._copies(given))
            return None if found is None else [each for each in tree_leaves(found) if isinstance(each, torch.Tensor)]

        ours, theirs = results(code), results(self._captured.forward)
        check_equal(ours, theirs, cache(exact))

    def _copies(self, given: Sequence[Any]) -> list[Any]:
        """The arguments, with copies of those that change in place."""
        return [_copy(each) if i in self._changed else each for i, each in enumerate(given)]

    def _apart(self, compiled: GraphCall) -> GraphCall:
        """Leave calls to eager where an argument that is changed in place shares memory with
        another: the compiled code was made for arguments that do not."""
        eager, changed = self._captured.forward, self._changed

        def call(*given: Any) -> Any:
            return compiled(*given) if are_apart(changed, given) else eager(*given)

        return call


def _copy(tensor: Any) -> Any:
    """With the same strides, which Inductor's code is made for; those of a clone may be others."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def ran_once(captured: Captured, given: Sequence[Any], cuda: bool) -> GraphCall:
    """Inductor's code, of which nothing is left for its first call; random numbers come as if it
    were not there."""

    def ran() -> GraphCall:
        found = compiled_by_inductor(captured, given)
        found(*given)
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: GraphCall = drawing(ran, cuda)[0]  # it may tune on random numbers
    return found


def compiled_by_inductor(captured: Captured, given: Sequence[Any]) -> GraphCall:
    """Inductor's code of a graph without gradients, by PyTorch's settings as they are.

    Sizes that are fixed in a graph, dynamo has guarded when it calls it. Where sizes are free the
    code holds for some of them alone: dynamo guards them again.
    """
    own = copy.deepcopy(captured)  # Inductor changes its argument
    if _is_fixed(captured):
        found: GraphCall = lookup_backend(INDUCTOR)(own, list(given))
        return found
    compiled: GraphCall = torch.compile(own, dynamic=True)
    return compiled


def _is_fixed(captured: Captured) -> bool:
    """Whether no size is free, and no number is one that only a run tells."""
    values = [value_of(node) for node in captured.graph.nodes]
    sizes = [n for each in values if isinstance(each, torch.Tensor) for n in (*each.shape, *each.stride())]
    return not any(isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool) for each in (*values, *sizes))


def _cuda(given: Sequence[Any]) -> bool:
    return any(each.device.type == "cuda" for each in given if isinstance(each, torch.Tensor))


def _is_measurable(given: Sequence[Any]) -> bool:
    """Whether there are no gradients, and all is where times are measured."""
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    trained = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    return not trained and all(each.device in DEVICES for each in tensors)
