"""Opaque functions: the elementwise operators of a goal that are not arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_constant
from taso_mirage.meanings.field import Field, Residues
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import get, load_specs, term


def is_scalar(node: Node) -> bool:
    """Whether a term is a constant of one element."""
    return is_constant(node) and all(n == 1 for n in node.shape)


def is_defined(node: Node) -> bool:
    """Whether a term has a definition: leaves and opaque terms have none."""
    return node.op in load_specs()


def tensors(node: Node) -> list[Node]:
    """The operands that are tensors; the others are scalar constants."""
    return [a for a in node.args if a is not ABSENT and not is_scalar(a)]


def with_operands(example: Node, operands: Sequence[Node], scalar: Callable[[Node], Node]) -> Node:
    """A function of the goal, of other tensors, and with the results of `scalar` for its
    constants."""
    replaced = {a: scalar(a) for a in example.args if a is not ABSENT and is_scalar(a)}
    replaced |= zip(tensors(example), operands, strict=True)
    return term(example.op, *[replaced.get(a, a) for a in example.args], **dict(example.attrs))


def function_name(node: Node) -> str:
    """The identity of an opaque function: its operator, with the attributes that are not left out
    or the default."""
    defaults = {name: default for name, (_, default) in get(node.op).attributes.items()}
    shown = [f"{k}={v!r}" for k, v in node.attrs if v != defaults[k]]
    if any(is_scalar(a) for a in node.args):
        shown = [repr(a.attr("value").numpy().item()) if is_scalar(a) else "_" for a in node.args] + shown
    return node.op + (f"({', '.join(shown)})" if shown else "")


def applied(node: Node, xp: Field, args: Sequence[Residues]) -> Residues:
    """An opaque function in the field, with `args` for its tensors."""
    given = iter(args)
    values = [None if a is ABSENT else xp.constant(a.attr("value")) if is_scalar(a) else next(given) for a in node.args]
    result: Residues = interpret_term(node, xp, values)
    return result


def known_in_the_field(node: Node) -> bool:
    """Whether the field knows a function's value modulo both primes."""
    xp = Field(1)
    return applied(node, xp, [xp.fresh(Tensor(a.dtype, ())) for a in tensors(node)]).full
