"""The split of a captured graph into a functional part and a rest: a session computes the
functional part, tensors that share memory with nothing; the rest, numbers and views of these
tensors and of the inputs, stays in PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from taso_mirage.errors import Unsupported

VIEWS = frozenset(
    "T chunk contiguous detach diagonal expand expand_as flatten mT movedim moveaxis narrow permute ravel reshape "
    "select split squeeze swapaxes swapdims t tensor_split to transpose unbind unflatten unfold unsqueeze view "
    "view_as".split()
)
"""Functions and methods that read their operand or copy it, and change nothing."""
MODES = frozenset(("_set_grad_enabled", "_enter_inference_mode", "_exit_inference_mode"))
"""Calls that a graph without gradients does not need."""
CALLS = frozenset(("call_function", "call_method", "call_module"))
"""Kinds of a captured graph's nodes that compute something."""
UNROLLED = frozenset(("rnn_tanh", "rnn_relu"))
"""Loops over a sequence that the exporter writes step by step."""
FreeDims = frozenset[int] | None
"""The dims of a tensor whose sizes are not fixed; None for a number."""
Captured = Any
"""A `torch.fx.GraphModule` from dynamo."""


class StaysInPart(Unsupported):
    """The error for a graph with operators (`torch._ops.OpOverload`) that cannot be compiled and
    that `stays` recognizes."""

    def __init__(self, reason: str, stays: Callable[[Any], bool]) -> None:
        super().__init__(reason)
        self.stays = stays


@dataclass(frozen=True)
class FunctionalSplit:
    """`inner` takes the arguments at the positions `inputs` and holds those at `weights` by name,
    and the numbers at `numbers`; `outer` takes all arguments and the results of `inner`, and
    returns the graph's results; without `outer` the results of `inner` are the graph's. `free` has,
    for each of `inputs`, the dims that are not fixed. `changed` are the positions of the arguments
    that the graph changes in place: `inner` returns their new values after the results, and `outer`
    writes them into the arguments."""

    inner: Any
    outer: Any
    weights: Mapping[str, int]
    numbers: Mapping[str, int]
    inputs: tuple[int, ...]
    free: tuple[FreeDims, ...]
    changed: tuple[int, ...]

    def frozen(self, captured: Captured, arguments: Sequence[Any]) -> Any:
        """The inner half with its weights, as a module."""
        own = {name: arguments[i] for name, i in self.weights.items()}
        own |= {name: arguments[i].item() for name, i in self.numbers.items()}
        names = {n.target for n in self.inner.nodes if n.op in ("get_attr", "call_module")} - set(own)
        root = {name: reduce(getattr, name.split("."), captured) for name in names}
        return torch.fx.GraphModule(root | own, self.inner)


def largest_bytes(captured: Captured) -> int:
    """Bytes of the largest tensor of fixed sizes in a graph, weights aside."""
    values = [value_of(n) for n in captured.graph.nodes if n.op != "placeholder" or not _is_weight(n)]
    known = [each for each in values if isinstance(each, torch.Tensor) and all(isinstance(n, int) for n in each.shape)]
    return max((each.numel() * each.element_size() for each in known), default=0)


def is_trained(captured: Captured) -> bool:
    """Whether gradients of a result are wanted; a view of a weight is not computed here."""
    given = {_memory(node) for node in placeholders_of(captured)}
    computed = [node for node in _results(captured) if _memory(node) not in given]
    return any(getattr(value_of(node), "requires_grad", False) for node in computed)


def only_looks(captured: Captured) -> bool:
    """Whether a graph consists of views of its arguments, and of sizes."""
    return all(node.op in ("placeholder", "get_attr", "output") or _stays(node) for node in captured.graph.nodes)


