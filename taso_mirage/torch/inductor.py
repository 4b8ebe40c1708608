"""Inductor's code of a captured graph, and of an optimized one: its terms become PyTorch's
operators (see `meaning`), and each fused kernel one operator, which launches it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch._dynamo import lookup_backend
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import Library, register_fake

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import fixed, learn
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, is_constant, is_named_weight
from taso_mirage.lowering.backend import Record
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import load_specs
from taso_mirage.report.result import Result
from taso_mirage.runtime.kernel_functions import DOMAIN
from taso_mirage.search.weights import fold_weights
from taso_mirage.targets.protocol import Target
from taso_mirage.torch.cuda_graphs import CapturedWhereFaster, TensorCall, record
from taso_mirage.torch.export import sizes_of
from taso_mirage.torch.functionalization import Captured, copy_strided, memory, value_of
from taso_mirage.torch.meaning import TorchMeaning, is_uniform, tensor_of, torch_dtype
from taso_mirage.torch.norms import with_group_norms, with_variances
from taso_mirage.torch.precision import ROUNDING, rounded_now
from taso_mirage.torch.random_ops import drawing

NAMED = "kernel"
"""The operator in PyTorch: `taso_mirage::kernel(key, inputs)`."""
PRODUCTS = {
    torch.ops.aten.convolution.default: "Conv",
    torch.ops.aten.mm.default: "MatMul",
    torch.ops.aten.bmm.default: "MatMul",
    torch.ops.aten.addmm.default: "MatMul",
    torch.ops.aten.baddbmm.default: "MatMul",
}
"""PyTorch's operators whose operands it may round to TF32, by ONNX's names."""
Launch = Callable[..., Any]
"""Runs a kernel on contiguous tensors."""
LaunchMaker = Callable[[Record, Sequence[Sequence[int]]], Launch]
"""A function that makes the launch of a kernel for inputs of given shapes."""


@dataclass(frozen=True, eq=False)
class PlacedLaunch:
    """A kernel at a place of a graph: its launcher, and the shapes and dtypes of its results."""

    launch: Launch
    results: tuple[tuple[tuple[int, ...], Any], ...]


PLACED: WeakValueDictionary[str, PlacedLaunch] = WeakValueDictionary()
"""Kernels by the keys in graphs; the owner of a graph keeps them alive."""
_NUMBERS = count()


def _launch(key: str, inputs: Sequence[Any]) -> list[Any]:
    found = PLACED[key].launch(*[each.contiguous() for each in inputs])
    return list(found) if isinstance(found, tuple | list) else [found]


def _result_types(key: str, inputs: Sequence[Any]) -> list[Any]:
    return [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in PLACED[key].results]


LIBRARY = Library(DOMAIN, "DEF")
LIBRARY.define(f"{NAMED}(str key, Tensor[] inputs) -> Tensor[]")
for _device in ("CPU", "CUDA"):
    LIBRARY.impl(NAMED, _launch, _device)
register_fake(f"{DOMAIN}::{NAMED}", _result_types, lib=LIBRARY)


@dataclass(frozen=True)
class OptimizedPart:
    """A part of a graph as the optimizer returned it, with the records of the kernels in it."""

    model: Model
    records: Mapping[str, Record]
    target: Target


def candidates(results: Sequence[Result]) -> Iterator[list[OptimizedPart]]:
    """The optimized parts of a graph, with kernels and without. Unchanged parts are included, as
    their calls are captured. Parts whose operands PyTorch would round although it rounds none now
    are left out: a convolution may be written as a product, and a product as a convolution."""
    kerneled = [OptimizedPart(each.model, each.records, each.target) for each in results]
    plain = [OptimizedPart(each.unfused or each.model, {}, each.target) for each in results]
    for parts in (kerneled, plain) if any(each.records for each in results) else (plain,):
        if not any(_rounds_more(part.model, each.original) for part, each in zip(parts, results, strict=True)):
            yield parts


def _rounds_more(model: Model, original: Model) -> bool:
    """Whether PyTorch rounds the operands of more products than before, if it did not round those
    of all before."""
    before, after = _products(original), _products(model)
    rounded = rounded_now(ROUNDING)
    kept = sum(name not in rounded for name in before)
    return kept > 0 and sum(map(rounded.__contains__, after)) > len(before) - kept


def _products(model: Model) -> list[str]:
    """The products of a model in single precision, by ONNX's names."""
    singles = [node.op for node in model.nodes() if isinstance(node.type, Tensor) and node.dtype == "float32"]
    known = load_specs()
    names = [str(known[op].onnx) for op in singles if op in known]
    return [name for name in names if name in ROUNDING]


