"""Fusions into one operator are equal by its definition; a law of group norms has one case for all
sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taso_mirage import checker
from taso_mirage.certificates.format import texts
from taso_mirage.ir.dims import symbols
from taso_mirage.ir.terms import Node, Tensor, constant, variable
from taso_mirage.operators.ops import term
from taso_mirage.prove.definitions import same_by_definition
from taso_mirage.prove.rules.cases import Instance, cases_of
from taso_mirage.prove.rules.proofs import Proofs, proof

X, Y = (variable(n, Tensor("float16", (2, 4, 6, 64))) for n in "xy")
S, T = (variable(n, Tensor("float32", (64,))) for n in "st")
NORM: dict[str, Any] = {"groups": 8, "epsilon": 0.01}


def norm(x: Node, s: Node = S, t: Node = T, **given: Any) -> Node:
    return term("nhwc_group_norm", x, s, t, **{**NORM, "activation": 0, **given})


def silu(x: Node) -> Node:
    return term("mul", x, term("sigmoid", x))


def joined(x: Node, y: Node, activation: int = 0, index: int | None = None) -> Node:
    name = "nhwc_skip_group_norm" if index is None else "nhwc_skip_group_norm_sum"
    made = term(name, x, S, T, y, **NORM, activation=activation)
    return made if index is None else term("item", made, index=index)


SUM = term("add", X, Y)
EQUAL = [
    (norm(SUM), joined(X, Y)),
    (norm(SUM), joined(Y, X)),
    (silu(norm(SUM)), joined(X, Y, 1)),
    (silu(norm(X)), norm(X, activation=1)),
    (norm(SUM), joined(X, Y, index=0)),
    (SUM, joined(Y, X, index=1)),
]
DIFFERENT = [
    (norm(SUM), joined(X, X)),
    (norm(SUM), joined(X, Y, 1)),
    (norm(SUM), joined(X, Y, index=1)),
    (norm(SUM, T, S), joined(X, Y)),
    (norm(SUM, groups=4), joined(X, Y)),
    (norm(SUM, epsilon=0.1), joined(X, Y)),
    (norm(term("sub", X, Y)), norm(term("sub", Y, X))),
    (norm(term("mul", X, Y)), joined(X, Y)),
    (silu(norm(X)), norm(X)),
    (X, term("cast", X, to="float32")),
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_what_is_equal_by_definition_takes_one_step(left: Node, right: Node) -> None:
    assert same_by_definition([left], [right])
    for case in cases_of(Instance((left,), (right,))):
        assert proof(case.instance, 1, False) == (True, 1)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_other_terms_are_not(left: Node, right: Node) -> None:
    assert not same_by_definition([left], [right])
    assert not same_by_definition([left, left], [left, right])


def grouped(channels: int, height: int, width: int, groups: int = 8) -> Instance:
    """The law from PyTorch's group norm, at some sizes."""
    x, shape = variable("x", Tensor("float16", (2, channels, height, width))), (2, channels, height, width)
    ones, zeros = (constant(np.full(groups, v, np.float16)) for v in (1, 0))
    flat = term("reshape", x, shape=(2, groups, channels // groups * height * width))
    left = term("reshape", term("instance_norm", flat, ones, zeros, epsilon=0.01), shape=shape)
    own = [term("cast", term("expand", constant(np.float16(v)), shape=(channels,)), to="float32") for v in (1, 0)]
    last = term("transpose", x, perm=(0, 2, 3, 1))
    normal = term("nhwc_group_norm", last, *own, groups=groups, activation=0, epsilon=0.01)
    return Instance((left,), (term("transpose", normal, perm=(0, 3, 1, 2)),))


def test_group_norms_of_all_sizes_are_one_case() -> None:
    """The sides of an image may be equal, or the number of groups."""
    proofs = Proofs()
    square = [grouped(*sizes) for sizes in ((32, 4, 4), (64, 16, 16), (48, 8, 8))]
    keys = {next(cases_of(each)).key for each in square}
    assert len(keys) == 1
    for each in (*square, grouped(64, 4, 6)):
        (leaf,) = next(cases_of(each)).instance.leaves
        assert all(symbols(dim) for dim in leaf.shape)
        assert proofs.judge(each)
    assert proofs.proofs == 2


def test_groups_that_are_concatenated_are_all() -> None:
    a, b, c, d = (variable(name, Tensor("float32", (2, 2))) for name in "abcd")

    def cat(*terms: Node, axis: int = 0) -> Node:
        return term("concat", *terms, axis=axis)

    assert same_by_definition((cat(a, b, c, d),), (cat(a, cat(cat(b, c), d)),))
    for other in (cat(a, cat(c, b), d), cat(cat(a, b), cat(d, c)), cat(cat(c, d), cat(a, b))):
        assert not same_by_definition((cat(a, b, c, d),), (other,))
    rows = cat(cat(a, b, axis=1), cat(c, d, axis=1))
    assert not same_by_definition((rows,), (cat(cat(a, c), cat(b, d), axis=0),))
    assert not same_by_definition((rows,), (cat(cat(a, b), cat(c, d), axis=1),))


def test_a_proof_about_many_terms_is_about_these_sizes() -> None:
    """Each of them at a size of its own would make it long, for the checker, too."""
    leaves = [variable(f"x{i}", Tensor("float32", (2, 3))) for i in range(200)]
    groups = [term("concat", *leaves[i : i + 8], axis=1) for i in range(0, 200, 8)]
    instance = Instance((term("concat", *leaves, axis=1),), (term("concat", *groups, axis=1),))
    verdict = Proofs(None).judge(instance)
    assert verdict
    assert verdict.case.instance == instance
    assert isinstance(checker.check(*texts(instance)), checker.Accepted)
    wrong = Instance(instance.lhs, (term("concat", *groups[1:], groups[0], axis=1),))
    assert not Proofs(None).judge(wrong)
    assert not isinstance(checker.check(*texts(wrong)), checker.Accepted)
