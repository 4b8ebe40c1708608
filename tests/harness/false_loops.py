"""Loops that differ from one in a single thing: wrong ones, for tests that refuse them."""

from __future__ import annotations

from collections.abc import Iterator

from taso_mirage.ir.terms import Graph, Node, substitute
from taso_mirage.operators.ops import term


def variants(node: Node) -> Iterator[tuple[str, Node]]:
    """Loops that differ from one in a single thing, with names for them."""
    yield "the other direction", other(node, backward=1 - node.attr("backward"))
    yield from other_states(node)
    yield from other_sequences(node)
    for name, outputs in (*other_outputs(node), *other_steps(node)):
        yield name, other(node, body=Graph(node.attr("body").inputs, outputs))


def other(node: Node, args: tuple[Node, ...] | None = None, **attrs: object) -> Node:
    return term(node.op, *(args or node.args), **{**dict(node.attrs), **attrs})


def replaced(node: Node, i: int, arg: Node) -> Node:
    return other(node, (*node.args[:i], arg, *node.args[i + 1 :]))


def exchanged(node: Node, places: range) -> Iterator[tuple[str, Node]]:
    for i in places:
        for j in range(i + 1, places.stop):
            if node.args[i].type == node.args[j].type:
                args = list(node.args)
                args[i], args[j] = args[j], args[i]
                yield f"operands {i} and {j} exchanged", other(node, tuple(args))


def other_states(node: Node) -> Iterator[tuple[str, Node]]:
    """Other states before the first step."""
    places = range(node.attr("states"))
    yield from exchanged(node, places)
    for i in places:
        first = node.args[i]
        for made in (term("add", first, first), term("neg", first), term("sub", first, first)):
            yield f"the first state {i} through {made.op}", replaced(node, i, made)


def other_sequences(node: Node) -> Iterator[tuple[str, Node]]:
    """Sequences of other elements."""
    places = range(node.attr("states"), node.attr("states") + node.attr("sequences"))
    yield from exchanged(node, places)
    for i in places:
        x = node.args[i]
        cut = [term("slice", x, starts=(a,), ends=(b,), axes=(0,), steps=(1,)) for a, b in ((1, x.shape[0]), (0, 1))]
        yield f"the sequence {i} a step later", replaced(node, i, term("concat", *cut, axis=0))
        yield f"one element of the sequence {i}", replaced(node, i, term("expand", cut[1], shape=x.shape))


def other_outputs(node: Node) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """Outputs of other states, or of states at another time."""
    body, states = node.attr("body"), node.attr("states")
    for i, output in enumerate(body.outputs):
        for j in range(states):
            old = body.inputs[j]
            if old.type == output.type:
                name = f"the output {i} is the state {j} before"
                yield name, (*body.outputs[:i], old, *body.outputs[i + 1 :])
            (late,) = substitute((output,), {old: body.outputs[j]})
            yield f"the output {i} reads the state {j} after", (*body.outputs[:i], late, *body.outputs[i + 1 :])


def other_steps(node: Node) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """Steps without one operator, or with its operands in another order."""
    body = node.attr("body")
    for n in body:
        if not n.args:
            continue
        for i, arg in enumerate(n.args):
            if arg.type == n.type:
                yield f"{n.op} left out, for its operand {i}", substitute(body.outputs, {n: arg})
        if len(n.args) == 2 and n.args[0].type == n.args[1].type == n.type:
            yield f"{n.op} of exchanged operands", substitute(body.outputs, {n: term(n.op, *reversed(n.args))})