class ComposedCalls:
    """Calls of parts of a graph, one after the other, as one function by Inductor; `given` are the
    tensors and integers for which it is compiled. On CUDA calls are captured if that is faster. At
    other sizes, and by other settings of PyTorch for TF32, `otherwise` runs.

    Raises Unsupported where a term has no form in PyTorch, and Inductor's errors.
    """

    owning = True

    def __init__(
        self,
        parts: Sequence[OptimizedPart],
        inputs: Sequence[str],
        results: Sequence[str],
        given: Sequence[Any],
        device: Any,
        otherwise: TensorCall,
    ) -> None:
        self._device, self._otherwise = device, otherwise
        self._made_for = self._setting(given)
        self._strides = [_strides(each) for each in given if isinstance(each, torch.Tensor)]
        arranged = iter(self._tensors(given))
        given = [next(arranged) if isinstance(each, torch.Tensor) else each for each in given]
        traced = _Traced(parts, device)
        graph = traced.graph(inputs, results, given)
        self._placed, weights = traced.placed, traced.weights
        called = {PRODUCTS.get(node.target) for node in graph.graph.nodes}
        self.rounds = bool(rounded_now(frozenset(filter(None, called)))) and device.type == "cuda"
        """Whether operands of products are rounded to TF32."""
        with torch.no_grad():
            code = code_of(graph, [*self._tensors(given), *weights], device.type == "cuda")
        self._plain: TensorCall = partial(_call, code, weights)
        captured = CapturedWhereFaster(self._plain, partial(record, self._plain))
        self._calls = captured if device.type == "cuda" else self._plain

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        if self._setting(given) != self._made_for:
            return self._otherwise(given)
        whole = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        call = self._plain if whole else self._calls  # the caller captures these calls as a part of its graph
        with torch.no_grad():
            return call(self._tensors(given))

    def _setting(self, given: Sequence[Any]) -> Any:
        return sizes_of(given), rounded_now(ROUNDING) if self._device.type == "cuda" else None

    def _tensors(self, given: Sequence[Any]) -> list[Any]:
        """The inputs that are tensors, with the memory layout for which the code is compiled."""
        tensors = [each.detach().resolve_neg() for each in given if isinstance(each, torch.Tensor)]
        return [
            each if each.stride() == strides else copy_strided(each, strides)
            for each, strides in zip(tensors, self._strides, strict=True)
        ]


