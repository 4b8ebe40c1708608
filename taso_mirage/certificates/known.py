"""The original, read again where equalities show that its values are constants.

A reader sees through nodes over constants: a shape, an axis, a condition, the number of a loop's
steps. Where a law gives such an operand, the optimized model is read so, and the original is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from taso_mirage.certificates.classes import EqualTerms
from taso_mirage.errors import CheckFailed, InvalidModel
from taso_mirage.ir.content import Draw
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.onnx_io.content_terms import Opened
from taso_mirage.onnx_io.places import FilePlace, NodeResults
from taso_mirage.onnx_io.read import with_values


@dataclass(slots=True)
class _Reading:
    """The opened terms of the results of nodes by their places, and the terms that the inputs of
    each body stand for, by the beginning of its places and their names."""

    terms: dict[FilePlace, Node] = field(default_factory=dict)
    leaves: dict[FilePlace, dict[str, Node]] = field(default_factory=dict)

    def add(self, view: Opened, around: FilePlace = ()) -> None:
        """The results of a model, and of the bodies that are models of their own."""
        read: NodeResults = view.model.results
        self.leaves[around] = {leaf.attr("name"): term for leaf, term in view.leaves.items()}
        for place, term in read.terms.items():
            if isinstance(term.type, Tensor):
                self.terms[around + place] = view([term])[0]
        for (term, attribute), inner in [*view.bodies.items()]:
            body = read.body(term.attr("call").node, attribute)
            if body is not None:
                self.add(inner, (*around, body))

    def pairs(self, other: _Reading) -> Iterator[tuple[Node, Node]]:
        """The terms with those of another reading at the same place, if they are over the same
        variables: a loop whose number of steps is known has other ones."""
        stated: set[tuple[Node, Node]] = set()
        alike: set[FilePlace] = set()
        for around in sorted(self.leaves, key=len):
            if around and (around[:-1] not in alike or not self._same_leaves(other, around, stated)):
                continue
            alike.add(around)
            inside = (p for p in self.terms if p[:-1] == around and p in other.terms)  # else nothing needs it
            stated.update((self.terms[p], other.terms[p]) for p in inside)
        yield from stated

    def _same_leaves(self, other: _Reading, body: FilePlace, stated: Collection[tuple[Node, Node]]) -> bool:
        """Whether the inputs of a body that both readings have stand for equal terms."""
        there = other.leaves.get(body)
        return there is not None and all(
            name not in there or _same(term, there[name], stated) for name, term in self.leaves[body].items()
        )


def _same(a: Node, b: Node, stated: Collection[tuple[Node, Node]]) -> bool:
    """Whether two terms are one, are stated to be equal, or are of one operator over such terms."""
    if a is b or (a, b) in stated:
        return True
    if not a.args or (a.op, a.attrs, len(a.args)) != (b.op, b.attrs, len(b.args)):
        return False
    return all(x is y or (x, y) in stated for x, y in zip(a.args, b.args, strict=True))


class KnownValues:
    """The results of nodes of the original that are known to be constants."""

    def __init__(self, original: Model, view: Opened) -> None:
        self.original, self.view = original, view
        self.known: dict[FilePlace, Node] = {}

    def read_again(self, classes: EqualTerms) -> list[tuple[Node, Node]]:
        """The terms of the original, each with the one that a reader finds who knows these values
        and those that are constants by now; none where no value is new.

        CheckFailed where two nodes would be one draw.
        """
        try:
            first = self._read({})
        except InvalidModel:  # a model that was made in memory and has no file
            return []
        first.terms = {place: term for place, term in first.terms.items() if term in classes.order}
        constants = {classes.find(n): n for n in classes.terms if n.op == "constant"}
        found = {p: constants.get(classes.find(t)) for p, t in first.terms.items() if t.op != "constant"}
        known = {p: constant for p, constant in found.items() if constant is not None}
        if known.keys() <= self.known.keys():
            return []
        self.known = known
        return [*first.pairs(self._read(known))]

    def _read(self, known: Mapping[FilePlace, Node]) -> _Reading:
        """The opened terms of the file's values that are tensors."""
        model = with_values(self.original.header, known, self.original.trusted)
        view = Opened(model, model.weights, arrays=self.view.arrays, results=self.view.results)
        found = _Reading()
        found.add(view)
        single(view)
        return found


def single(view: Opened) -> Collection[Draw]:
    """The draws of a model that was opened."""
    for draw, nodes in view.draws.items():
        if len(nodes) > 1:
            raise CheckFailed(f"{len(nodes)} nodes {draw.operator} give the value {draw.name!r}")
    return view.draws
