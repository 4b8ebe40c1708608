"""Norms of groups in a model: PyTorch's exporter writes them as norms of instances between
reshapes, which make one dim of channels and pixels. Inductor reads an image in whatever order it
lies in, but such a dim in its own order alone."""

from __future__ import annotations

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, with_args
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.forms import RegionPattern

REGROUPED = RegionPattern("reshape(instance_norm(reshape(x, shape=s), g, b, epsilon=e), shape=t)")


def with_group_norms(model: Model) -> Model:
    """The model with each of them as one operator."""
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
    scale, bias = (_repeated(found[name], groups, channels) for name in ("g", "b"))
    return term("group_norm", x, scale, bias, num_groups=groups, epsilon=found["e"])


def _repeated(values: Node, groups: int, channels: int) -> Node:
    """(groups) -> (channels), that of a group for each of its channels."""
    each = term("expand", term("reshape", values, shape=(groups, 1)), shape=(groups, channels // groups))
    return term("reshape", each, shape=(channels,))