def _call(code: Launch, weights: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    return list(code(*tensors, *weights))


def _strides(tensor: Any) -> tuple[int, ...]:
    """The strides of a tensor, or of its dense copy where elements may share memory: no other
    tensor could be copied into shared elements."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tuple(torch.empty(tensor.shape, device="meta").stride())
        reach += stride * max(size - 1, 0)
    return tuple(tensor.stride())


class _Traced:
    """A graph of ATen's operators for parts of a model, whose weights are its last arguments."""

    def __init__(self, parts: Sequence[OptimizedPart], device: Any) -> None:
        models = [fold_weights(with_group_norms(each.model))[0] for each in parts]
        self.parts = [replace(part, model=model) for part, model in zip(parts, models, strict=True)]
        self.device, self.meaning = device, TorchMeaning(device)
        self.placed: list[PlacedLaunch] = []
        self.weights: list[Any] = []
        self._held: list[dict[Node, int]] = []
        for part in self.parts:
            self._held.append(places := {})
            for node in part.model.nodes():
                if (array := _array(node, part.model)) is not None:
                    places[node] = len(self.weights)
                    self.weights.append(tensor_of(array, device))

    def graph(self, inputs: Sequence[str], results: Sequence[str], given: Sequence[Any]) -> Any:
        tensors = [each for each in given if isinstance(each, torch.Tensor)]

        def function(*arguments: Any) -> list[Any]:
            left = iter(arguments[: len(tensors)])
            values = {name: self._value(each, left) for name, each in zip(inputs, given, strict=True)}
            for part, held in zip(self.parts, self._held, strict=True):
                weights = {node: arguments[len(tensors) + i] for node, i in held.items()}
                values |= self._compute(part, weights, values)
            return _apart([values[name] for name in results], arguments)

        with torch.no_grad():
            return with_variances(make_fx(function, tracing_mode="fake")(*tensors, *self.weights))

    def _value(self, given: Any, tensors: Iterator[Any]) -> Any:
        """The tensor of an argument; a number is a part of the graph."""
        if isinstance(given, torch.Tensor):
            return next(tensors)
        return torch.full((), given, dtype=torch.int64, device=self.device)

    def _compute(self, part: OptimizedPart, weights: Mapping[Node, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """The results of a part by name."""
        model, sizes = part.model, dict[str, int]()
        known = dict(weights)
        for node in model.graph.inputs:
            known[node] = values[node.attr("name")]
            learn(node.tensor.shape, known[node].shape, sizes)
        if unknown := set(model.symbols()).difference(sizes):
            raise Unsupported(f"the size {min(unknown)} is no dim of an input by itself")
        found = interpret(
            model.graph.outputs,
            self.meaning,
            known,
            opaque=lambda node, args: self._kernel(part, node, args, sizes),
            sizes=sizes,
        )
        return dict(zip(model.output_names, [found[o] for o in model.graph.outputs], strict=True))

    def _kernel(self, part: OptimizedPart, node: Node, args: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        """The results of a fused kernel; no other node without a definition has a form in
        PyTorch."""
        call = node.attr("call").node
        name = next((each for each in part.records if call.op_type.startswith(each)), None)
        if call.domain != DOMAIN or name is None:
            raise Unsupported(f"{node.attr('call')!r} has no form in PyTorch")
        types = node.type if isinstance(node.type, tuple) else (node.tensor,)
        results = tuple((fixed(type.shape, sizes), torch_dtype(type.dtype)) for type in types)
        launch = launch_maker(part.target)(part.records[name], [tuple(each.shape) for each in args])
        key = f"{name} {next(_NUMBERS)}"
        self.placed.append(PlacedLaunch(launch, results))
        PLACED[key] = self.placed[-1]
        found = getattr(getattr(torch.ops, DOMAIN), NAMED)(key, [each.contiguous() for each in args])
        return tuple(found) if isinstance(node.type, tuple) else found[0]


def launch_maker(target: Target) -> LaunchMaker:
    """The function that makes launches of a target's kernels on tensors.

    Raises Unsupported if there is none.
    """
    found = getattr(import_module(target.lowering), "launcher", None) if target.lowering else None
    if found is None:
        raise Unsupported(f"kernels for {target.name} are not launched on tensors")
    made: LaunchMaker = found
    return made


def _array(node: Node, model: Model) -> Any:
    """The array of a weight, or of a constant that is no number everywhere; None for another
    term."""
    if is_named_weight(node):
        return model.weights[node.attr("name")].numpy()
    array = node.attr("value").numpy() if is_constant(node) else None
    return None if array is None or array.size == 0 or is_uniform(array) else array


def _apart(results: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The results as dense tensors in memory of their own."""
    taken, found = set(map(memory, arguments)), list[Any]()
    for each in results:
        dense = each.contiguous()
        found.append(dense.clone() if memory(dense) in taken else dense)
        taken.add(memory(found[-1]))
    return found


def code_of(captured: Captured, given: Sequence[Any], cuda: bool) -> Launch:
    """Inductor's code after its first call, which compiles it; the state of random numbers is as
    before."""

    def ran() -> Launch:
        found = compile_by_inductor(captured, given)
        found(*given)
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Launch = drawing(ran, cuda)[0]  # Inductor may draw random numbers for tuning
    return found


def compile_by_inductor(captured: Captured, given: Sequence[Any]) -> Launch:
    """Inductor's code of a graph without gradients, by PyTorch's settings as they are.

    Dynamo has guarded the fixed sizes of a graph when it calls it. With free sizes the code holds
    for some of them only: dynamo guards them again.
    """
    own = copy.deepcopy(captured)  # Inductor changes its argument
    if _is_fixed(captured):
        found: Launch = lookup_backend("inductor")(own, list(given))
        return found
    compiled: Launch = torch.compile(own, dynamic=True)
    return compiled


def _is_fixed(captured: Captured) -> bool:
    """Whether no size is free, and no number is known only in a run."""
    values = [value_of(node) for node in captured.graph.nodes]
    sizes = [n for each in values if isinstance(each, torch.Tensor) for n in (*each.shape, *each.stride())]
    return not any(isinstance(each, torch.SymInt | torch.SymFloat | torch.SymBool) for each in (*values, *sizes))
