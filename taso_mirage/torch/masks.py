"""Rows of attention that see nothing, as those of padding on the left: zeros in PyTorch. Its
exporter makes them the mean of all values, or not a number."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

ATEN = torch.ops.aten
LAYOUTS = (ATEN.contiguous.default, ATEN.clone.default)
JOINS = (ATEN.reshape.default, ATEN.view.default, ATEN.flatten.using_ints)


def with_hidden_rows(program: Any) -> None:
    """Write the zeros into an exported program, for every mask that depends on its inputs.

    They are written where the heads, (b,h,n,d), are behind one another again, (b,n,h*d), so that
    attention stays a pattern that runtimes have one operator for.
    """
    given = set(program.graph_signature.user_inputs)
    depends: set[Any] = set()
    for node in list(program.graph.nodes):
        if node.name in given or not depends.isdisjoint(node.all_input_nodes):
            depends.add(node)
        if node.target is ATEN.scaled_dot_product_attention.default:
            mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
            if mask in depends:
                _zero(program, node, mask)


def _zero(program: Any, attention: Any, mask: Any) -> None:
    joined = _joined(attention) if mask.meta["val"].ndim == 4 and mask.meta["val"].shape[1] == 1 else None
    last = joined or attention
    made = [last]

    def add(target: Any, *operands: Any) -> Any:
        with program.graph.inserting_after(made[-1]):
            made.append(program.graph.call_function(target, operands))
        values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in operands]
        with last.meta["val"].fake_mode:
            made[-1].meta["val"] = target(*values)
        return made[-1]

    seen = mask if mask.meta["val"].dtype == torch.bool else add(ATEN.ne.Scalar, mask, -inf)
    seen = add(ATEN.any.dim, seen, -1, True)
    seen = add(ATEN.squeeze.dim, seen, 1) if joined else seen
    zeroed = add(ATEN.where.ScalarOther, seen, last, 0.0)
    last.replace_all_uses_with(zeroed, delete_user_cb=lambda user: user is not zeroed)
    program.graph_signature.replace_all_uses(last.name, zeroed.name)


def _joined(attention: Any) -> Any:
    """The node that has the heads of attention behind one another, if nothing else reads them."""
    node = attention
    while len(node.users) == 1:
        (user,) = node.users
        if node is attention:
            if user.target is not ATEN.transpose.int or user.args[1:] != (1, 2):
                return None
        elif user.target in JOINS:
            return (
                user
                if user.meta["val"].shape[:2] == node.meta["val"].shape[:2] and user.meta["val"].ndim == 3
                else None
            )
        elif user.target not in LAYOUTS:
            return None
        node = user
    return None
