"""The costly parts of a model by the names of their nodes, at fixed sizes, and the reason why a
node begins no part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from taso_mirage.errors import InvalidOption, TasoMirageError, Unsupported
from taso_mirage.ir.dims import fixed
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, LEAVES, Graph, Node, topological, users, variable, weight
from taso_mirage.meanings.degree import DEGREE
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get, load_specs
from taso_mirage.operators.work import sized
from taso_mirage.search.partial.agreement import program_leaves
from taso_mirage.search.partial.cells import splits
from taso_mirage.search.partial.families import begins
from taso_mirage.search.partial.source import programs

NEAREST = 3
"""The number of similar names that an error suggests."""
UNSIZED = (TasoMirageError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class CostlyPart:
    """A costly program of fixed sizes over leaves of its own, and the terms of the model that
    compute it."""

    program: Graph
    nodes: tuple[Node, ...]


def costly_parts(model: Model, sizes: Mapping[str, int]) -> list[CostlyPart]:
    """The costly parts of a model, in its order; equal ones are one."""
    found: dict[Graph, list[Node]] = {}
    for node in model.nodes():
        program = _program(node, sizes)
        if program is not None:
            found.setdefault(program, []).append(node)
    return [CostlyPart(program, tuple(nodes)) for program, nodes in found.items()]


def part(model: Model, name: str, sizes: Mapping[str, int]) -> CostlyPart:
    """The costly part at the node, or the value, of this name.

    Raises InvalidOption, with the nearest names or with the term that ends the part.
    """
    nodes = [n for n in model.nodes() if name in part_names(model, n)]
    if not nodes:
        raise InvalidOption(_unknown(model, name))
    found = [p for p in costly_parts(model, sizes) if set(p.nodes) & set(nodes)]
    if not found:
        raise InvalidOption(_not_costly(model, nodes[0], name, sizes))
    return found[0]


def part_names(model: Model, node: Node) -> list[str]:
    """The name of a term's ONNX node, and the name of its value; either may be missing."""
    if node.op in LEAVES:
        return [str(node.attr("name"))]
    origin = model.origins.get(node)
    values = [value for output, value in zip(model.graph.outputs, model.output_names, strict=True) if output is node]
    each = (origin.name if origin is not None and node.args else None, model.names.get(node), *values)
    return list(dict.fromkeys(n for n in each if n))


def _program(node: Node, sizes: Mapping[str, int]) -> Graph | None:
    inside = begins(node)
    if is_weight(node) or not inside:
        return None
    try:
        found = list(programs([_at_sizes(node, inside - {node}, sizes)]))
    except UNSIZED:
        return None
    return found[-1] if found else None


def _at_sizes(node: Node, inside: Collection[Node], sizes: Mapping[str, int]) -> Node:
    """A term over leaves of fixed sizes; `inside` are the operands that are unchanged."""
    done: dict[Node, Node] = {}
    for each in (n for n in topological([node]) if n in inside or n is node):
        for a in each.args:
            if a not in done:
                done[a] = _leaf(a, f"x{len(done)}", sizes)
        done[each] = get(each.op).term(*[done[a] for a in each.args], **{k: fixed(v, sizes) for k, v in each.attrs})
    return done[node]


def _leaf(node: Node, name: str, sizes: Mapping[str, int]) -> Node:
    if node is ABSENT or node.op == "constant":
        return node
    return (weight if is_weight(node) else variable)(name, sized(node.type, sizes))


# ---------------------------------------------------------------- obstacles


def _unknown(model: Model, name: str) -> str:
    known = list(dict.fromkeys(n for node in model.nodes() if node.args for n in part_names(model, node)))
    near = get_close_matches(name, known, NEAREST, 0.3)
    text = f"--node {name}: the model has no node or value of this name (folded, unused and duplicate values have none)"
    offered = f"the nearest: {', '.join(near)}" if near else "without --node the costly parts are listed"
    return f"{text}; {offered}"


def _not_costly(model: Model, node: Node, name: str, sizes: Mapping[str, int]) -> str:
    near = [part_names(model, n)[0] for n in _around(model, node, sizes)]
    text = f"--node {name}: {_reason(model, node, sizes)}"
    return f"{text}; the costly parts around it: {', '.join(near)}" if near else text


def _reason(model: Model, node: Node, sizes: Mapping[str, int]) -> str:
    """Why no part begins at a term."""
    if not node.args:
        return f"it is {_article(node.op)}, which nothing computes"
    if node.op == "opaque":
        return f"{node.attr('call')!r} is opaque, which ends a part ({model.opaque.get(node, 'no definition')})"
    if is_weight(node):
        return f"{node.op} reads weights alone; it is computed once, before the run"
    try:
        alone = _at_sizes(node, set(), sizes)
    except UNSIZED as error:
        return f"{node.op} of {node.type} has a size that only the run shows, and a part needs fixed ones ({error})"
    if (nonlinear := _nonlinear(alone)) is not None:
        return f"{node.op} ends a part: {nonlinear}"
    return f"no mutant begins at {node.op}, only at {_beginnings()}"


def _beginnings() -> str:
    """Where mutants begin, in words."""
    found = [(op.name, f.of) for op in load_specs().values() for f in op.traits.families]
    alone = sorted({name for name, of in found if of is None})
    return " and at ".join(
        [f"{', '.join(alone)} of floats,", *sorted({f"a {name} of {of}" for name, of in found if of})]
    )


def _nonlinear(alone: Node) -> str | None:
    try:
        splits([alone])
        notes = {n: (n.tensor, {str(n.attr("name")): 1.0}) for n in program_leaves([alone])}
        degrees = interpret([alone], DEGREE, notes)[alone][1]
    except Unsupported as error:
        return str(error)
    except UNSIZED:
        return "it has no definition as a sum of products"
    high = [degree for degree in degrees.values() if degree > 1]
    return f"it has degree {high[0]:g} in an operand; 1 is the most" if high else None


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _around(model: Model, node: Node, sizes: Mapping[str, int]) -> list[Node]:
    """The costly terms that are the fewest steps away, operands before users."""
    using = users(model.nodes())
    found: list[Node] = []
    for each in _outwards(node, using):
        if _program(each, sizes) is not None and part_names(model, each):
            found.append(each)
        if len(found) == NEAREST:
            break
    return found


def _outwards(node: Node, using: Mapping[Node, list[Node]]) -> Iterator[Node]:
    seen, level = {node}, [node]
    while level:
        yield from level
        near = dict.fromkeys(n for each in level for n in (*each.args, *using.get(each, ())))
        level = [n for n in near if n not in seen]
        seen.update(level)
