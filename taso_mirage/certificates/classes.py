"""Classes of equal terms: stated equalities, and their consequences for terms of equal operands."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Node, constant, numpy_dtype, topological, with_args
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.rewriting.folding import fold_constants

MALFORMED_DATA = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""Errors that reading hostile data may raise."""


def _constant(node: Node) -> Node:
    """The constant for a term without operands (a range, for instance), if it contains no size that
    is known only at run time."""
    try:
        return constant(np.asarray(interpret_term(node, REALS, []), numpy_dtype(node.dtype)))
    except MALFORMED_DATA:
        return node


UNFOLDED = frozenset({"input", "weight", "constant", "absent", "opaque"})


class EqualTerms:
    """Classes of equal terms, closed under: equal operands give equal results."""

    def __init__(self, terms: Sequence[Node]) -> None:
        self.terms = list(terms)
        self.order = {n: i for i, n in enumerate(self.terms)}
        self.parent: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        root = node
        while root in self.parent:
            root = self.parent[root]
        while node is not root:
            self.parent[node], node = root, self.parent[node]
        return root

    def union(self, a: Node, b: Node) -> bool:
        a, b = self.find(a), self.find(b)
        if a is b:
            return False
        first, second = (a, b) if self.order[a] < self.order[b] else (b, a)
        self.parent[second] = first
        return True

    def state(self, a: Node, b: Node) -> bool:
        """Put two terms, which may be new, into one class; whether they were in two."""
        for node in topological((a, b)):
            self._add(node)
        return self.union(a, b)

    def close(self) -> None:
        """Merge in rounds until nothing changes; operands have smaller numbers, so few rounds are
        needed."""
        does = {n: (n.op, *[(name, _stored(value)) for name, value in n.attrs]) for n in self.terms if n.args}
        changed = True
        while changed:
            changed = False
            seen: dict[Any, Node] = {}
            values = {self.find(n): n for n in self.terms if n.op == "constant"}
            for node in self.terms:
                if node.args:
                    key = (*does[node], *[self.find(a) for a in node.args])
                    changed |= self.union(seen.setdefault(key, node), node)
                if node.op not in UNFOLDED:
                    folded = fold_constants(self._over(node, values)) if node.args else _constant(node)
                    if folded is not node and (folded in self.order or folded.op == "constant"):
                        self._add(folded)
                        values.setdefault(self.find(folded), folded)
                        changed |= self.union(node, folded)

    def _over(self, node: Node, values: Mapping[Node, Node]) -> Node:
        """A term over the constants that its operands equal, if all do: a reader folds what only
        depends on weights that were computed in advance."""
        operands = tuple([values.get(self.find(a), a) for a in node.args])
        return with_args(node, operands) if all(a.op in ("constant", "absent") for a in operands) else node

    def _add(self, node: Node) -> None:
        if node not in self.order:
            self.order[node] = len(self.terms)
            self.terms.append(node)


def _stored(value: Any) -> Hashable:
    """An attribute as it is stored in a file; ONNX stores floats in 32 bits."""
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            return np.float32(value).tobytes()
    return tuple(map(_stored, value)) if isinstance(value, tuple) else value
