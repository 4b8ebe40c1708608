"""A captured graph in ONNX Runtime: exported, optimized, compared with eager PyTorch, and run on
the memory that tensors have."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter, is_
from typing import Any
from weakref import WeakValueDictionary

import torch

from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.optimize_options import Options
from taso_mirage.report.result import Result
from taso_mirage.search.rulesets import RuleSet
from taso_mirage.targets.onnx_runtime import first_line
from taso_mirage.torch.calls import DTYPES, Calls
from taso_mirage.torch.comparison import both_short, check_equal, in_float64, slower
from taso_mirage.torch.export import export_graph, sizes_of
from taso_mirage.torch.functionalization import CALLS, Captured, StaysInPart, are_apart, value_of
from taso_mirage.torch.inductor import candidates
from taso_mirage.torch.precision import rounded_now, rounding_operators
from taso_mirage.torch.random_ops import drawing
from taso_mirage.torch.sessions import Sessions

_VERSION = attrgetter("_version")
ROUNDS = frozenset(("cuda",))
"""The devices on which PyTorch may round operands to TF32."""
COMPOSED_ON = frozenset(("cuda",))
"""The devices on which Inductor's code may run the optimized graph: on a CPU its operators are
hardly ever faster than ONNX Runtime's."""
ORDERING = frozenset((torch.ops.aten.sort.default, torch.ops.aten.topk.default))
"""PyTorch's operators that may order equal elements in any way."""
SHARE = 0.25
"""The share of the budget for a graph that is like one with kernels: its kernels are made for its
own sizes."""
PREDICTED = {"effort": "quick", "measure": False, "scheduler": None, "kernels": "off", "strategy": "best-first"}
"""Options of `optimize` with which costs are predicted, and nothing is tuned."""
Likeness = tuple[Any, ...]
"""A key that is equal for graphs that are alike."""
COMPARED = 3
"""The number of sizes at which the first run is compared with eager PyTorch."""


class TooRounded(Unsupported):
    """The error for a graph of which eager PyTorch is closer, although PyTorch's settings allow
    rounding operands to TF32."""


class TooSlow(Unsupported):
    """The error for a graph that another way runs faster; `notes` are the optimizer's."""

    def __init__(self, reason: str, results: Sequence[Result]) -> None:
        super().__init__(reason)
        self.notes = tuple([note for each in results for note in (*each.notes, spent(each.seconds))])


def spent(seconds: Mapping[str, float]) -> str:
    """The seconds of the optimizer's stages that took more than 0.1 s, as text."""
    shown = [f"{name} {each:.1f}" for name, each in seconds.items() if each > 0.1]
    return f"seconds of its stages: {', '.join(shown) or 'none took 0.1'}"


