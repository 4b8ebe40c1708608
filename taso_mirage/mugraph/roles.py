"""The roles of a goal's operators in the kernel search: arithmetic, opaque functions of one
element, or definitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_part, topological, with_args
from taso_mirage.mugraph.axis_classes import Unifier
from taso_mirage.mugraph.derivations.scalar_terms import TermForm, below
from taso_mirage.mugraph.goal import is_packed
from taso_mirage.mugraph.integer_operands import QuantizedTerms
from taso_mirage.mugraph.label_trace import ALGEBRA, LabelledValue, LabelsMeaning
from taso_mirage.mugraph.opaque_functions import is_scalar, tensors
from taso_mirage.operators.interpret import definition, interpret_term
from taso_mirage.operators.ops import TERMS, traits


class Role(Enum):
    """The role of an operator in the search."""

    ALGEBRA = "arithmetic, element by element"
    FUNCTION = "elementwise, and no arithmetic"
    POINTWISE = "elementwise over several maps of several operands"
    OTHER = "anything else: what it does to axes, or what defines it"


def inlined(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs with every operator that is defined over others replaced by them, unless it is
    one opaque function."""
    done: dict[Node, Node] = {}
    several = sum(traits(n).quantized for n in topological(outputs)) > 1

    def one(node: Node) -> bool:
        """Whether an operator is one value of the goal: the numbers of an input, and weights of
        several products, since all ways to take them apart are too many."""
        scaled = several and traits(node).lowering is Lowering.SCALE
        return is_packed(node) or scaled or role(node) is Role.FUNCTION

    def replaced(node: Node, stop: Iterable[Node]) -> Node:
        for each in topological([node], stop=done | dict.fromkeys(stop)):
            new = with_args(each, tuple([done.get(arg, arg) for arg in each.args]))
            inner = None if not new.args or one(new) else defined(new)
            operands = new.args[0].args if is_part(new) else new.args
            done[each] = new if inner is None else replaced(inner, operands)
        return done.get(node, node)

    return tuple([replaced(output, ()) for output in outputs])


def defined(node: Node) -> Node | None:
    """The definition of a term, or of the part of a term of several results."""
    try:
        if not is_part(node):
            integers = traits(node).quantized and not traits(node).decides
            return _of_integers(node) if integers else definition(node)
        whole = node.args[0]
        parts: tuple[Node, ...] = interpret_term(whole, TERMS, [None if a is ABSENT else a for a in whole.args])
        index: int = node.attr("index")
        return parts[index]
    except TasoMirageError:
        return None


def _of_integers(node: Node) -> Node:
    """The definition of a quantized operator that rounds nothing, with its primitives as operators
    too."""
    found: Node = interpret_term(node, QuantizedTerms(), [None if a is ABSENT else a for a in node.args])
    return found


def role(node: Node) -> Role:
    """The role of an operator, derived from its definition."""
    operands = tensors(node)
    if (
        not isinstance(node.type, Tensor)
        or not operands
        or not all(isinstance(a.type, Tensor) and a.tensor.shape is not None for a in node.args)
    ):
        return Role.OTHER
    meaning = LabelsMeaning(Unifier())
    try:
        probes = {a: meaning.constant(a.attr("value")) for a in node.args if a is not ABSENT and is_scalar(a)}
        probes |= {a: meaning.leaf(a) for a in operands}
        result: LabelledValue = interpret_term(node, meaning, [probes.get(a) for a in node.args])
        maps = [t for t in below(result.term) if t.kind not in (TermForm.LEAF, TermForm.CONSTANT)]
        if not maps or any(t.kind not in {*ALGEBRA.values(), TermForm.SCALAR} for t in maps):
            return Role.OTHER
        _, axes = meaning.broadcast([probes[a] for a in operands])
    except TasoMirageError:
        return Role.OTHER
    if meaning.unifier.axes(axes) != meaning.unifier.axes(result.axes):
        return Role.OTHER
    if len(maps) == 1 and maps[0].kind is not TermForm.SCALAR:
        return Role.ALGEBRA
    return Role.FUNCTION if len(set(operands)) == 1 or len(maps) == 1 else Role.POINTWISE
