"""What the operators of a goal are to the kernel search: arithmetic, opaque functions of one element, or what defines them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir import ABSENT, Node, Tensor, topological, with_args
from taso_mirage.kernels.axes import Unifier
from taso_mirage.kernels.trace import ALGEBRA, Labels, Value, below
from taso_mirage.meanings.field import Field, Residues
from taso_mirage.ops import TERMS, definition, get, run


def inlined(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs with every operator that is defined over others replaced by them, unless it is one opaque function."""
    done: dict[Node, Node] = {}

    def replaced(node: Node, stop: Iterable[Node]) -> Node:
        for each in topological([node], stop=done | dict.fromkeys(stop)):
            new = with_args(each, tuple([done.get(arg, arg) for arg in each.args]))
            inner = None if not new.args or role(new) == "function" else _definition(new)
            operands = new.args[0].args if new.op == "item" else new.args
            done[each] = new if inner is None else replaced(inner, operands)
        return done.get(node, node)

    return tuple([replaced(output, ()) for output in outputs])


def _definition(node: Node) -> Node | None:
    """What defines a term, or the part of a term of several results that it is."""
    try:
        if node.op != "item":
            return definition(node)
        whole = node.args[0]
        parts: tuple[Node, ...] = run(whole, TERMS, [None if a is ABSENT else a for a in whole.args])
        index: int = node.attr("index")
        return parts[index]
    except TasoMirageError:
        return None


def tensors(node: Node) -> list[Node]:
    """The operands that are tensors; the others are scalar constants."""
    return [a for a in node.args if a is not ABSENT and not is_scalar(a)]


def is_scalar(node: Node) -> bool:
    return node.op == "constant" and all(n == 1 for n in node.shape)


def role(node: Node) -> str:
    """algebra, function (elementwise, and no arithmetic), pointwise (elementwise over several maps of several operands) or other."""
    operands = tensors(node)
    if (
        not isinstance(node.type, Tensor)
        or not operands
        or not all(isinstance(a.type, Tensor) and a.tensor.shape is not None for a in node.args)
    ):
        return "other"
    meaning = Labels(Unifier())
    try:
        probes = {a: meaning.constant(a.attr("value")) for a in node.args if a is not ABSENT and is_scalar(a)}
        probes |= {a: meaning.leaf(a) for a in operands}
        result: Value = run(node, meaning, [probes.get(a) for a in node.args])
        maps = [t for t in below(result.term) if t.op not in ("input", "constant")]
        if not maps or any(t.op not in {*ALGEBRA.values(), "scalar"} for t in maps):
            return "other"
        _, axes = meaning.broadcast([probes[a] for a in operands])
    except TasoMirageError:
        return "other"
    if meaning.unifier.axes(axes) != meaning.unifier.axes(result.axes):
        return "other"
    if len(maps) == 1 and maps[0].op != "scalar":
        return "algebra"
    return "function" if len(set(operands)) == 1 or len(maps) == 1 else "pointwise"


def function_name(node: Node) -> str:
    """The identity of an opaque function: its operator, with what is not left out or the default."""
    defaults = {name: default for name, (_, default) in get(node.op).attributes.items()}
    shown = [f"{k}={v!r}" for k, v in node.attrs if v != defaults[k]]
    if any(is_scalar(a) for a in node.args):
        shown = [repr(a.attr("value").numpy().item()) if is_scalar(a) else "_" for a in node.args] + shown
    return node.op + (f"({', '.join(shown)})" if shown else "")


def applied(node: Node, xp: Field, args: Sequence[Residues]) -> Residues:
    """An opaque function in the field, with `args` for its tensors."""
    given = iter(args)
    values = [None if a is ABSENT else xp.constant(a.attr("value")) if is_scalar(a) else next(given) for a in node.args]
    result: Residues = run(node, xp, values)
    return result


def known_in_the_field(node: Node) -> bool:
    """Whether the field knows a function's value modulo both primes."""
    xp = Field(1)
    return applied(node, xp, [xp.fresh(Tensor(a.dtype, ())) for a in tensors(node)]).full
