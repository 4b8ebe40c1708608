"""Patches between a model and one whose convolutions keep their channels last."""

from __future__ import annotations

import numpy as np
import pytest

from taso_mirage.ir.terms import Node, Tensor, topological, variable, weight
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.patches import Patch, patches
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term

DEPTH, LAST, FIRST = 4, (0, 2, 3, 1), (0, 3, 1, 2)
WINDOWS = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
X = variable("x", Tensor("float32", (2, 3, 5, 6)))
WEIGHTS = [weight(f"w{i}", Tensor("float32", (3, 3, 3, 3))) for i in range(DEPTH)]


def turned(x: Node, perm: tuple[int, ...]) -> Node:
    return term("transpose", x, perm=perm)


def last(x: Node, w: Node) -> Node:
    """A convolution of data with channels last, by the one with channels first."""
    return term("nhwc_conv", x, turned(w, LAST), **WINDOWS)


def models(wrong: int | None = None) -> tuple[list[Node], list[Node], dict[Node, Node]]:
    """The outputs of a chain of convolutions, those with channels last, and the claims; one of them
    may forget a function."""
    x, y = X, turned(X, LAST)
    claims: dict[Node, Node] = {}
    for i, w in enumerate(WEIGHTS):
        x, y = term("conv", x, w, **WINDOWS), last(y, w)
        claims[x] = turned(y, FIRST)
        x = term("tanh", x)
        y = y if wrong == i else term("tanh", y)
        claims[x] = turned(y, FIRST)
    return [x], [turned(y, FIRST)], claims


def values(terms: tuple[Node, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    leaves = {n: rng.normal(size=n.shape) for n in topological(terms) if not n.args}
    found = interpret(list(terms), EXACT, leaves)
    return [found[n] for n in terms]


def equal(patch: Patch) -> bool:
    found = values((*patch.before, *patch.after))
    half = len(patch.before)
    return all(np.allclose(a, b) for a, b in zip(found[:half], found[half:], strict=True))


def test_each_convolution_is_a_patch_of_its_own() -> None:
    found = patches(*models())
    assert len(found) >= DEPTH
    assert max(len(topological(each.before)) for each in found) <= 6
    assert all(equal(each) for each in found)


@pytest.mark.parametrize("wrong", range(DEPTH))
def test_a_forgotten_function_is_wrong_in_its_patch_alone(wrong: int) -> None:
    found = patches(*models(wrong))
    assert [equal(each) for each in found].count(False) == 1
