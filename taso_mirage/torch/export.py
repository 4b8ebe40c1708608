"""A captured graph as an ONNX model, by PyTorch's exporter, with the sizes for which it holds."""

from __future__ import annotations

import inspect
import logging
import math
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from taso_mirage.errors import Unsupported
from taso_mirage.torch.decompositions import ATEN, DECOMPOSITIONS, EAGER_ONLY, convert_subtracted, zero_hidden_rows
from taso_mirage.torch.functionalization import (
    Captured,
    FreeDims,
    FunctionalSplit,
    StaysInPart,
    changed_arguments,
    functional_split,
    largest_bytes,
    operands_written,
)

SizeGiven = int | tuple[int, ...]
"""An integer argument, or the sizes of a tensor."""
REMEMBERED = 1000
"""The largest number of SizesHeld that are known to be right or wrong."""
SAMPLE = 1 << 25
LARGE = 4 * SAMPLE
"""The size in bytes of a graph's largest tensor from which on the graph is exported for any number
of samples. Such a graph is optimized and checked with so few samples that its largest tensor has
this size: a float64 reference of gigabytes takes minutes. The first run, with all samples, is
compared with eager PyTorch as for any graph."""
NORMS = frozenset((ATEN.batch_norm.default, ATEN.instance_norm.default))
"""Operators whose argument 5 says whether they use the statistics of the batch."""
HOLDING = frozenset((ATEN.detach_.default,))
"""Operators that are declared to change an operand in place, but keep its numbers: constants of a
graph go through them."""


class ChangesInPlace(Exception):
    """The error for a module that changes inputs, by their numbers, or weights, by their names."""

    def __init__(self, inputs: frozenset[int], weights: frozenset[str]) -> None:
        super().__init__(f"it changes {', '.join(sorted(weights)) or 'its inputs'} in place")
        self.inputs, self.weights = inputs, weights


@dataclass
class SizesHeld:
    """The sizes of the inputs for which a model holds: dims are numbers or expressions of symbols,
    `ranges` are those of the symbols, `guards` are expressions in Python of the inputs' names,
    `relations` expressions of the symbols."""

    names: tuple[str, ...]
    dims: tuple[Any, ...]
    ranges: Mapping[Any, Any]
    guards: tuple[str, ...]
    relations: tuple[Any, ...] = ()
    _known: dict[tuple[SizeGiven, ...], bool] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        """Whether the model may hold for several sizes."""
        return any(hasattr(dim, "subs") for dims in self.dims for dim in (dims if isinstance(dims, tuple) else (dims,)))

    def hold(self, given: Sequence[Any]) -> bool:
        """Whether the sizes hold for these arguments."""
        sizes = sizes_of(given)
        if (known := self._known.get(sizes)) is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[sizes] = self._hold(sizes, given)
        return known

    def sample(self, given: Sequence[Any], share: float) -> Sequence[Any]:
        """Inputs like these with about that share of every free leading dim, if the model holds for
        them too; else these inputs."""
        wanted = {
            dims[0]: max(2, 1 << max(int(each.shape[0] * share), 1).bit_length() - 1)
            for dims, each in zip(self.dims, given, strict=True)
            if isinstance(dims, tuple) and dims and getattr(dims[0], "is_symbol", False)
        }
        made = [
            each[: wanted[dims[0]]] if isinstance(dims, tuple) and dims and dims[0] in wanted else each
            for dims, each in zip(self.dims, given, strict=True)
        ]
        return made if share < 1 and wanted and self.hold(made) else given

    def _hold(self, sizes: Sequence[SizeGiven], given: Sequence[Any]) -> bool:
        pairs = [
            pair
            for dims, there in zip(self.dims, sizes, strict=True)
            for pair in (zip(dims, there, strict=True) if isinstance(there, tuple) else [(dims, there)])
        ]
        symbols = {expression: size for expression, size in pairs if getattr(expression, "is_symbol", False)}
        for expression, size in pairs:
            if (expression.subs(symbols) if hasattr(expression, "subs") else expression) != size:
                return False
        bounds = [(size, self.ranges[symbol]) for symbol, size in symbols.items() if symbol in self.ranges]
        if not all(bound.lower <= size <= bound.upper for size, bound in bounds):
            return False
        if any(relation.subs(symbols) != True for relation in self.relations):  # noqa: E712 - sympy's own true
            return False
        return self._guards_hold(given)

    def _guards_hold(self, given: Sequence[Any]) -> bool:
        inputs = dict(zip(self.names, given, strict=True))
        try:
            return all(eval(guard, {"L": inputs, "math": math, "torch": torch}) for guard in self.guards)
        except Exception:  # a guard with names that are not known here
            return False


