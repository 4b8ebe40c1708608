"""Values that a model computes from sizes and constants alone and for which the runtime decides
differently from float64.

Relative positions fall into buckets by a rounded logarithm. At the edge of a bucket, single
precision and float64 may round to different sides. Both are right, but all later results are
computed from different numbers. Therefore the float64 reference uses the runtime's result. It never
uses a result that depends on inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import evaluate
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, is_computed, is_float, numpy_dtype, topological
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import observing
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.derived_traits import selects

LARGEST = 1 << 22
"""The largest number of elements of a result that is compared."""
ROUNDINGS = 4096.0
"""The number of roundings of the largest element by which a result may differ without a different
decision."""


class Decisions:
    """The results of a model that depend on no input, and the runtime's values of them."""

    def __init__(self, model: Model) -> None:
        self.terms = tuple(_settled(model))
        self.model = model
        self.session: Session | None = None

    def __call__(self, inputs: Arrays, sizes: Mapping[str, int]) -> dict[Node, Any]:
        """The values, in float64, of results that the runtime decides differently."""
        asked = [n for n in self.terms if prod(evaluate(d, sizes) for d in n.shape) <= LARGEST]
        if not asked:
            return {}
        env = {
            n: EXACT.load(self.model.weights[n.attr("name")].numpy()) for n in topological(asked) if n.op == "weight"
        }
        exact = interpret(asked, EXACT, env, sizes=dict(sizes))
        try:
            there = dict(zip(self.terms, self._opened().run(inputs), strict=True))
        except TasoMirageError:
            return {}
        return {n: EXACT.load(there[n]) for n in asked if _otherwise(n, there[n], exact[n])}

    def _opened(self) -> Session:
        if self.session is None:
            self.session = Session(serialize(observing(self.model, self.terms)))
        return self.session


def _settled(model: Model) -> Iterator[Node]:
    """The last results on each path that depend on no input and are computed with floats, except
    results that depend on quantized weights."""
    open_, floats = set[Node](), set[Node]()
    users: dict[Node, list[Node]] = {}
    nodes = model.nodes()
    for node in nodes:
        if node.op in ("input", "opaque") or traits(node).quantized or any(a in open_ for a in node.args):
            open_.add(node)
        elif any(a in floats for a in node.args) or _computes(node):
            floats.add(node)
        for a in node.args:
            users.setdefault(a, []).append(node)
    for node in nodes:
        last = node in model.graph.outputs or any(u in open_ for u in users.get(node, ()))
        if node in floats and last and isinstance(node.type, Tensor) and node.type.shape is not None:
            yield node


def _computes(node: Node) -> bool:
    """Whether a term computes with floats, and does not only move them."""
    types = [a.type for a in node.args]
    return any(isinstance(t, Tensor) and is_float(t.dtype) for t in types) and not selects(node.op)


def _otherwise(node: Node, found: Any, exact: Any) -> bool:
    """Whether a result is further from float64 than rounding explains."""
    if np.shape(found) != np.shape(exact):
        return False
    if not is_computed(node.dtype):
        return not np.array_equal(found, exact)
    near, value = np.asarray(found).astype(np.float64), np.asarray(exact)
    finite = np.isfinite(near) & np.isfinite(value)
    eps = float(ml_dtypes.finfo(numpy_dtype(node.dtype)).eps)
    most = np.abs(value[finite]).max(initial=0.0)
    return bool((np.abs(near - value)[finite] > ROUNDINGS * eps * most).any())