class Program:
    """A graph with the current values of its weights, for the sizes for which it holds.

    A session computes the functional part; if `composing` is set and that is faster, Inductor's
    code of the optimized graph does. `rounding`: whether operands are rounded to TF32 where
    PyTorch's settings allow it. Raises TooRounded if eager PyTorch is closer then, and Unsupported
    with the reason if the graph has to stay in eager PyTorch.
    """

    def __init__(
        self,
        captured: Captured,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        rounding: bool = True,
        composing: bool = False,
    ) -> None:
        began = time.monotonic()
        self._device = _device(arguments)
        exported = export_graph(captured, arguments)
        split, form, self._module = exported.split, exported.form, exported.module
        self._outer, self._changed = None if split.outer is None else split.outer.forward, split.changed
        self._places, self._inputs, self._sizes = tuple(split.weights.values()), split.inputs, form.sizes
        self._weights = [arguments[i] for i in self._places]
        self._numbers = {i: arguments[i].item() for i in split.numbers.values()}
        self._state = _state(self._weights)
        given = [arguments[i] for i in self._inputs]
        self._may_round = rounding_operators(form.model) if rounding and self._device.type in ROUNDS else frozenset()
        self._rounded = rounded_now(self._may_round)
        self._reference(given)  # it refuses graphs that draw random numbers before the optimizer runs
        like = likeness(captured, self._weights, options)
        known = PRECEDENTS.get(like)
        optimizing = None if known is None else known.options(options)
        sessions = Sessions(form.model, self._device, options, optimizing, began)
        self.results, self._calls, self._rounds = self._optimize(sessions, given, exported.few)
        self._precedent = PRECEDENTS.setdefault(like, known or precedent_of(self.results))
        self._kept: frozenset[int] = frozenset()
        self._compared = {sizes_of(given)}
        found = self._run(given)
        self._compare(found, given)
        if not self._calls.owning:
            self._kept = _kept(given, found, self._run(given))
        del found
        self.gain: float | None = None
        """How many times as long as Inductor's code of the optimized graph, where that runs, ONNX
        Runtime takes."""
        if options.get("measure", True):
            if composing and self._device.type in COMPOSED_ON:
                self._compose(sessions, given, any(dims is None or dims for dims in split.free))
            self._check_fast(given)

    def _optimize(
        self, sessions: Sessions, given: Sequence[Any], few: Sequence[Any]
    ) -> tuple[list[Result], Calls, bool]:
        """The optimizer's results and calls, on few samples if possible; and whether operands are
        rounded."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the runtime allocates its own memory on the GPU
        parts = sessions.parts(self._rounded, few)
        rounds = any(part.tf32 for part in parts)
        try:
            return *sessions.optimize(parts, few), rounds
        except (InvalidOption, Unsupported):
            if few is given:
                raise
            return *sessions.optimize(parts, given), rounds  # the model may depend on the number of samples

    def stale(self) -> bool:
        """Whether a weight was changed in place after it became a part of the model."""
        return _state(self._weights) != self._state

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether the program holds for these weights and numbers, the sizes of these inputs, and
        PyTorch's current settings."""
        mine = all(map(is_, map(arguments.__getitem__, self._places), self._weights))
        mine = mine and all(arguments[i].item() == number for i, number in self._numbers.items())
        sized = mine and self._sizes.hold([arguments[i] for i in self._inputs])
        return sized and rounded_now(self._may_round) == self._rounded

    def __call__(self, arguments: Sequence[Any]) -> Any:
        if self._changed and not are_apart(self._changed, arguments):
            raise Unsupported("it changes an argument in place that shares memory with another")
        given = [arguments[i] for i in self._inputs]
        found = self._run(given)
        if self._sizes.free and len(self._compared) < COMPARED and (sizes := sizes_of(given)) not in self._compared:
            self._compare(found, given)
            self._compared.add(sizes)
        return found if self._outer is None else self._outer(*arguments, *found)

    def _compare(self, found: Sequence[Any], given: Sequence[Any]) -> None:
        try:
            check_equal(found, self._reference(given), self._exact(given), self._rounds)
        except Unsupported as differs:
            if self._rounds:
                raise TooRounded(str(differs)) from differs
            raise StaysInPart(str(differs), ORDERING.__contains__) from differs

    def _exact(self, given: Sequence[Any]) -> Callable[[], Sequence[Any] | None]:
        """A function of the outputs in float64, computed at its first call."""
        return cache(partial(in_float64, self._module, given))

    def _run(self, given: Sequence[Any]) -> list[Any]:
        try:
            found = self._calls(given)
        except Exception as error:  # onnxruntime's errors share no base class of its own
            raise Unsupported(f"ONNX Runtime does not run it at {sizes_of(given)}: {first_line(error)}") from error
        return [each.clone() if i in self._kept else each for i, each in enumerate(found)] if self._kept else found

    def _compose(self, sessions: Sessions, given: Sequence[Any], free: bool) -> None:
        """Run the optimized graph by Inductor's code, with its kernels or without, if the results
        are the same and it is faster. At other sizes, if some are `free`, the session runs if it is
        no slower than eager PyTorch."""
        cuda, session, exact = self._device.type == "cuda", self._calls, self._exact(given)
        run, eager = partial(self._run, given), partial(self._eager, given)
        if both_short(run, run, cuda):
            return
        reference = eager()
        kept = free and slower(run, eager, cuda) is None
        for parts in candidates(self.results):
            try:
                calls = sessions.compose(parts, given, session if kept else self._eager)
                check_equal(calls(given), reference, exact, calls.rounds or self._rounds)
                ratio = slower(run, partial(calls, given), cuda)
            except (Unsupported, torch.OutOfMemoryError):
                continue
            except Exception as error:  # Inductor raises the errors of its many parts
                what = f"{type(error).__name__}: {first_line(error)}"
                warnings.warn(f"taso_mirage: Inductor does not compile an optimized graph: {what}", stacklevel=2)
                continue
            if ratio is not None:
                self.gain = ratio * (self.gain or 1.0)
                self._calls = calls
                del calls
        if self.gain is not None and not kept:
            del session
            gc.collect()  # it has memory of the GPU, and is in cycles

    def _eager(self, given: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            return list(self._module(*given))

    def _check_fast(self, given: Sequence[Any]) -> None:
        found = slower(partial(self._run, given), partial(self._eager, given), self._device.type == "cuda")
        if found is not None:
            raise TooSlow(f"it takes {found:.2f} times as long here", self.results)

    def _reference(self, given: Sequence[Any]) -> list[Any]:
        """The outputs of eager PyTorch.

        A graph that draws random numbers is refused.
        """
        found: list[Any]
        found, drew = drawing(partial(self._eager, given), self._device.type == "cuda")
        if drew:
            raise StaysInPart(
                "it draws random numbers (model.eval() turns dropout off)",
                lambda operator: torch.Tag.nondeterministic_seeded in operator.tags,
            )
        return found


def _kept(given: Sequence[Any], first: Sequence[Any], second: Sequence[Any]) -> frozenset[int]:
    """The outputs that share their memory, for example with a constant: seen in two runs on the
    same inputs."""
    places = [each.data_ptr() for each in (*given, *first, *second) if isinstance(each, torch.Tensor)]
    return frozenset(i for i, each in enumerate(second) if each.numel() and places.count(each.data_ptr()) > 1)


def _state(weights: Sequence[Any]) -> tuple[Any, ...]:
    """A value that changes when a weight is changed in place."""
    try:
        return tuple(map(_VERSION, weights)), tuple(map(torch.Tensor.data_ptr, weights))
    except RuntimeError:
        raise Unsupported("its weights were made in inference mode, so changes of them cannot be seen") from None


def _device(tensors: Sequence[Any]) -> Any:
    """The device of all tensors."""
    devices = {each.device for each in tensors if isinstance(each, torch.Tensor)}
    if len(devices) > 1:
        raise Unsupported(f"its tensors are on {' and '.join(sorted(map(str, devices)))}")
    device = devices.pop() if devices else torch.device("cpu")
    if device.type not in ("cpu", "cuda") or device.index:
        raise Unsupported(f"it is on {device}; cpu and cuda:0 are supported")
    if torch.is_autocast_enabled(device.type):
        raise Unsupported("autocast is on; give the model the dtype instead, as model.half()")
    unknown = [str(each.dtype) for each in tensors if isinstance(each, torch.Tensor) and each.dtype not in DTYPES]
    if unknown:
        raise Unsupported(f"it has a tensor of {unknown[0]}")
    return device


# ------------------------------------------------------------ precedents


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Precedent:
    """`rules` are those that were applied, all that may be where nothing was decided; `corrected`:
    whether mutants were, too; `fused`: whether there are kernels."""

    rules: RuleSet | None
    corrected: bool
    fused: bool

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of `optimize` for a graph that is alike.

        Rules that a user allows to round by name have to be there, applied or not.
        """
        limited = self.rules is not None and given.get("allow_rounding") is None
        own = {**given, "partial": self.corrected} | ({"rules": self.rules} if limited else {})
        if self.fused:
            return {**own, "budget": SHARE * given.get("budget", Options().budget)}
        return {**own, **PREDICTED}


def precedent_of(results: Sequence[Result]) -> Precedent:
    """The precedent that the results of a graph's parts are."""
    applied = {name for result in results for name in result.equations}
    decided = all(result.changed or result.timing is not None for result in results)
    rules = results[0].rules.where(lambda each: each.name in applied) if results and decided else None
    known = {each.name for result in results for each in result.rules}
    return Precedent(rules, not applied <= known, any(result.kernels for result in results))


def likeness(captured: Captured, weights: Sequence[Any], options: Mapping[str, Any]) -> Likeness:
    """The operators of a graph on floats in their order, the shapes of its weights, and the
    options: no sizes of inputs, and no values."""
    floats = tuple([node.target for node in captured.graph.nodes if node.op in CALLS and _is_float(node)])
    shapes = tuple([(tuple(each.shape), each.dtype, each.device) for each in weights])
    return floats, shapes, repr(sorted(options.items(), key=lambda item: item[0]))


def _is_float(node: Any) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.is_floating_point()


PRECEDENTS: WeakValueDictionary[Likeness, Precedent] = WeakValueDictionary()
"""The precedents of live graphs: each graph keeps its own."""
