"""Weights that a runtime makes when it opens a session: elements of other weights of the file in
another order are not stored a second time."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Node, is_named_weight, substitute, topological, users, with_args
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size
from taso_mirage.rewriting.derived_traits import moves
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.forms import RegionPattern
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.duplicate_weights import with_terms_replaced
from taso_mirage.search.steps import RewriteStep

LEAST = 1 << 16
"""The smallest number of bytes of a weight that is not stored."""
TRANSPOSES = "transB"
"""The attribute of operators that transpose their second operand themselves, with which a runtime
would merge a transposition."""
PRODUCT = RegionPattern("gemm(x, w, c)")
"""A term with such an attribute that has a definition without it."""


def made_at_load(model: Model, equations: Iterable[Equation]) -> tuple[Model, list[RewriteStep]]:
    """The model with the terms of which weights were computed in place of these, where a term only
    moves elements of weights that the file contains; and the steps by `equations` on the way.

    Runtimes compute such a term once, when a session is opened. Weights that a kernel or another
    node of unknown meaning reads stay.
    """
    order = model.nodes()
    readers, known, wanted = users(order), set(order), set(model.graph.outputs)
    table = {n: made for n in order if n not in wanted and (made := _moved(model, n, known)) is not None}
    rules = Rules(equations if table else ())
    apart = {node: _apart(node, rules) for weight in table for node in readers[weight]}
    table = {weight: made for weight, made in table.items() if all(apart[node] for node in readers[weight])}
    if not table:
        return model, []
    done, steps = dict[Node, Node](), list[RewriteStep]()
    for node in order:
        done[node] = new = with_args(node, tuple([done[a] for a in node.args]))
        if table.keys() & set(node.args) and (step := _apart(new, rules)) is not None and step.old != step.new:
            done[node], steps = step.new[0], [*steps, step]
    made_terms = dict(zip(order, substitute([done[n] for n in order], table), strict=True))
    return with_terms_replaced(model, table, made_terms), steps


def _moved(model: Model, node: Node, known: Container[Node]) -> Node | None:
    """The term of which a large weight was computed, if it only moves elements of `known`
    weights."""
    if not is_named_weight(node) or size(node.tensor) < LEAST:
        return None
    stored = model.weights[node.attr("name")]
    if not isinstance(stored, StoredWeight) or (made := stored.of) is None:
        return None
    if not all(moves(n.op) if n.args else n in known for n in topological([made])):
        return None
    leaves = {n: model.weights[n.attr("name")].numpy() for n in topological([made]) if is_named_weight(n)}
    return made if np.array_equal(interpret([made], REALS, leaves)[made], stored.array, equal_nan=True) else None


def _apart(node: Node, rules: Rules) -> RewriteStep | None:
    """The step from a term to operators that no runtime merges with a transposition of its weight
    before it computes the transposition. It changes nothing in most terms; None where there is
    none."""
    names = PRODUCT.match(node)
    if names is None:
        stays = node.op == "opaque" or TRANSPOSES in dict(node.attrs)
        return None if stays else RewriteStep((), (node,), (node,))
    new = (term("add", term("matmul", names["x"], names["w"]), names["c"]),)
    laws = (each.equation.name for each in rules.applications(node) if each.results == new)
    law = next(laws, None)
    return None if law is None else RewriteStep((law,), (node,), new)
