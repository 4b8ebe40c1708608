"""Norms as one operator each, where PyTorch's exporter writes them in parts: for the parts Inductor
reads memory once more than necessary."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, with_args
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.forms import RegionPattern

ATEN = torch.ops.aten
REGROUPED = RegionPattern("reshape(instance_norm(reshape(x, shape=s), g, b, epsilon=e), shape=t)")
"""The exporter's form of a norm of groups. Its first reshape joins channels and pixels into one
dim, which is read in its own order alone; an image can be read in any order of its memory."""


def with_group_norms(model: Model) -> Model:
    """The model with each norm of groups as one operator."""
    done: dict[Node, Node] = {}
    for node in model.nodes():
        same = with_args(node, tuple([done[a] for a in node.args]))
        done[node] = _group_norm(same) or same
    return model.with_graph(tuple([done[o] for o in model.graph.outputs]))


def _group_norm(node: Node) -> Node | None:
    found = REGROUPED.match(node)
    if found is None:
        return None
    x, parts = found["x"], found["s"]
    if node.shape != x.shape or len(x.shape) < 3 or len(parts) != 3 or parts[0] != x.shape[0]:
        return None
    groups, channels = parts[1], x.shape[1]
    if not isinstance(groups, int) or not isinstance(channels, int) or channels % groups:
        return None
    scale, bias = (_repeat(found[name], groups, channels) for name in ("g", "b"))
    return term("group_norm", x, scale, bias, num_groups=groups, epsilon=found["e"])


def _repeat(values: Node, groups: int, channels: int) -> Node:
    """(groups) -> (channels): each channel gets the number of its group."""
    each = term("expand", term("reshape", values, shape=(groups, 1)), shape=(groups, channels // groups))
    return term("reshape", each, shape=(channels,))


def with_variances(module: Any) -> Any:
    """A graph module of ATen in which each variance and its mean are one operator (Welford 1962),
    if the variance is a mean of squared distances from the mean."""
    for node in module.graph.find_nodes(op="call_function", target=ATEN.mean.dim):
        mean = _centre(node)
        if mean is not None:
            _replace(module.graph, node, mean)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _centre(node: Any) -> Any:
    """The mean from which a mean of squared distances is taken; None for another mean."""
    squares = node.args[0]
    if squares.target is not ATEN.mul.Tensor or squares.args[0] is not squares.args[1]:
        return None
    distances = squares.args[0]
    if distances.target is not ATEN.sub.Tensor or distances.kwargs:
        return None
    data, mean = distances.args
    around = getattr(mean, "target", None) is ATEN.mean.dim and mean.args == (data, node.args[1], True)
    return mean if around and not mean.kwargs and not node.kwargs else None


def _replace(graph: Any, node: Any, mean: Any) -> None:
    with graph.inserting_before(mean):
        options = {"correction": 0, "keepdim": True}
        both = graph.call_function(ATEN.var_mean.correction, mean.args[:2], options)
        variance, centre = (graph.call_function(getitem, (both, i)) for i in range(2))
        if node.args[2:] != (True,):
            variance = graph.call_function(ATEN.squeeze.dims, (variance, mean.args[1]))
    mean.replace_all_uses_with(centre)
    node.replace_all_uses_with(variance)
