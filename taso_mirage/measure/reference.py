"""The float64 reference of the check: the original's graph in the meaning `reals`, and nodes
without a definition in ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from taso_mirage.errors import OutOfTime, TasoMirageError
from taso_mirage.ir.dims import dim_product, learn
from taso_mirage.ir.model import Model
from taso_mirage.ir.mugraph import Lowering, usual_size
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, Type, is_computed, is_float, numpy_dtype, topological
from taso_mirage.meanings.base import Meaning
from taso_mirage.meanings.reals import EXACT, Reals
from taso_mirage.measure.decisions import Decisions
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.resolutions import resolutions
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import isolated
from taso_mirage.onnx_io.in_double import ends_by_numbers
from taso_mirage.onnx_io.loops import with_scans
from taso_mirage.operators.interpret import interpret, interpret_term, unfolded
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.derived_traits import selects
from taso_mirage.system.spending import Purpose, spent

SINGLE = float(np.finfo(np.float32).eps)
"""The rounding unit of single precision, in which the runtime also computes functions of half
precision."""
WORK = 2.0**28
"""The largest number of elements that the steps of loops may compute where each is rounded."""
TOLD = frozenset(("to", "dtype", "output_dtype", "stash_type"))
"""Attributes that name a dtype of a result."""


class NoReference(TasoMirageError):
    """Raised if the original has no float64 evaluation: a node without a definition cannot be run
    alone, or there is too little memory."""


class FloatReference:
    """The original graph in float64; a node without a definition runs in ONNX Runtime in its own
    dtype.

    With a seed, every float of inputs, weights, constants and such results is off by a rounding of
    its dtype. Weights are converted when they are read and released afterwards, so that a large
    model never exists in two dtypes. A given function is called after every term; it may raise an
    error to end the evaluation.
    """

    def __init__(self, model: Model, seed: int | None = None) -> None:
        self.model = model
        self.outputs = model.graph.outputs
        self.runner = OpaqueRunner(model)
        self.decisions = Decisions(model)
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.meaning: Meaning[Any] = EXACT

    @property
    def asks_the_runtime(self) -> bool:
        """Whether the runtime computes some terms, in models that are made for them."""
        return bool(self.decisions.terms) or any(n.op == "opaque" for n in topological(self.outputs))

    @spent(Purpose.REFERENCES)
    def __call__(self, inputs: Arrays, step: Callable[[], None] = lambda: None) -> list[Any]:
        def after(node: Node, value: Any) -> Any:
            step()
            return self._result(node, value)

        env, sizes = self._leaves(inputs)
        env |= self._constants()
        env |= self._decided(inputs, sizes)
        try:
            values = interpret(self.outputs, self.meaning, env, self._opaque, sizes, after, self._weight)
        except MemoryError as error:  # of a step inside of an operator, which no type shows
            raise NoReference(f"there is too little memory: {error}") from None
        return [values[o] for o in self.outputs]

    def _decided(self, inputs: Arrays, sizes: Mapping[str, int]) -> dict[Node, Any]:
        """The values that the runtime decides before the run."""
        return self.decisions(inputs, sizes)

    def _result(self, node: Node, value: Any) -> Any:
        """The value that is kept for a term; subclasses replace it."""
        return value

    def _weight(self, node: Node) -> Any:
        return self._load(node, self.model.weights[node.attr("name")].numpy())

    def _constants(self) -> dict[Node, Any]:
        """The float constants with changed roundings. In a quantized model, the scales are often
        the only numbers that rounding may change."""
        if self.rng is None:
            return {}
        constants = [n for n in topological(self.outputs) if n.op == "constant" and is_float(n.dtype)]
        return {n: self._load(n, n.attr("value").numpy()) for n in constants}

    def _leaves(self, inputs: Arrays) -> tuple[dict[Node, Any], dict[str, int]]:
        """The values of inputs, and the sizes that they tell."""
        env: dict[Node, Any] = {}
        sizes: dict[str, int] = {}
        for node in self.model.graph.inputs:
            if node.attr("name") in inputs:
                env[node] = self._input(node, inputs[node.attr("name")])
                if isinstance(env[node], np.ndarray):
                    learn(node.tensor.shape, env[node].shape, sizes)
        return env, sizes

    def _opaque(self, node: Node, args: list[Any]) -> Any:
        found = self.runner(node, args)
        if isinstance(node.type, tuple):
            return tuple(self._off(value, each) for value, each in zip(found, node.type, strict=False))
        return self._off(found, node.type)

    def _input(self, node: Node, value: Any) -> Any:
        return self._load(node, value)

    def _load(self, node: Node, value: Any) -> Any:
        return self._off(value if isinstance(value, (list, dict)) else EXACT.load(np.asarray(value)), node.type)

    def _off(self, value: Any, type: Any) -> Any:
        """The numbers off by a rounding, except whole numbers, which are exact: exponents, ones,
        masks."""
        if self.rng is None or not _is_rounded(value, type):
            return value
        off = 1 + float(ml_dtypes.finfo(numpy_dtype(type.dtype)).eps) * self.rng.choice((-1.0, 1.0), value.shape)
        return np.where(value == np.rint(value), value, value * off)


class RoughReference(FloatReference):
    """The original in float64, in which every result of an operator, and every weight, is off by a
    part of a rounding (Monte Carlo arithmetic, Parker 1997).

    Operators that others define are computed step by step, and so are loops, if that is not too
    much work. A rounding is one of the dtype at the result's size, or at the operator's
    `resolution`, if it states one.
    """

    def __init__(self, model: Model, seed: int, part: float) -> None:
        self.part = part
        opened = with_scans(model)
        super().__init__(opened if _work_of_loops(opened) <= WORK else model, seed)
        self.outputs = unfolded(self.model.graph.outputs)
        self.meaning = _RoughSteps(self._result)

    def _input(self, node: Node, value: Any) -> Any:
        return value if isinstance(value, (list, dict)) else EXACT.load(np.asarray(value))

    def _constants(self) -> dict[Node, Any]:
        return {}

    def _decided(self, inputs: Arrays, sizes: Mapping[str, int]) -> dict[Node, Any]:
        decided = self.decisions(inputs, sizes)
        return dict(zip(unfolded([*decided]), decided.values(), strict=True))

    def _result(self, node: Node, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not isinstance(node.type, Tensor) or selects(node.op):
            return value
        return self._off(value, node.type, traits(node).resolution)

    def _opaque(self, node: Node, args: list[Any]) -> Any:
        found = self.runner(node, args)
        several = isinstance(node.type, tuple)
        types = node.type if isinstance(node.type, tuple) else (node.type,)
        values = zip(found if several else (found,), types, resolutions(self.model, node), strict=False)
        moved = tuple([self._off(*each) for each in values])
        return moved if several else moved[0]

    def _off(self, value: Any, type: Any, resolution: float = 0.0) -> Any:
        if not _is_rounded(value, type):
            return value
        assert self.rng is not None
        eps = _epsilon(type.dtype)
        off = np.maximum(eps * np.abs(value), min(eps, SINGLE) * resolution)
        off = np.where(np.isfinite(value), off, 0.0)
        return value + self.part * np.where(self.rng.random(value.shape) < 0.5, -off, off)


@cache
def _epsilon(dtype: str) -> float:
    return float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)


def _is_rounded(value: Any, type: Any) -> bool:
    """Whether a value is an array of floats that other roundings may move."""
    return isinstance(value, np.ndarray) and isinstance(type, Tensor) and is_computed(type.dtype)


def _rough_steps(xp: _RoughSteps, *operands: Any, body: Graph, states: int, sequences: int, **attrs: Any) -> Any:
    """The results of a loop."""
    carried, end = list(operands[:states]), states + sequences
    order = range(len(operands[states]))
    kept: list[list[Any]] = []
    outputs = unfolded(body.outputs)
    inner = [n for n in topological(outputs) if n not in body.inputs]
    for t in reversed(order) if attrs["backward"] else order:
        given = (*carried, *(x[t] for x in operands[states:end]), *operands[end:])
        values, sizes = {ABSENT: None, **dict(zip(body.inputs, given, strict=True))}, dict[str, int]()
        for leaf, value in zip(body.inputs, given, strict=True):
            learn(leaf.shape, value.shape, sizes)
        for node in inner:
            values[node] = xp.after(node, interpret_term(node, xp, [values[a] for a in node.args], sizes))
        carried = [values[o] for o in outputs[:states]]
        kept.append([values[o] for o in outputs[states:]])
    found = (*carried, *(np.stack(each[::-1] if attrs["backward"] else each) for each in zip(*kept, strict=True)))
    return found[0] if len(found) == 1 else found


class _RoughSteps(Reals):
    """Float64, where the results of operators in the steps of a loop are changed by a function."""

    own = MappingProxyType({**Reals.own, "Scan": _rough_steps})

    def __init__(self, after: Callable[[Node, Any], Any]) -> None:
        super().__init__(exact=True)
        self.after = after


def _work_of_loops(model: Model) -> float:
    """The number of elements that all steps of the loops compute; infinite where only a run knows
    the number of steps."""
    total = 0.0
    for node in model.nodes():
        if traits(node).lowering is Lowering.STEPS:
            step = sum(usual_size(dim_product(n.shape)) for n in node.attr("body") if isinstance(n.type, Tensor))
            count = node.args[node.attr("states")].shape[0]
            total += count * step if isinstance(count, int) else math.inf
    return total


class OpaqueRunner:
    """Run an opaque term in ONNX Runtime, in double precision if the runtime supports it, otherwise
    on operands rounded to their declared dtypes.

    A value without a declared type (results of ai.onnx.ml, sequences, maps) stays as the runtime
    gave it.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.sessions: dict[Node, tuple[Session, dict[Node, Node]]] = {}

    def __call__(self, node: Node, args: list[Any]) -> Any:
        results = self._run(node, dict(zip(node.args, args, strict=True)))
        if not isinstance(node.type, tuple):
            return _loaded(results[0], node.type)
        given = iter(results)
        types = zip(node.attr("call").outputs, node.type, strict=True)
        return tuple(_loaded(next(given), type) if name else None for name, type in types)

    def _run(self, node: Node, values: dict[Node, Any]) -> list[Any]:
        if node in self.sessions:
            return _run_alone(*self.sessions[node], values)
        why: Exception | None = None
        for double in (True, False) if _has_a_double(node) else (False,):
            try:
                single, operands = isolated(self.model, node, values, double)
                session = Session(serialize(single))
                results = (
                    _run_alone(session, operands, values) if double else None
                )  # some operators reject it only at this point
            except OutOfTime:  # says nothing about the operator
                raise
            except (TasoMirageError, ValueError, TypeError) as error:
                why = error
                continue
            self.sessions[node] = session, operands
            return _run_alone(session, operands, values) if results is None else results
        raise NoReference(f"{node.attr('call')} cannot be run alone: {why}") from None


