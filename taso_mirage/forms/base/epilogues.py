"""Epilogues and prologues: the elementwise operators of a model behind the result of a form's
operator, or before its data, and the scalar functions that they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.form import IsWanted, Users
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, topological, variable
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import retyped
from taso_mirage.rewriting.derived_traits import elementwise

MEMBERS, OTHERS = 16, 5
"""The largest number of operators in an epilogue, and of their other operands."""
IsRead = Callable[[Node, Node], bool]
"""Whether an epilogue may read a tensor of a model, for this result."""
IsWritten = Callable[[Graph], bool]
"""Whether a back end writes a function of numbers."""


def following(
    node: Node,
    users: Users,
    wanted: IsWanted,
    reads: IsRead,
    writes: IsWritten,
    position: Mapping[Node, int] | None = None,
) -> list[Node]:
    """A term with all that follows it element by element, in the model's order if `position` has
    it, as far as one result alone is read by others, and has the type of the term."""
    members, others = [node], set[Node]()

    def joins(each: Node) -> bool:
        if each in members or not _joins(each, members, reads):
            return False
        alone = _alone(each)
        return alone is not None and writes(alone)

    while len(members) <= MEMBERS:
        waiting = [each for m in members for each in users(m) if joins(each)]
        if not waiting:
            break
        following = min(waiting, key=position.__getitem__) if position is not None else waiting[0]
        members.append(following)
        others |= {a for a in following.args if a not in members and not is_number(a)}
        if len(others) > OTHERS:
            members.pop()
            break
    while len(members) > 1 and not _is_closed(members, users, wanted):
        members.pop()
    return members


def around(
    node: Node,
    users: Users,
    wanted: IsWanted,
    reads: IsRead,
    writes: IsWritten,
    is_first: Callable[[Node], bool],
    position: Mapping[Node, int] | None = None,
) -> list[Node]:
    """A term with the elementwise operators before its data and behind its result. What is the
    epilogue of another term of which `is_first` is true stays there."""
    before = _preceding(node, users, wanted, reads, writes)
    others = {each for member in before for each in source_terms(member) if is_first(each)}
    taken = {m for each in others for m in following(each, users, wanted, reads, writes, position)}
    return [
        *([] if taken.intersection(before) else before),
        *following(node, users, wanted, reads, writes, position),
    ]


def _preceding(node: Node, users: Users, wanted: IsWanted, reads: IsRead, writes: IsWritten) -> list[Node]:
    """The elementwise operators before the data of a term, which nothing else reads, operands
    first; none if they have no operand of the type of the data."""
    data, members = node.args[0], list[Node]()

    def joins(each: Node) -> bool:
        alone = not wanted(each) and all(u is node or u in members for u in users(each))
        if not alone or not each.args or each in members or not _joins(each, (data,), lambda *_: True):
            return False
        return (function := _alone(each)) is not None and writes(function)

    while len(members) < MEMBERS:
        waiting = [data, *(a for m in members for a in m.args)]
        if (each := next(filter(joins, waiting), None)) is None:
            break
        members.append(each)
    others = _operands(members)
    read = all(a.type == data.type or reads(a, data) for a in others) and len(others) <= OTHERS
    if not read or not any(a.type == data.type for a in others):
        return []
    return [each for each in topological([data], stop=set(others)) if each in members]


def source_terms(node: Node) -> list[Node]:
    """The terms of which a term is an elementwise function."""
    found, waiting = list[Node](), [node]
    for each in waiting:
        if elementwise(each.op) and each.args and len(waiting) < MEMBERS:
            waiting += [a for a in each.args if a not in waiting]
        else:
            found.append(each)
    return found


def _operands(members: Sequence[Node]) -> list[Node]:
    """The tensors that some terms read and do not compute."""
    inside = set(members)
    return list(dict.fromkeys(a for m in members for a in m.args if a not in inside and not is_number(a)))


def _joins(node: Node, members: Sequence[Node], reads: IsRead) -> bool:
    """Whether a term is computed of a result's elements, numbers and other tensors that the
    function may read."""
    first = members[0]
    if not isinstance(node.type, Tensor) or node.shape != first.shape or not elementwise(node.op):
        return False
    if node.dtype not in ("bool", "float32", first.dtype):
        return False
    return all(a in members or is_number(a) or reads(a, first) for a in node.args)


def _alone(node: Node) -> Graph | None:
    """An elementwise operator as a function of numbers; None if it takes no single numbers."""
    leaves = {a: variable(f"v{i}", Tensor(a.dtype, (1,))) for i, a in enumerate(node.args) if not is_number(a)}
    try:
        return Graph(tuple(leaves.values()), retyped((node,), leaves))
    except TasoMirageError:
        return None


def is_number(node: Node) -> bool:
    """Whether an operand is a constant of one element, or is left out."""
    return node is ABSENT or (is_constant(node) and prod(map(int, node.shape)) == 1)


def _is_closed(members: Sequence[Node], users: Users, wanted: IsWanted) -> bool:
    """Whether of some terms only the last one is read by others, and has the type of the first."""
    alone = not any(wanted(m) or not all(u in members for u in users(m)) for m in members[:-1])
    return alone and members[-1].type == members[0].type


def of_results_or_channels(node: Node, result: Node) -> bool:
    """Whether a tensor has a number for each element of a result with channels first, one for each
    channel of an image, or one for each channel, which is known."""
    if not isinstance(node.type, Tensor) or node.dtype != result.dtype:
        return False
    channels = (*result.shape[:2], *(1,) * (len(result.shape) - 2))
    known = node.op == "weight" and node.shape in ((1, *channels[1:]), channels[1:])
    return known or (node.shape in (result.shape, channels) and not is_weight(node))


def broadcasts(node: Node, result: Node, columns: int = 1) -> bool:
    """Whether a tensor in single precision has a number for each element of a result, or for each
    row or each column of it: for all of the last dims, or for none."""
    if not isinstance(node.type, Tensor) or node.dtype != "float32" or len(node.shape) > len(result.shape):
        return False
    shape = (*(1,) * (len(result.shape) - len(node.shape)), *node.shape)
    parts = ((shape[:-columns], result.shape[:-columns]), (shape[-columns:], result.shape[-columns:]))
    if not all(a in (1, b) for mine, whole in parts for a, b in zip(mine, whole, strict=True)):
        return False
    known = all(isinstance(n, int) for n in result.shape)
    return all(set(mine) <= {1} or mine == whole for mine, whole in (parts[1:] if known else parts))


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """The function of an element of a result that some terms of a model compute, the first of
    which is the result.

    `others`: the other tensors that they read, in the order of the function's inputs after the
    first one. `body`: the terms over numbers.
    """

    others: tuple[Node, ...]
    body: Graph

    def of(self, result: Node) -> Node:
        """The function of a result, over the other tensors."""
        leaves = dict(zip(self.body.inputs, (result, *self.others), strict=True))
        return retyped(self.body.outputs, leaves)[0]


def read_functions(
    whole: Node, is_first: Callable[[Node], bool]
) -> tuple[Node, ScalarFunction | None, tuple[Node, ScalarFunction | None]] | None:
    """The only term in a graph of which this is true, the function of its result that the graph is,
    and the tensor of which a function is the data of the term; None for other graphs."""
    order = topological([whole])
    first = [node for node in order if is_first(node)]
    if len(first) != 1:
        return None
    members, before = first[:], topological([first[0].args[0]])
    for node in order:
        if node not in members and any(a in members for a in node.args):
            members.append(node)
    inner = [node for node in before if any(a is not ABSENT for a in node.args)]
    if not all(elementwise(node.op) for node in (*members[1:], *inner)):
        return None
    after = None if len(members) == 1 else scalar_function(members)
    if inner and not any(a.type == first[0].args[0].type for a in _operands(inner)):
        return None
    return first[0], after, data_function(first[0], inner)


def data_function(node: Node, before: Sequence[Node]) -> tuple[Node, ScalarFunction | None]:
    """The tensor of which some terms, the last of which is the data of a term, are a function, and
    the function; the data itself without terms."""
    if not before:
        return node.args[0], None
    data = next(a for a in _operands(before) if a.type == node.args[0].type)
    return data, scalar_function([data, *before])


def scalar_function(members: Sequence[Node]) -> ScalarFunction:
    """The function that some terms are, the last of which is its value."""
    others = tuple([a for a in _operands(members[1:]) if a is not members[0]])
    leaf = variable("y", Tensor(members[0].dtype, (1,)))
    leaves = {a: variable(f"v{i}", Tensor(a.dtype, (1,))) for i, a in enumerate(others)}
    return ScalarFunction(others, Graph((leaf, *leaves.values()), retyped(members[-1:], {members[0]: leaf, **leaves})))
