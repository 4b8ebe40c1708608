"""Re-rolling: a sum of terms that differ in their weights alone, such as experts that are written
out, becomes one term over stacked weights and a sum along their axis.

Let s(y) be the terms y_0, y_1, ... one above the other. Then y_0 + y_1 + ... is the sum of s(y)
along its first axis, and for each operator f of a term the operator F of stacked operands is found
as in hoisting (`hoisting.py`): s(f(a)) == F(s(a)). Each of these equalities is proved. A stack is
made of stacks of few terms, so that a proof is about few; the terms of all have the same proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice

from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_constant, topological
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import definition
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.derived_traits import multiplies
from taso_mirage.rewriting.forms import ADDED
from taso_mirage.search.loops.hoisting import forms_of_all
from taso_mirage.search.loops.inductions import is_equal
from taso_mirage.search.loops.parts import GROUP, term_of_parts
from taso_mirage.search.steps import BODIES, RewriteStep

REROLLING = "re-rolling of equal terms"
"""The name of the equalities, among those of a step."""
FEWEST = 8
"""The fewest terms that are re-rolled."""
DEEPEST = 32
"""The most operators one above the other that are stacked."""
FORMS = 3
"""The forms of an operator that are tried."""


def rerolled_sums(outputs: Sequence[Node], proofs: Proofs) -> Iterator[RewriteStep]:
    """A step for each sum of many terms that differ in their weights alone, the last ones first."""
    read = Counter(a for node in topological(outputs) for a in node.args)
    read.update(outputs)
    inner = set[Node]()
    for node in reversed(topological(outputs)):
        if ADDED.match(node) is None or node in inner or not isinstance(node.type, Tensor):
            continue
        added = _addends(node, read)
        inner |= added.keys() - set(added[node])
        step = _rerolled(node, added[node], proofs)
        if step is not None:
            yield step


def _addends(whole: Node, read: Counter[Node]) -> dict[Node, list[Node]]:
    """The terms that each sum adds, for a sum and those below it that nobody else reads."""
    found: dict[Node, list[Node]] = {}
    waiting = [whole]
    order = []
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += [a for a in node.args if _is_inside(a, whole, read)]
    for node in reversed(order):
        found[node] = [t for a in node.args for t in found.get(a, [a])]
    return found


def _is_inside(node: Node, whole: Node, read: Counter[Node]) -> bool:
    return ADDED.match(node) is not None and node.type == whole.type and read[node] == 1


def _rerolled(whole: Node, addends: Sequence[Node], proofs: Proofs) -> RewriteStep | None:
    """The step for one sum."""
    kinds = Counter(_kind(a) for a in addends if a.args and a.type == whole.type)
    usual, count = max(kinds.items(), key=lambda item: item[1], default=(None, 0))
    same = [a for a in addends if _kind(a) == usual]
    if count < FEWEST or len(set(same)) < count or not any(multiplies(n.op) for n in topological(same[:1])):
        return None
    stacks = _Stacks(count, proofs)
    made = stacks.of(same)
    if made is None or made.whole is same[0]:
        return None
    others = [a for a in addends if _kind(a) != usual]
    new = _sum([*others, _sum_of(made.whole)])
    if new.type != whole.type or not stacks.sum(whole, same, others):
        return None
    called, proved = f"{count} equal terms of a sum", tuple(stacks.steps)
    return RewriteStep((BODIES,), (whole,), (new,), obligations=proved, shown=(whole,), called=called)


def _sum(terms: Sequence[Node]) -> Node:
    return reduce(lambda a, b: term("add", a, b), terms)


def _sum_of(stack: Node) -> Node:
    return term("reduce_sum", stack, axes=(0,), keepdims=0)


def _kind(node: Node) -> tuple[object, ...]:
    return node.op, node.attrs, node.type, len(node.args)


def _joined(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else term("concat", *parts, axis=0)


@dataclass(frozen=True, slots=True)
class _Stack:
    """Terms one above the other: those of each group, and all. `apart`: whether they are several
    terms; else `whole` is the only one."""

    groups: tuple[Node, ...]
    whole: Node
    apart: bool = True


@dataclass
class _Stacks:
    """The stacks of terms of equal structure, `count` of each kind, and the equalities by which
    they are."""

    count: int
    proofs: Proofs
    steps: list[RewriteStep] = field(default_factory=list)
    known: dict[tuple[Node, ...], _Stack | None] = field(default_factory=dict)
    depth: int = 0

    def of(self, nodes: Sequence[Node]) -> _Stack | None:
        """The stack of some terms; None where they have no equal structure."""
        key = tuple(nodes)
        if key not in self.known:
            self.depth += 1
            self.known[key] = self._of(key) if self.depth <= DEEPEST else None
            self.depth -= 1
        return self.known[key]

    def _of(self, nodes: tuple[Node, ...]) -> _Stack | None:
        first = nodes[0]
        if all(each is first for each in nodes):
            return _Stack((), first, apart=False)
        if not isinstance(first.type, Tensor) or any(each.type != first.type for each in nodes):
            return None
        if all(map(is_weight, nodes)):
            groups = tuple([_joined(each) for each in self.apart(nodes)])
            return _Stack(groups, _joined(groups))
        return self._parts(nodes) or self._operator(nodes) or self._by_definition(nodes)

    def apart(self, nodes: Sequence[Node]) -> Iterator[list[Node]]:
        """The terms of each group, with one more axis before all others."""
        for start in range(0, len(nodes), GROUP):
            yield [term("unsqueeze", each, axes=(0,)) for each in nodes[start : start + GROUP]]

    def prove(self, old: Node, new: Node, leaves: Sequence[Node]) -> bool:
        """Whether two terms are proved to be equal for all values of some leaves."""
        return add_proved(old, new, leaves, self.proofs, self.steps)

    def sum(self, whole: Node, same: Sequence[Node], others: Sequence[Node]) -> bool:
        """Whether a sum is proved to be that of `others` and of the stack of the terms `same`: the
        terms of each group are added first."""
        members = [same[start : start + GROUP] for start in range(0, len(same), GROUP)]
        groups, parts = [_joined(each) for each in self.apart(same)], [_sum(each) for each in members]
        return (
            self.prove(whole, _sum([*others, _sum(parts)]), [*same, *others])
            and all(self.prove(p, _sum_of(g), m) for p, g, m in zip(parts, groups, members, strict=True))
            and self.prove(_sum([_sum_of(g) for g in groups]), _sum_of(_joined(groups)), groups)
        )

    # ------------------------------------------------------------ parts of one term

    def _parts(self, nodes: Sequence[Node]) -> _Stack | None:
        """The stack of terms that are the successive parts of one term along an axis."""
        sources = {term_of_parts(each) for each in nodes}
        if len(sources) != 1:
            return None
        (source,) = sources
        for axis in [i for i, n in enumerate(source.shape) if n == self.count]:
            start, groups = 0, list[Node]()
            for each in self.apart(nodes):
                cut = {"axes": (axis,), "starts": (start,), "ends": (start + len(each),), "steps": (1,)}
                part = term("slice", source, **cut)
                groups.append(_moved(part, axis, (len(each), *nodes[0].shape)))
                if not self.prove(_joined(each), groups[-1], [source]):
                    break
                start += len(each)
            else:
                whole = _moved(source, axis, (self.count, *nodes[0].shape))
                if self.prove(_joined(groups), whole, [source]):
                    return _Stack(tuple(groups), whole)
        return None

    # ------------------------------------------------------------ terms of one operator

    def _operator(self, nodes: Sequence[Node]) -> _Stack | None:
        """The stack of terms of one operator, over the stacks of their operands."""
        first = nodes[0]
        if not first.args or any(_kind(each) != _kind(first) for each in nodes):
            return None
        operands = [self.of([each.args[i] for each in nodes]) for i in range(len(first.args))]
        stacks = [each for each in operands if each is not None]
        if len(stacks) < len(operands) or not any(each.apart for each in stacks):
            return None
        before = len(self.steps)
        for form in range(FORMS):
            found = self._by_form(nodes, stacks, form)
            if found is not None:
                return found
            del self.steps[before:]
        return None

    def _by_form(self, nodes: Sequence[Node], stacks: Sequence[_Stack], form: int) -> _Stack | None:
        """The stack by one of the forms that the operator may have."""
        groups = []
        for number, each in enumerate(self.apart(nodes)):
            single = [one.args[0] for one in each]
            alone = [_joined([term("unsqueeze", n.args[i], axes=(0,)) for n in single]) for i in range(len(stacks))]
            made = _form(nodes[0], stacks, alone, len(each), form)
            if made is None or not self.prove(_joined(each), made, [a for n in single for a in n.args]):
                return None
            given = [stack.groups[number] if stack.apart else stack.whole for stack in stacks]
            groups.append(_form(nodes[0], stacks, given, len(each), form) or made)
        joined = [_joined(each.groups) if each.apart else each.whole for each in stacks]
        made = _form(nodes[0], stacks, joined, self.count, form)
        leaves = [leaf for each in stacks for leaf in (each.groups if each.apart else (each.whole,))]
        if made is None or not self.prove(_joined(groups), made, leaves):
            return None
        whole = _form(nodes[0], stacks, [each.whole for each in stacks], self.count, form)
        return None if whole is None else _Stack(tuple(groups), whole)

    def _by_definition(self, nodes: Sequence[Node]) -> _Stack | None:
        """The stack of terms of an operator that other operators define."""
        inner = [definition(each) if each.args else None for each in nodes]
        made = [each for each in inner if each is not None]
        if len(made) < len(nodes) or not all(
            self.prove(old, new, old.args) for old, new in zip(nodes, made, strict=True)
        ):
            return None
        return self.of(made)


def add_proved(old: Node, new: Node, leaves: Sequence[Node], proofs: Proofs, steps: list[RewriteStep]) -> bool:
    """Whether two terms are proved to be equal for all values of some leaves; the equality is then
    one of the steps."""
    over = [a for a in dict.fromkeys(leaves) if a is not ABSENT and not is_constant(a)]
    found = old is new or (old.type == new.type and is_equal(old, new, over, proofs))
    if found and old is not new:
        steps.append(RewriteStep((REROLLING,), (old,), (new,), over=frozenset(over)))
    return found


def _form(single: Node, stacks: Sequence[_Stack], given: Sequence[Node], size: int, form: int) -> Node | None:
    """One of the terms that an operator may be over its operands of `size` terms; None where there
    are fewer."""
    table = {a: whole for a, whole, each in zip(single.args, given, stacks, strict=True) if each.apart}
    if any(a in table for a, each in zip(single.args, stacks, strict=True) if not each.apart):
        return None
    return next(islice(forms_of_all(single, table, size), form, None), None)


def _moved(node: Node, axis: int, shape: Sequence[object]) -> Node:
    """A term with an axis before all others, viewed in a shape."""
    order = (axis, *[i for i in range(len(node.shape)) if i != axis])
    moved = node if axis == 0 else term("transpose", node, perm=order)
    return moved if moved.shape == tuple(shape) else term("reshape", moved, shape=tuple(shape))