def sizes_of(given: Sequence[Any]) -> tuple[SizeGiven, ...]:
    return tuple([each if isinstance(each, int) else each.shape for each in given])


@dataclass(frozen=True)
class OnnxForm:
    """A model (an `onnx_ir.Model`) and the sizes that it holds for."""

    model: Any
    sizes: SizesHeld


@dataclass(frozen=True)
class ExportedGraph:
    """A split of a graph, whose `changed` are all arguments that change in place according to
    PyTorch or the exporter; the inner half with its weights, as a module and as a model; and few
    samples of the inputs if the graph is large, else all."""

    split: FunctionalSplit
    module: Any
    form: OnnxForm
    few: Sequence[Any]


def export_graph(captured: Captured, arguments: Sequence[Any], known: Collection[int] | None = None) -> ExportedGraph:
    """A graph, exported for these arguments, of which those at the positions `known` change.

    Raises Unsupported with the reason if the export is impossible.
    """
    changed = (changed_arguments(captured, arguments) or frozenset()) if known is None else known
    split = functional_split(captured, changed)
    module = split.frozen(captured, arguments)
    given, large = [arguments[i] for i in split.inputs], largest_bytes(captured)
    try:
        form = _form(module, given, split.free, large)
    except ChangesInPlace as changes:
        places = {split.inputs[i] for i in changes.inputs} | {split.weights.get(name, -1) for name in changes.weights}
        if -1 in places or places <= set(changed):  # more changes than those of arguments
            raise Unsupported(str(changes)) from changes
        return export_graph(captured, arguments, places.union(changed))
    return ExportedGraph(split, module, form, form.sizes.sample(given, SAMPLE / max(large, 1)))


def _form(module: Any, given: Sequence[Any], free: Sequence[FreeDims], large: int) -> OnnxForm:
    """The inner half as a model; for any number of samples if it is large and holds for fewer."""
    if large > LARGE:
        made = to_onnx(module, given, _of_any_number(given, free))
        if made.sizes.sample(given, 0.5) is not given:
            return made
    return to_onnx(module, given, free)


def _of_any_number(given: Sequence[Any], free: Sequence[FreeDims]) -> tuple[FreeDims, ...]:
    """The free dims of inputs, and their leading dims that are as long as that of the largest
    tensor: the samples."""
    sized = [each for each in given if isinstance(each, torch.Tensor) and each.ndim]
    count = max(sized, key=torch.Tensor.numel).shape[0] if sized else 1
    samples = [isinstance(each, torch.Tensor) and each.ndim > 0 and each.shape[0] == count > 1 for each in given]
    return tuple([dims | {0} if dims is not None and one else dims for dims, one in zip(free, samples, strict=True)])


def to_onnx(module: Any, given: Sequence[Any], free: Sequence[FreeDims]) -> OnnxForm:
    """A module of the inner half, exported for these inputs.

    Raises ChangesInPlace where it changes inputs or weights, and Unsupported with the reason where
    the exporter cannot.
    """
    with _quiet(), _operators_read_once(), torch.no_grad():
        try:
            program = torch.export.export(module, tuple(given), dynamic_shapes=_dynamic(given, free), strict=False)
            shapes = _shapes(program)
            known = len(shapes.guards) if shapes else 0
            written = _exportable(program)
            zero_hidden_rows(written)
            convert_subtracted(written)
            model = torch.onnx.export(written, dynamo=True, verbose=False, optimize=False).model
            _fold(model)
        except (Unsupported, ChangesInPlace, MemoryError):
            raise
        except Exception as error:  # the exporter raises the errors of its many parts
            raise _refusal(_reason(error)) from error
    if (count := len(model.graph.inputs)) != len(given):
        raise Unsupported(f"PyTorch exported {count} inputs of {len(given)}")
    relations = tuple([shapes.replace(guard.expr) for guard in shapes.guards[known:]]) if shapes else ()
    return OnnxForm(model, held_sizes(program, tuple(inspect.signature(module.forward).parameters), relations))


def _fold(model: Any) -> None:
    """Compute the terms in a model that depend on no input, and write functions in the places of
    their calls.

    The exporter's optimizer is not used: it treats numbers that are near as equal, so that 1e-9 is
    0, and drops it from a sum.
    """
    from onnxscript import optimizer  # a slow import, which torch.onnx does at that time anyway

    optimizer.inline(model)
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)