def functional_split(captured: Captured, changed: Collection[int] = ()) -> FunctionalSplit:
    """The split of a graph that changes the arguments at these positions in place.

    Raises Unsupported with the reason if no split is possible.
    """
    placeholders = placeholders_of(captured)
    for node in placeholders:
        if not isinstance(value_of(node), torch.Tensor | torch.SymInt | int):
            raise Unsupported(f"the input {node.name} is a {type(value_of(node)).__name__}, no tensor and no integer")
    if names := UNROLLED & {getattr(node.target, "__name__", "") for node in captured.graph.nodes}:
        raise Unsupported(f"PyTorch's exporter writes {min(names)} step by step")
    fresh, stays = _divide(captured, placeholders)
    states = [placeholders[i] for i in sorted(changed)]
    if states:
        _check_views(stays)
    computed = {node: _layout(value_of(node)) for node in (*fresh, *states)}
    sizes = _sizes(placeholders)
    weights = {f"weight_{n.name}": n for n in placeholders if _is_weight(n) and n not in states}
    numbers = {f"number_{n.name}": n for n in placeholders if _is_fixed_number(n)}
    held = {*sizes, *weights.values(), *numbers.values()}
    inputs = [node for node in placeholders if node not in held]
    plain = list(captured.graph.output_node().args[0]) == fresh and not any(computed.values()) and not states
    return FunctionalSplit(
        _inner(captured, inputs, {**weights, **numbers}, sizes, states, computed),
        None if plain else _outer(captured, stays, states, computed),
        {name: placeholders.index(node) for name, node in weights.items()},
        {name: placeholders.index(node) for name, node in numbers.items()},
        tuple(placeholders.index(node) for node in inputs),
        tuple(_free(value_of(node)) for node in inputs),
        tuple(sorted(changed)),
    )


def placeholders_of(captured: Captured) -> list[Any]:
    """The nodes of a graph's arguments, in their order."""
    return [node for node in captured.graph.nodes if node.op == "placeholder"]


def _results(captured: Captured) -> list[Any]:
    """The nodes of the results, each once."""
    given = captured.graph.output_node().args[0]
    return list(dict.fromkeys(node for node in given if isinstance(node, torch.fx.Node)))


def value_of(node: Any) -> Any:
    """The stand-in for a node's value while the graph is captured: a tensor without elements, or a
    symbol."""
    return node.meta.get("example_value")


