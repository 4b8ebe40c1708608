"""Random numbers of a captured graph: PyTorch draws them before the rest of the graph, which takes
them as inputs, so that they equal those of eager PyTorch with the same seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from taso_mirage.torch.functionalization import Captured, placeholders_of, value_of

FACTORIES = frozenset(("rand", "randn", "randint", "randperm"))
"""Random functions that depend on sizes alone."""
DROPOUTS = frozenset(("dropout", "dropout1d", "dropout2d", "dropout3d"))
"""Products with random factors that depend on sizes alone."""


@dataclass(frozen=True)
class RandomSplit:
    """A graph split into random numbers and a rest: `draws` takes the arguments of the graph, and
    `rest` these and the results of `draws`. Without random numbers `rest` is the graph."""

    rest: Captured
    draws: Any

    def arguments(self, given: Sequence[Any]) -> Sequence[Any]:
        """The arguments of `rest`, given those of the graph."""
        return given if self.draws is None else [*given, *self.draws.forward(*given)]


def split_random(captured: Captured) -> RandomSplit:
    """Split off the random numbers that depend on sizes alone."""
    found = [node for node in captured.graph.nodes if _is_factory(node) or _is_dropout(node)]
    if not found:
        return RandomSplit(captured, None)
    draws, rest = torch.fx.Graph(), torch.fx.Graph()
    there, here = ({node: graph.node_copy(node) for node in placeholders_of(captured)} for graph in (draws, rest))
    draws.output(tuple([_factor(draws, node) if _is_dropout(node) else _copy(draws, node, there) for node in found]))
    for i, node in enumerate(found):
        here[node], value = rest.placeholder(f"drawn_{i}"), value_of(node)
        sizes = tuple(value.shape), tuple(value.stride())
        own = torch.empty_strided(*sizes, dtype=value.dtype, device="meta") if _is_dropout(node) else value
        here[node].meta["example_value"] = own  # its memory is shared with no operand
    for node in captured.graph.nodes:
        if node not in here:
            here[node] = rest.node_copy(node, here.__getitem__)
        elif _is_dropout(node):
            here[node] = rest.call_function(torch.mul, (here[node.args[0]], here[node]))
            here[node].meta = dict(node.meta)
    return RandomSplit(torch.fx.GraphModule(captured, rest), torch.fx.GraphModule(captured, draws))


def _name(node: Any) -> str:
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _is_factory(node: Any) -> bool:
    return _name(node) in FACTORIES and _is_fixed(node) and all(map(_is_number, node.all_input_nodes))


def _is_dropout(node: Any) -> bool:
    """Whether a node is a dropout in training, of fixed sizes and share, that changes nothing in
    place."""
    if _name(node) not in DROPOUTS or not _is_fixed(node) or list(node.args[:1]) != node.all_input_nodes:
        return False
    named = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False)) | node.kwargs
    return named.get("training", True) is True and named.get("inplace", False) is False and "input" not in node.kwargs


def _is_fixed(node: Any) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in (*value.shape, *value.stride()))


def _is_number(node: Any) -> bool:
    """Whether a node is a number that depends on no tensor's elements: a size, or one of the
    arguments."""
    if node.op == "placeholder":
        return True
    return not isinstance(value_of(node), torch.Tensor) and all(map(_is_number, node.all_input_nodes))


def _copy(graph: Any, node: Any, known: dict[Any, Any]) -> Any:
    """A node in another graph, with its operands."""
    for operand in node.all_input_nodes:
        if operand not in known:
            _copy(graph, operand, known)
    known[node] = graph.node_copy(node, known.__getitem__)
    return known[node]


def _factor(graph: Any, node: Any) -> Any:
    """The factor of a dropout: the dropout of ones with the strides of its operand. It draws as
    many numbers in the same order."""
    value = value_of(node.args[0])
    options = {"dtype": value.dtype, "device": value.device}
    empty = graph.call_function(torch.empty_strided, (tuple(value.shape), tuple(value.stride())), options)
    ones = graph.call_method("fill_", (empty, 1))
    return graph.call_function(node.target, (ones, *node.args[1:]), dict(node.kwargs))


RandomState = tuple[Any, ...]
"""The states of PyTorch's generators: that of the processor, and that of the GPU if requested."""


def random_state(cuda: bool) -> RandomState:
    """The current states."""
    return torch.get_rng_state(), *([torch.cuda.get_rng_state(0)] if cuda else [])


def restore_random_state(state: RandomState) -> None:
    """Restore the generators' state."""
    torch.set_rng_state(state[0])
    for each in state[1:]:
        torch.cuda.set_rng_state(each, 0)


def drawing(call: Callable[[], Any], cuda: bool) -> tuple[Any, bool]:
    """The result of a call, and whether it draws random numbers; the generators are then as they
    were."""
    with torch.random.fork_rng([0] if cuda else []):
        before = random_state(cuda)
        found = call()
        return found, any(not torch.equal(one, other) for one, other in zip(before, random_state(cuda), strict=True))
