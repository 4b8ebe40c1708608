"""A goal around the products of a library, and around forms: the plan of a model whose product
stays the runtime's operator, or whose convolution has the kernel of a form, with kernels for the
terms before and behind it.

A plan is a list of steps over named values: kernels for a goal of their own, or x W (+ b).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from taso_mirage.forms.base.form import form_of
from taso_mirage.ir.terms import Graph, Node, substitute, topological, variable, with_args
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.regions.fragments import ROWS

Plan = list[dict[str, Any]]


def sites(goal: Graph) -> dict[Node, tuple[Node, Node, Node | None]]:
    """The products with one matrix for more rows than a region has, with a row that is added."""
    found: dict[Node, tuple[Node, Node, Node | None]] = {}
    nodes = topological(goal.outputs)
    for node in nodes:
        of_matrix = node.op == "matmul" and not node.args[1].args and len(node.args[1].shape) == 2
        if of_matrix and prod(map(int, node.shape[:-1])) > ROWS:
            found[node] = (*node.args, None)
    for node in nodes:
        product = next((a for a in node.args if a in found), None) if node.op == "add" else None
        others = [a for a in node.args if a is not product]
        alone = product is not None and sum(product in n.args for n in nodes) == 1
        if alone and len(others) == 1 and not others[0].args and others[0].shape == node.shape[-1:]:
            assert product is not None
            x, w, _ = found.pop(product)
            found[node] = x, w, others[0]
    return {node: found[node] for node in nodes if node in found}


def plan(goal: Graph) -> Plan:
    """The steps of a goal around its large products and the terms of forms; none if it has neither,
    or is one."""
    steps: Plan = []
    known: dict[Node, Node] = {}
    products = sites(goal)
    cut = [n for n in topological(goal.outputs) if n in products or form_of(n) is not None]
    for i, node in enumerate(cut if cut != [*goal.outputs] or products else []):
        x, w, b = products.get(node, (node.args and node.args[0], None, None))
        (operand,) = substitute((x,), known)
        if operand.args:
            steps.append(_kernels((operand,), [f"operand{i}"]))
            operand = variable(f"operand{i}", operand.tensor)
        if node in products:
            names = [None if each is None else each.attr("name") for each in (operand, w, b)]
            steps.append({"product": names, "results": [f"product{i}"]})
        else:
            own = with_args(node, (operand, *substitute(node.args[1:], known)))
            steps.append(_kernels((own,), [f"product{i}"]))
        known[node] = variable(f"product{i}", node.tensor)
    outputs = substitute(goal.outputs, known)
    if not steps:
        return []
    if any(output.args for output in outputs):
        return [*steps, _kernels(outputs, [f"result{i}" for i, _ in enumerate(outputs)])]
    return steps


def _kernels(outputs: Sequence[Node], results: list[str]) -> dict[str, Any]:
    leaves = tuple([n for n in topological(outputs) if n.op == "input"])
    return {"goal": to_json(Graph(leaves, tuple(outputs))), "results": results}


def run(
    steps: Plan, calls: Sequence[Callable[..., Any] | None], names: Sequence[Sequence[str]], given: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The results of a plan for values by their names: `calls` are its kernels, None for a product,
    and `names` the values that each of them reads."""
    import torch

    values = dict(given)
    found: tuple[Any, ...] = ()
    for step, call, read in zip(steps, calls, names, strict=True):
        if call is None:
            x, w, b = (None if name is None else values[name] for name in step["product"])
            rows = x.reshape(-1, x.shape[-1])
            made = torch.mm(rows, w) if b is None else torch.addmm(b, rows, w)
            found = (made.reshape(*x.shape[:-1], -1),)
        else:
            made = call(*[values[name] for name in read])
            found = made if isinstance(made, tuple) else (made,)
        values |= dict(zip(step["results"], found, strict=True))
    return found
