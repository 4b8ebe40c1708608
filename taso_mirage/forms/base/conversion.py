"""The conversion of a model's operators to terms of forms, with weights in the order in which
kernels load them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.model import TurnedWeight, Weight
from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_constant, is_named_weight, weight
from taso_mirage.operators.expressions import uniform_value


@dataclass(slots=True)
class Conversion:
    """The converted terms of a model so far: `done`, by the model's own terms.

    `originals`: the model's weight by the term, over the weights of forms, that stands for it.
    `biases`: the model's bias by the term that is added in its place.
    """

    weights: dict[str, Weight]
    done: dict[Node, Node] = field(default_factory=dict)
    originals: dict[Node, Node] = field(default_factory=dict)
    biases: dict[Node, Node] = field(default_factory=dict)

    def weight(
        self, what: str, array: NDArray[np.generic], of: Node, stands_for: Callable[[Node], Node | None]
    ) -> Node:
        """A weight in the order in which a kernel loads it, with a unique name; the model may
        contain any name, and one weight may occur in two orders."""
        name = of.op if is_constant(of) else of.attr("name")
        made = weight(f"{what}_{name}", Tensor(of.dtype, array.shape))
        while (name := made.attr("name")) in self.weights and stands_for(made) != of:
            made = weight(f"{name}_", made.tensor)
        self.weights[name] = TurnedWeight(array)
        return made


def known_bias(b: Node) -> Node | None:
    """A bias that is known before the model runs, otherwise None; ABSENT for a bias of zeros, which
    PyTorch's exporter writes if there is none."""
    if uniform_value(b) == 0:
        return ABSENT
    return b if b is ABSENT or is_constant(b) or is_named_weight(b) else None


def stored_array(node: Node, weights: Mapping[str, Weight]) -> NDArray[np.generic]:
    """The array of a stored weight, or of a constant."""
    value: NDArray[np.generic] = node.attr("value").numpy() if is_constant(node) else weights[node.attr("name")].numpy()
    return value
