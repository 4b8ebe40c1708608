"""Terms in any meaning: the values of a graph's outputs, and of one term from its operands'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import fixed, learn
from taso_mirage.ir.terms import ABSENT, Node, Tensor, Type, is_part, topological, with_args
from taso_mirage.meanings.base import Meaning
from taso_mirage.operators.ops import TERMS, Op, Untraceable, get, term

V = TypeVar("V")


def interpret(
    outputs: Sequence[Node],
    xp: Meaning[V],
    env: Mapping[Node, V],
    opaque: Callable[[Node, list[V | None]], V] | None = None,
    sizes: dict[str, int] | None = None,
    after: Callable[[Node, V], V] | None = None,
    leaf: Callable[[Node], V] | None = None,
) -> dict[Node, V]:
    """The value of every output in a meaning.

    `env` gives the leaves, but for weights that `leaf` gives when they are read; `opaque` runs
    nodes without a definition.

    `after` changes the value of a term. `sizes` fixes the symbols that attributes hold; sizes that
    opaque nodes return are added to it. Values are dropped after their last use. Iterative; linear
    in the number of terms.
    """
    order = topological(outputs, stop=env.keys())
    last = {arg: node for node in order for arg in node.args}
    values: dict[Node, Any] = dict(env)
    wanted = set(outputs)
    for node in order:
        args = [None if a is ABSENT else values[a] for a in node.args]
        if leaf is not None and node.op == "weight":
            values[node] = leaf(node)
        elif node.op == "opaque":
            if opaque is None:
                raise Unsupported(f"{node.attr('call')} has no definition")
            values[node] = opaque(node, args)
            _learn(node.type, values[node], sizes)
        elif node is not ABSENT:
            values[node] = interpret_term(node, xp, args, sizes)
        if after is not None and node.args:
            values[node] = after(node, values[node])
        for arg in node.args:
            if last[arg] is node and arg not in wanted:
                values.pop(arg, None)
    return {output: values[output] for output in outputs}


def _learn(type: Type, value: Any, sizes: dict[str, int] | None) -> None:
    """Read sizes that are known only at run time (the number of elements that are not zero)."""
    if sizes is None:
        return
    types, parts = (type, value) if isinstance(type, tuple) else ((type,), (value,))
    for each, part in zip(types, parts, strict=False):
        if isinstance(each, Tensor) and isinstance(part, np.ndarray):
            learn(each.shape, part.shape, sizes)


def interpret_term(node: Node, xp: Meaning[V], args: Sequence[V | None], sizes: Mapping[str, int] | None = None) -> Any:
    """One term in one meaning, given its operands' values."""
    if node.op in ("input", "weight"):
        raise KeyError(f"no value for the {node.op} {node.attr('name')}")
    attrs = dict(node.attrs)
    if sizes:
        attrs = {k: fixed(v, sizes) for k, v in attrs.items()}
    op = get(node.op)
    if op.traits.decides:
        return xp.decided(partial(_defined, op, attrs), args, [a.tensor.dtype for a in node.args])
    return xp.operator(op.onnx, op.body, *args, **attrs)


def _defined(op: Op, attrs: Mapping[str, Any], xp: Meaning[V], *args: V | None) -> Any:
    return op.body(xp, *args, **attrs)


def unfolded(outputs: Sequence[Node], parts: bool = False) -> tuple[Node, ...]:
    """The outputs with every operator that is defined by other operators replaced by its
    definition; with `parts`, operators with several results as well."""
    done: dict[Node, Node] = {}
    waiting = list(outputs)
    while waiting:
        node = waiting[-1]
        if missing := [a for a in node.args if a not in done]:
            waiting += missing
            continue
        waiting.pop()
        if node in done:
            continue
        same = with_args(node, tuple([done[a] for a in node.args]))
        inner = definition(same, parts) if same.args and same.op != "opaque" else None
        if inner is None:
            done[node] = same
            continue
        done |= {a: a for a in same.args}
        if inner in done:
            done[node] = done[inner]
        else:
            waiting += [node, inner]
    return tuple([done[o] for o in outputs])


def definition(node: Node, parts: bool = False) -> Node | None:
    """The definition of `node` as a term of other operators over its operands; None for a primitive
    operator, and unless `parts` for one of several results."""
    one = is_part(node)
    if one and not parts:
        return None
    whole = node.args[0] if one else node
    if whole.op == "opaque":
        return None
    try:
        result = get(whole.op).body(TERMS, *[None if a is ABSENT else a for a in whole.args], **dict(whole.attrs))
    except Untraceable:
        return None
    if one:
        result = result[node.attr("index")] if isinstance(result, tuple) else None
    return result if isinstance(result, Node) and result is not node else None


def retyped(outputs: Sequence[Node], leaves: Mapping[Node, Node]) -> tuple[Node, ...]:
    """Terms over leaves of other sizes."""
    done = dict(leaves)
    for node in topological(outputs, stop=leaves):
        done[node] = term(node.op, *[done[a] for a in node.args], **dict(node.attrs)) if node.args else node
    return tuple([done[o] for o in outputs])
