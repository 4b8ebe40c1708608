"""Variances in a graph of ATen: as an exporter writes them, a mean of squared distances from the
mean, data is read once more than Inductor needs to (Welford 1962)."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch

ATEN = torch.ops.aten


def with_variances(module: Any) -> Any:
    """A graph module whose variances, and the means that they are around, are one operator each."""
    for node in module.graph.find_nodes(op="call_function", target=ATEN.mean.dim):
        mean = _centre(node)
        if mean is not None:
            _replace(module.graph, node, mean)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _centre(node: Any) -> Any:
    """The mean that a mean of squared distances is around; None for another mean."""
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
