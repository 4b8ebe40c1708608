"""The original, read again where equalities show that its values are constants.

A reader sees through nodes over constants: a shape, an axis, a condition, the number of a loop's
steps. Where a law gives such an operand, the optimized model is read so, and the original is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from taso_mirage.certificates.classes import EqualTerms
from taso_mirage.errors import CheckFailed, InvalidModel
from taso_mirage.ir.content import Draw
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.onnx_io.content_terms import Opened
from taso_mirage.onnx_io.read import FileValue, with_values


class KnownValues:
    """The values of the original's graph that are known to be constants."""

    def __init__(self, original: Model, view: Opened) -> None:
        self.original, self.view = original, view
        self.known: dict[FileValue, Node] = {}

    def read_again(self, classes: EqualTerms) -> list[tuple[Node, Node]]:
        """The terms of the original, each with the one that a reader finds who knows these values
        and those that are constants by now; none where no value is new.

        CheckFailed where two nodes would be one draw.
        """
        try:
            terms = {v: t for v, t in self._read({}).items() if t in classes.order}
        except InvalidModel:  # a model that was made in memory and has no file
            return []
        constants = {classes.find(n): n for n in classes.terms if n.op == "constant"}
        found = {v: constants.get(classes.find(t)) for v, t in terms.items() if t.op != "constant"}
        known = {v: constant for v, constant in found.items() if constant is not None}
        if known.keys() <= self.known.keys():
            return []
        self.known = known
        anew = self._read(known)
        return [(term, anew[value]) for value, term in terms.items() if value in anew]  # else nothing needs it

    def _read(self, known: Mapping[FileValue, Node]) -> dict[FileValue, Node]:
        """The opened terms of the values of the file that are tensors."""
        model, terms = with_values(self.original, known)
        view = Opened(model, model.weights, arrays=self.view.arrays, results=self.view.results)
        found = {v: view([t])[0] for v, t in terms.items() if isinstance(t.type, Tensor)}
        single(view)
        return found


def single(view: Opened) -> Collection[Draw]:
    """The draws of a model that was opened."""
    for draw, nodes in view.draws.items():
        if len(nodes) > 1:
            raise CheckFailed(f"{len(nodes)} nodes {draw.operator} give the value {draw.name!r}")
    return view.draws