def _refusal(reason: str) -> Unsupported:
    """The error for a reason of the exporter: it concerns an operator that the reason names, or the
    whole graph."""
    named = re.search(r"<OpOverload\(op='([^']+)', overload='([^']+)'\)>", reason)
    if named is None:
        return Unsupported(f"PyTorch cannot export it: {reason}")
    operator = ".".join(named.groups())
    return StaysInPart(f"PyTorch cannot export {operator}", lambda each: str(each) == operator)


def _reason(error: BaseException) -> str:
    """The innermost cause of an error, in one line."""
    while (inner := error.__cause__) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _dynamic(given: Sequence[Any], free: Sequence[FreeDims]) -> tuple[Any, ...]:
    auto = torch.export.Dim.AUTO
    fixed = torch.export.Dim.STATIC
    return tuple(
        auto if dims is None else {i: auto if i in dims else fixed for i in range(each.ndim)}
        for each, dims in zip(given, free, strict=True)
    )


def _exportable(program: Any) -> Any:
    """The program, if it changes nothing in place, with decompositions of the operators that the
    exporter writes wrongly.

    Raises ChangesInPlace, and StaysInPart if an operator has no decomposition.
    """
    nodes = [node for part in program.graph_module.modules() for node in part.graph.nodes]
    if alone := [node.target for node in nodes if node.target in EAGER_ONLY]:
        raise StaysInPart(f"{alone[0]} {EAGER_ONLY[alone[0]]}", EAGER_ONLY.__contains__)
    decomposed = any(_trains(node) or node.target in DECOMPOSITIONS for node in nodes)
    if not decomposed and not any(map(may_change, nodes)):
        return program
    functional = program.run_decompositions(dict(DECOMPOSITIONS))
    signature = functional.graph_signature
    weights = {*signature.buffers_to_mutate.values(), *getattr(signature, "parameters_to_mutate", {}).values()}
    names = list(signature.user_inputs)
    inputs = {names.index(name) for name in signature.user_inputs_to_mutate.values()}
    if weights or inputs:
        raise ChangesInPlace(frozenset(inputs), frozenset(weights))
    return functional if decomposed else program


def _trains(node: Any) -> bool:
    """Whether a node is a norm with the statistics of its batch."""
    return node.target in NORMS and len(node.args) > 5 and bool(node.args[5])


def may_change(node: Any) -> bool:
    """Whether a node of a graph of ATen may change the elements of an operand in place.

    A graph inside of the graph, or an operator of others, may be anything.
    """
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OperatorBase):
        return bool(node.op == "call_module")
    if node.target in HOLDING:
        return False
    schema = getattr(node.target, "_schema", None)
    aten = schema is not None and schema.name.startswith("aten::")
    return not aten or bool(operands_written(node.target, node.args, node.kwargs))


def _shapes(program: Any) -> Any:
    """PyTorch's ShapeEnv of a program, which knows its free sizes; None if all are fixed.

    Decomposing an operator may fix a size silently: only the guards that it adds there tell.
    """
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    sizes = [size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else (value,))]
    return next((size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)), None)


def held_sizes(program: Any, arguments: Sequence[str], relations: Sequence[Any] = ()) -> SizesHeld:
    """The sizes for which an exported program holds. Its guards use the arguments' names in the
    module, which the exporter may write otherwise. `relations` were found later."""
    names = list(program.graph_signature.user_inputs)
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    shapes = [
        tuple(map(_expression, values[name].shape))
        if isinstance(values[name], torch.Tensor)
        else _expression(values[name])
        for name in names
    ]
    guards = tuple(program._guards_code)
    return SizesHeld(tuple(arguments), tuple(shapes), program.range_constraints, guards, tuple(relations))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without the exporter's own messages; errors contain the important ones."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _operators_read_once() -> Iterator[None]:
    """A context in which the exporter does not read all of its operators from their source at each
    export, which takes longer than the export of a small graph."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        own, read = ONNXRegistry.__dict__["from_torchlib"], ONNXRegistry.from_torchlib
    except (ImportError, AttributeError, KeyError):  # another version
        yield
        return

    def known(**options: Any) -> Any:
        key = ("torchvision" in sys.modules, *options.values())  # torchvision adds operators
        if key not in _OPERATORS:
            _OPERATORS[key] = read(**options)
        return _OPERATORS[key]

    ONNXRegistry.from_torchlib = staticmethod(known)
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = own


_OPERATORS: dict[tuple[Any, ...], Any] = {}
"""The exporter's tables of operators, by opset."""