def _run_alone(session: Session, operands: Mapping[Node, Node], values: Mapping[Node, Any]) -> list[Any]:
    """The results of a model of one term, whose inputs stand for operands."""
    return session.run({n.attr("name"): _as_declared(values[old], n) for n, old in operands.items()})


def _has_a_double(node: Node) -> bool:
    """Whether an opaque term may be one of float64 in place of other floats: operands and results
    are floats, and neither an attribute, nor the element type of a sequence or an optional value
    tells another dtype; a value of an unknown type may be such a value. A Loop that a computed
    condition ends may have other steps in float64."""
    call = node.attr("call")
    results = node.type if isinstance(node.type, tuple) else (node.type,)
    types = [*(a.type for a in node.args if a is not ABSENT), *results]
    floats = [t for t in types if isinstance(t, Tensor) and is_float(t.dtype)]
    inside = any(isinstance(t, Tensor) and t.dtype.startswith(("Sequence", "Optional", "unknown")) for t in types)
    told = inside or ends_by_numbers(call.node) or TOLD & {*call.node.attributes}
    return len(floats) > 1 and not told


def _loaded(result: Any, type: Type) -> Any:
    """A result in float64, if its type is known to be a tensor; an array of rank 0 is an array,
    too."""
    if result is None or isinstance(result, (list, dict)):  # None: an empty optional value
        return result
    array = np.asarray(result)
    return EXACT.load(array) if isinstance(type, Tensor) and is_float(type.dtype) else array


def _as_declared(value: Any, node: Node) -> Any:
    """The value as the runtime takes it: an array of the declared dtype, also where numpy made a
    number of an array of rank 0."""
    if value is None or isinstance(value, (list, dict)):
        return value
    array = np.asarray(value)
    if not isinstance(node.type, Tensor) or not is_float(node.dtype):
        return array
    return array.astype(numpy_dtype(node.dtype))