def _is_weight(node: Any) -> bool:
    fixed = (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type") is not None
    return fixed or isinstance(value_of(node), torch.nn.Parameter)


def _is_fixed_number(node: Any) -> bool:
    """Whether a node is a number that dynamo gives as a tensor, and that the graph uses for more
    than arithmetic: the epsilon of a norm, which is an attribute in ONNX."""
    value, uses = value_of(node), list(node.users)
    alone = isinstance(value, torch.Tensor) and value.dtype == torch.float64 and not value.shape
    return bool(alone and uses) and all(map(_reads, uses)) and not all(map(_calculates, uses))


def _reads(node: Any) -> bool:
    return bool(node.op == "call_method" and node.target == "item")


def _calculates(node: Any) -> bool:
    """Whether only Python's operators are applied to a number."""
    return all(
        getattr(user.target, "__module__", "") == "_operator"
        and (isinstance(value_of(user), torch.Tensor) or _calculates(user))
        for user in node.users
    )


def _free(value: Any) -> FreeDims:
    if not isinstance(value, torch.Tensor):
        return None
    return frozenset(i for i, size in enumerate(value.shape) if isinstance(size, torch.SymInt))


# ---------------------------------------------------------------- changes in place


STATISTICS = frozenset(("running_mean", "running_var"))
"""Operands that batch norms in training change, although PyTorch's declarations do not say so."""


class Observer(TorchDispatchMode):  # type: ignore[misc]
    """Calls `observe` with each operator of ATen that is called, its operands, and its named
    ones."""

    def __init__(self, observe: Callable[[Any, Sequence[Any], Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._observe = observe

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._observe(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def changed_arguments(captured: Captured, given: Sequence[Any]) -> frozenset[int] | None:
    """The positions of the arguments that a call of a graph on arguments like these changes in
    place, found in a run without elements; None if only a run with elements tells."""
    mode, changed = FakeTensorMode(allow_non_fake_inputs=True), set[int]()

    def observe(operator: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        leaves = tree_leaves(operands_written(operator, args, named))
        changed.update(memory(each) for each in leaves if isinstance(each, torch.Tensor))

    try:
        fakes = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in given]
        with mode, Observer(observe), torch.no_grad():
            torch.fx.Interpreter(captured).run(*fakes)
    except Exception:  # a call that depends on elements, or is unknown to PyTorch's own tracing
        return None
    return frozenset(i for i, each in enumerate(fakes) if isinstance(each, torch.Tensor) and memory(each) in changed)


def operands_written(operator: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The operands that a call of an operator writes into."""
    declared = operator._schema.arguments
    values = {**dict(zip((each.name for each in declared), args, strict=False)), **named}
    trains = values.get("training", values.get("use_input_stats", True))
    written = [
        values.get(each.name)
        for each in declared
        if (each.alias_info is not None and each.alias_info.is_write) or (trains and each.name in STATISTICS)
    ]
    return [each for each in written if each is not None]


def are_apart(changed: Collection[int], given: Sequence[Any]) -> bool:
    """Whether none of the arguments at these positions shares memory with another one."""
    memories = [each.untyped_storage().data_ptr() for each in given if isinstance(each, torch.Tensor)]
    return all(memories.count(given[i].untyped_storage().data_ptr()) == 1 for i in changed)


def copy_strided(tensor: Any, strides: Sequence[int] | None = None) -> Any:
    """A copy of a tensor with these strides or its own: code may be compiled for them, and a clone
    has others."""
    made = torch.empty_strided(tensor.shape, strides or tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def memory(tensor: Any) -> int:
    """A key that is equal for tensors that share memory, also for those without elements."""
    return int(tensor.untyped_storage()._cdata)


# ---------------------------------------------------------------- the rest, in PyTorch


def _divide(captured: Captured, placeholders: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The nodes that a session computes, and those between them and the results, in their order."""
    given = {_memory(node) for node in placeholders} - {None}
    results = [node for node in _results(captured) if node.op != "placeholder"]
    shared = Counter(_memory(node) for node in results)
    fresh: dict[Any, None] = {}
    stays: set[Any] = set()

    def stay(node: Any) -> None:
        if node.op == "placeholder" or node in fresh or node in stays:
            return
        if not _stays(node):
            fresh[node] = None
            return
        stays.add(node)
        for operand in node.all_input_nodes:
            stay(operand)

    for node in results:
        alone = _memory(node) not in given and shared[_memory(node)] == 1
        if isinstance(value_of(node), torch.Tensor) and alone and not (_order(value_of(node)) is None and _stays(node)):
            fresh[node] = None
        else:
            stay(node)
    owners = [_memory(node) for node in fresh]
    if len(set(owners)) < len(owners) or given & set(owners):
        raise Unsupported("results share memory with each other or with an input in a way that is not understood")
    if any(not isinstance(value_of(node), torch.Tensor) for node in fresh):
        raise Unsupported("it gives a number that is not computed from sizes")
    return list(fresh), [node for node in captured.graph.nodes if node in stays]


def _stays(node: Any) -> bool:
    """Whether a node is a view, or a number computed from numbers."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name == "getitem":
        return _indexes(node)
    number = not isinstance(value_of(node), torch.Tensor | tuple | list) or isinstance(value_of(node), torch.Size)
    return node.op in ("call_function", "call_method") and (number or name in VIEWS)


def _indexes(node: Any) -> bool:
    """Whether `x[i]` is a view, a size, or a part of one."""
    taken, index = node.args
    if isinstance(value_of(taken), torch.Tensor):
        each = index if isinstance(index, tuple) else (index,)
        return all(i is None or i is Ellipsis or isinstance(i, int | slice) for i in each)
    return _stays(taken)


def _check_views(stays: Sequence[Any]) -> None:
    """Refuse a copy among values that are read after arguments were changed: it was made before."""
    for node in stays:
        memory, operands = _memory(node), [_memory(operand) for operand in node.all_input_nodes]
        if memory is not None and memory not in operands:
            raise Unsupported("it changes an argument in place and has a copy of it among its results")


def _memory(node: Any) -> Any:
    """A key that is equal for tensors that share memory; None for a number."""
    value = value_of(node)
    return memory(value) if isinstance(value, torch.Tensor) else None


def _layout(value: Any) -> tuple[int, ...]:
    """The order of the dims in memory if it differs from their own, as in channels last: a session
    returns them in the order of memory, and they are transposed back without a copy."""
    order = _order(value)
    return () if order is None or order == tuple(range(len(order))) else order


def _order(value: Any) -> tuple[int, ...] | None:
    """The order of the dims in memory; None where it has gaps, or an element has several places."""
    strides = [stride if isinstance(stride, int) else stride.node.hint for stride in value.stride()]
    sizes = [size if isinstance(size, int) else size.node.hint for size in value.shape]
    if None in strides or None in sizes or 0 in sizes or value.is_contiguous():
        return tuple(range(len(sizes)))
    order = tuple(sorted(range(len(sizes)), key=lambda i: (strides[i], sizes[i] > 1), reverse=True))
    dense = 1
    for i in reversed(order):
        if sizes[i] > 1 and strides[i] != dense:
            return None
        dense *= sizes[i]
    return order


# ---------------------------------------------------------------- graphs


def _sizes(placeholders: Sequence[Any]) -> dict[Any, tuple[Any, int]]:
    """The placeholders that are a size of another placeholder, with that placeholder and the
    dim."""
    found: dict[str, tuple[Any, int]] = {}
    for node in placeholders:
        value = value_of(node)
        for i, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                found.setdefault(str(size), (node, i))
    numbers = [node for node in placeholders if isinstance(value_of(node), torch.SymInt)]
    return {node: found[str(value_of(node))] for node in numbers if str(value_of(node)) in found}


def _inner(
    captured: Captured,
    inputs: Sequence[Any],
    held: Mapping[str, Any],
    sizes: Mapping[Any, tuple[Any, int]],
    states: Sequence[Any],
    computed: Mapping[Any, tuple[int, ...]],
) -> Any:
    """The graph of the functional part, which holds these placeholders as attributes; `computed`
    are the nodes of its results, with the order of their dims."""
    graph = torch.fx.Graph()
    copies = {node: graph.node_copy(node) for node in inputs}
    copies |= {node: graph.call_method("clone", (copies[node],)) for node in states}
    for node, (tensor, i) in sizes.items():
        copies[node] = graph.call_function(torch.ops.aten.sym_size.int, (copies[tensor], i))
    for name, node in held.items():
        own = graph.get_attr(name)
        copies |= dict.fromkeys(node.users, own) if _is_fixed_number(node) else {node: own}
    for node in captured.graph.nodes:
        if node in copies or node.op in ("placeholder", "output") or getattr(node.target, "__name__", "") in MODES:
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(_permute(graph, copies[node], order) for node, order in computed.items()))
    return graph


def _outer(
    captured: Captured, stays: Sequence[Any], states: Sequence[Any], computed: Mapping[Any, tuple[int, ...]]
) -> Any:
    """The rest of the graph as a module."""
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in placeholders_of(captured)}
    results = [graph.placeholder(f"computed_{i}") for i in range(len(computed))]
    for (node, order), result in zip(computed.items(), results, strict=True):
        value = _permute(graph, result, tuple(order.index(i) for i in range(len(order))))
        if node in states:
            graph.call_method("copy_", (copies[node], value))
        else:
            copies[node] = value
    for node in stays:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    given = captured.graph.output_node().args[0]
    graph.output(tuple(copies[each] if isinstance(each, torch.fx.Node) else each for each in given))
    return torch.fx.GraphModule(captured, graph)


def _permute(graph: Any, node: Any, order: tuple[int, ...]) -> Any:
    return graph.call_method("permute", (node, *order)) if order else node
