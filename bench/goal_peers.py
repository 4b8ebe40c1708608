"""The peers of a goal in PyTorch: eager, torch.compile, and the libraries' operators in it: SDPA's
back ends for attention, cuBLAS with a bias for products, cuDNN with channels last.

A goal is a function of tensors by the meaning of its terms in PyTorch (`taso_mirage/torch`). A
*site* is a term that a library has as one operator; its value is computed by that one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from taso_mirage.emit import tune
from taso_mirage.emit.gpu.program import TritonBuffer, TritonProgram
from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, is_constant, topological, variable
from taso_mirage.operators.interpret import interpret, retyped
from taso_mirage.operators.ops import traits
from taso_mirage.operators.table_indices import indexed_rows

Function = Callable[..., Any]
Call = Callable[[Any, Callable[[Node], Any]], Any]
"""The value of a site: a function of the meaning, and of the values of other terms."""
LAYOUTS = ("transpose", "reshape", "squeeze", "unsqueeze", "identity")


def with_floats(graph: Graph, dtype: str) -> Graph:
    """The graph with floats of single precision in another one, with the same inputs; itself if it
    has types of its own."""
    leaves = {n: _typed(n, dtype) for n in (*topological(graph.outputs), *graph.inputs) if not n.args}
    try:
        return Graph(tuple(leaves[n] for n in graph.inputs), retyped(graph.outputs, leaves))
    except TasoMirageError:
        return graph


def _typed(node: Node, dtype: str) -> Node:
    if not isinstance(node.type, Tensor) or node.dtype not in ("float16", "float32"):
        return node
    if is_constant(node):
        return constant(node.attr("value").numpy().astype(dtype))
    return variable(node.attr("name"), Tensor(dtype, node.shape))


def function(goal: Graph, device: str, sites: Mapping[Node, Call] | None = None) -> Function:
    """A goal as a function of tensors on a device, which gives a tuple."""
    from taso_mirage.torch.meaning import TorchMeaning

    def call(*inputs: Any) -> tuple[Any, ...]:
        xp, values = TorchMeaning(device), dict(zip(goal.inputs, inputs, strict=True))

        def value(node: Node) -> Any:
            return interpret([node], xp, values)[node]

        for site, made in (sites or {}).items():
            values[site] = made(xp, value)
        found = interpret(goal.outputs, xp, values)
        return tuple([found[output] for output in goal.outputs])

    return call


def as_module(peer: Function, inputs: Sequence[Any]) -> Any:
    """PyTorch's operators of one run as a module: its compiler does not see how terms are read."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(peer)(*inputs)


# ---------------------------------------------------------------- what libraries have


def attentions(goal: Graph) -> dict[Node, Call]:
    """softmax(scale Q K^T + M) V, where it is in a goal, by SDPA."""
    return {n: made for n in topological(goal.outputs) if n.op == "matmul" for made in _attention(n)}


def _attention(node: Node) -> Iterator[Call]:
    weights, v = node.args
    if weights.op != "softmax" or weights.attr("axis") not in (-1, len(weights.shape) - 1) or len(node.shape) != 4:
        return
    (scores,), mask, scale = weights.args, None, 1.0
    if scores.op == "add":
        scores, mask = sorted(scores.args, key=lambda x: x.op not in ("matmul", "mul"))
    if scores.op in ("mul", "div"):
        number = next((x for x in scores.args if is_constant(x) and math.prod(map(int, x.shape)) == 1), None)
        if number is None or scores.args[0] is number:
            return
        each = float(number.attr("value").numpy().reshape(()))
        scale, scores = each if scores.op == "mul" else 1 / each, scores.args[0]
    if scores.op == "matmul":
        yield partial(_sdpa, *scores.args, v, mask, scale)


def _sdpa(q: Node, k: Node, v: Node, mask: Node | None, scale: float, xp: Any, value: Callable[[Node], Any]) -> Any:
    import torch

    given = value(q), value(k).transpose(-1, -2), value(v)
    addend = None if mask is None else value(mask)
    return torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=addend, scale=scale)


def products(goal: Graph) -> dict[Node, Call]:
    """x W + b with one row of b, by cuBLAS with its own epilogue."""
    found: dict[Node, Call] = {}
    for node in topological(goal.outputs):
        if node.op != "add":
            continue
        product, bias = sorted(node.args, key=lambda x: x.op != "matmul")
        if product.op == "matmul" and len(product.args[1].shape) == 2 and bias.shape == node.shape[-1:]:
            found[node] = partial(_linear, *product.args, bias)
    return found


def _linear(x: Node, w: Node, b: Node, xp: Any, value: Callable[[Node], Any]) -> Any:
    import torch

    rows = value(x)
    return torch.addmm(value(b), rows.reshape(-1, rows.shape[-1]), value(w)).reshape(*rows.shape[:-1], -1)


def kinds(goal: Graph) -> Iterator[tuple[str, Function, Any, list[list[Any]]]]:
    """The peers of a goal: a label, a function of its inputs, SDPA's back end, and the inputs."""
    import torch
    from torch.nn.attention import SDPBackend

    compiled = partial(torch.compile, mode="max-autotune-no-cudagraphs", dynamic=False)
    for layout, sets in _layouts(goal):
        plain = as_module(function(goal, "cuda"), sets[0])
        yield f"eager{layout}", plain, None, sets
        yield f"torch.compile{layout}", compiled(plain), None, sets
    if sites := products(goal):
        yield "cuBLAS with a bias", as_module(function(goal, "cuda", sites), sets[0]), None, sets
    if sites := attentions(goal):
        made = function(goal, "cuda", sites)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            yield f"SDPA {backend.name.split('_')[0].lower()}", made, backend, sets


def _layouts(goal: Graph) -> Iterator[tuple[str, list[list[Any]]]]:
    """Sets of inputs; of a goal with windows also with channels last, made ahead of time."""
    import torch

    sets = input_sets(goal)
    if any(traits(n).windowed for n in topological(goal.outputs) if n.args):
        form = torch.channels_last
        last = [[x.contiguous(memory_format=form) if x.dim() == 4 else x for x in inputs] for inputs in sets]
        yield ", channels last", last
    yield "", sets


def input_sets(goal: Graph) -> list[list[Any]]:
    """Random inputs on the GPU, as programs of the goal get them."""
    shapes = [(x.attr("name"), x.dtype, tuple(map(int, x.shape))) for x in goal.inputs]
    buffers = tuple([TritonBuffer(*each, "input", tuple(range(len(each[2])))) for each in shapes])
    sets = tune.input_sets(TritonProgram("", buffers, ()))
    for inputs in sets:
        prepared(goal)(inputs)
    return sets


# ---------------------------------------------------------------- integers of a run


def row_counts(goal: Graph) -> list[int]:
    """The numbers of rows that the indices in each input may name; 2 for an input of others."""
    rows = indexed_rows(goal)
    return [rows.get(x.attr("name"), 2) for x in goal.inputs]


def prepared(goal: Graph) -> Callable[[Sequence[Any]], None]:
    """A function that puts rows into the integers among inputs."""
    limits = row_counts(goal)

    def prepare(inputs: Sequence[Any]) -> None:
        import torch

        for x, rows in zip(inputs, limits, strict=True):
            if x.dtype in (torch.int32, torch.int64):
                x.random_(0, rows)

    return prepare
