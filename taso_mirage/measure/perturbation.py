"""The effect of roundings on a model's outputs, measured by runs in the runtime (Monte Carlo
arithmetic, Parker 1997). This replaces `reference.RoughReference` for models whose float64
evaluation takes too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Shape
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, is_computed, numpy_dtype, topological, variable, with_args
from taso_mirage.measure.magnitudes import largest_distance, rounds
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session, open_in_child
from taso_mirage.measure.target import Target
from taso_mirage.onnx_io.build import excerpt
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term, traits
from taso_mirage.rewriting.derived_traits import selects

PARTS = 1.0, 16.0
"""The numbers of roundings by which each result is changed. From the first to the second, the
change of an output must grow in the same proportion, within SMOOTH; otherwise it is a jump, caused
by a decision."""
SMOOTH = 4.0
SEEDS = (1, 2)
VARIANTS = 4
"""The number of different sets of signs of one size that meet the results of that size, in turn."""


class Perturbed:
    """A model in which every result of floats is multiplied by numbers that are inputs: 1, but for
    some roundings of its dtype, of either sign."""

    def __init__(self, model: Model, target: Target) -> None:
        self.model, self.target = model, target
        self.decides = any(traits(n).decides for n in model.nodes() if n.args)
        self.signs: dict[tuple[str, Shape, int], Node] = {}
        self.session: Session | None = None

    def __call__(self, inputs: Arrays, outputs: Sequence[Any]) -> list[float]:
        """The change of each output by a rounding of all results. It is 0 if the output jumps,
        except in a model that quantizes, whose decisions depend on roundings, and 0 if the runtime
        rejects the changed model."""
        try:
            near, far = (self._moved(inputs, outputs, part) for part in PARTS)
        except TasoMirageError:
            return [0.0] * len(outputs)
        steps = PARTS[1] / PARTS[0]
        right = [self.decides or steps / SMOOTH * a <= b <= steps * SMOOTH * a for a, b in zip(near, far, strict=True)]
        return [a if smooth else 0.0 for a, smooth in zip(near, right, strict=True)]

    def _moved(self, inputs: Arrays, outputs: Sequence[Any], part: float) -> list[float]:
        session = self._opened()
        found = [0.0] * len(outputs)
        for seed in SEEDS:
            given = {node.attr("name"): _factors(node, seed, part) for node in self.signs.values()}
            new = session.run({**inputs, **given})
            found = [max(most, _apart(a, b)) for most, a, b in zip(found, new, outputs, strict=True)]
        return found

    def _opened(self) -> Session:
        if self.session is None:
            self.session = open_in_child(self._perturbed(), self.target)
        return self.session

    def _perturbed(self) -> Model:
        graph, done = self.model.graph, dict[Node, Node]()
        count = 0
        for node in topological(graph.outputs):
            done[node] = node if is_weight(node) else with_args(node, tuple([done[a] for a in node.args]))
            if _computes(node):
                done[node] = term("mul", done[node], self._sign(node, count))
                count += 1
        inputs = (*graph.inputs, *self.signs.values())
        return excerpt(self.model, Graph(inputs, tuple([done[o] for o in graph.outputs])))

    def _sign(self, node: Node, count: int) -> Node:
        """The factor of a result: one for each element of its last axis, if its size is known."""
        last = tuple(d if isinstance(d, int) else 1 for d in node.shape[-1:])
        key = (node.dtype, last, count % VARIANTS)
        if key not in self.signs:
            self.signs[key] = variable(f"perturbation_{len(self.signs)}", Tensor(node.dtype, last))
        return self.signs[key]


def _computes(node: Node) -> bool:
    """Whether a term's result is rounded."""
    known = isinstance(node.type, Tensor) and node.type.shape is not None and is_computed(node.type.dtype)
    return bool(node.args) and known and not is_weight(node) and not selects(node.op)


def _factors(node: Node, seed: int, part: float) -> Any:
    dtype = numpy_dtype(node.dtype)
    rng = np.random.default_rng([seed, int(node.attr("name").rpartition("_")[2])])
    signs = rng.choice((-1.0, 1.0), [int(n) for n in node.shape])
    return (1 + part * float(ml_dtypes.finfo(dtype).eps) * signs).astype(dtype)


def _apart(new: Any, old: Any) -> float:
    if not rounds(old) or not isinstance(new, np.ndarray) or new.shape != old.shape:
        return 0.0
    return largest_distance(new, old)
