"""Invariants of loops: values that the body of a Loop or a Scan computes from captured values alone
are equal in all iterations, so they are computed once, before the first iteration."""

from __future__ import annotations

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_float, substitute
from taso_mirage.onnx_io.bodies import Body, ChangedBody, bodies_of, has_bodies, kind_of, with_bodies
from taso_mirage.rewriting.derived_traits import EACH, primitives
from taso_mirage.rewriting.equation import work_terms

AT_ANY_SIZE = EACH | {"contract", "transpose"}
OF_ANY_NUMBER = frozenset({"cast", "choice", "transpose"})
"""Primitives that do not fail at any size or for any number."""


def without_invariants(model: Model) -> list[tuple[Node, Node]]:
    """Pairs of nodes before and after invariants move out of their bodies; each pair assumes the
    previous ones.

    Inner loops come first, because values that move into the body around them may move further.
    """
    found: list[tuple[Node, Node]] = []
    table: dict[Node, Node] = {}
    for term in model.nodes():
        if has_bodies(term):
            (current,) = substitute((term,), table)
            table[term] = _lightened(model, current)
            found += [(current, table[term])] if table[term] is not current else []
    return found


def _lightened(model: Model, term: Node) -> Node:
    changed: list[ChangedBody] = []
    for body in bodies_of(model, term):
        inner, outputs = without_invariants(body.model), body.model.graph.outputs
        for old, new in inner:
            outputs = substitute(outputs, {old: new})
        lighter = body.model.with_graph(outputs)
        moved = {} if kind_of(term) == "If" else _invariants(lighter, body)
        if inner or moved:
            changed.append(ChangedBody(body, lighter, {}, moved))
    return with_bodies(model, term, changed) if changed else term


def _invariants(model: Model, body: Body) -> dict[Node, Node]:
    """The largest terms of a body that no iteration changes, and the outer terms that replace
    them."""
    leaves = {n: body.captured[n.attr("name")] for n in model.nodes() if _captured(n, body)}
    fixed = {ABSENT, *leaves}
    read: list[Node] = list(model.graph.outputs)
    for node in model.nodes():
        if node.op == "constant" or (_cannot_fail(node) and fixed.issuperset(node.args)):
            fixed.add(node)
        else:
            read += node.args
    worth = [n for n in dict.fromkeys(read) if n in fixed and n.args and work_terms((n,))]
    return dict(zip(worth, substitute(worth, leaves), strict=True))


def _captured(node: Node, body: Body) -> bool:
    if node.op not in ("input", "weight") or node.attr("name") in body.formal:
        return False
    outer = body.captured.get(node.attr("name"))
    return outer is not None and outer.type == node.type


def _cannot_fail(node: Node) -> bool:
    """Whether a term has a value for all operands.

    This is required because a loop may run zero times, so its terms may be computed for the first
    time. Floats are not indices, and all of their quotients exist. A named size may still be too
    small for a window, or make a maximum empty.
    """
    used = primitives(node.op)
    types = [node.type, *(a.type for a in node.args if a is not ABSENT)]
    tensors = [t for t in types if isinstance(t, Tensor) and t.shape is not None and t.dtype != "string"]
    if used is None or len(tensors) < len(types):
        return False
    fixed = all(isinstance(dim, int) for t in tensors for dim in t.shape or ())
    return (fixed or used <= AT_ANY_SIZE) and (used <= OF_ANY_NUMBER or all(is_float(t.dtype) for t in tensors))
