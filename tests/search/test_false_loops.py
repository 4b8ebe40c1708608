"""False laws of loops: the models of `bench/recurrent_models.py` beside loops that differ from them
in one thing, generated from their terms. No induction proves one of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import onnx
import onnx.parser
import pytest
from false_loops import other, variants
from loop_models import loop, results
from scripts import script

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Graph, Node, substitute
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.loops.inductions import equal_loops

STEPS = 3
SMALL = {"HEADS": 2, "KEYS": 3, "VALUES": 4, "WIDTH": 4, "HIDDEN": 4}
RECURRENT = script("recurrent_models")
NAMES = (*RECURRENT.RULES, "minGRU", "selective scan", "LSTM", "GRU")


@cache
def right(name: str) -> Node:
    """The loop of a model at small sizes."""
    with pytest.MonkeyPatch.context() as patch:
        for size, n in SMALL.items():
            patch.setattr(RECURRENT, size, n)
        proto = onnx.parser.parse_model(f"{RECURRENT.HEADER}\n{RECURRENT.MODELS[name](STEPS)}")
    (first, *_) = loop(proto).outputs
    return first.args[0]


def values(node: Node, name: str) -> list[np.ndarray]:
    """The results of a loop on inputs of the right one."""
    rng = np.random.default_rng(0)
    given = {leaf: random_array(leaf, rng, {}) for leaf in right(name).args}
    return [*interpret(results(node), REALS, given).values()]


def false_laws(name: str) -> Iterator[tuple[str, Node]]:
    """The variants that compute something else."""
    wanted = values(right(name), name)
    for said, node in variants(right(name)):
        try:
            found = values(node, name)
        except TasoMirageError:
            continue
        if any(a.shape != b.shape or abs(a - b).max() > 1e-6 for a, b in zip(found, wanted, strict=True)):
            yield said, node


def proved(node: Node, made: Node) -> bool:
    """Whether all results of two loops are proved to be equal."""
    places = {i: i for i in range(len(results(node)))}
    return equal_loops(node, made, places, node.args, Proofs(None)) is not None


@pytest.mark.sampled(3)
def test_there_are_two_hundred_false_laws() -> None:
    assert sum(len({node for _, node in false_laws(name)}) for name in NAMES) >= 200


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_no_false_law_of_a_loop_is_proved(name: str) -> None:
    laws = list(false_laws(name))
    assert len(laws) >= 15
    assert [said for said, node in laws if proved(right(name), node)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_true_law_of_a_loop_is_proved(name: str) -> None:
    """A state whose double is halved in every step."""
    body, states = right(name).attr("body"), right(name).attr("states")
    halves = {s: term("sub", term("add", s, s), s) for s in body.inputs[:states]}
    assert proved(right(name), other(right(name), body=Graph(body.inputs, substitute(body.outputs, halves))))
