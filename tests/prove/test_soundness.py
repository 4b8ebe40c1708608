"""A rule applies only where its proof holds: the false cases of rules that were shipped, and the
typings of a stranger."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import taso_mirage
from taso_mirage.errors import IllTyped
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Node, Tensor, constant, variable, weight
from taso_mirage.measure.session import Session
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.examine import refuted
from taso_mirage.prove.rules.fuzz import Typing
from taso_mirage.prove.rules.proofs import Coverage, Proofs
from taso_mirage.rewriting.equation import Equation, Match, apply_equation
from taso_mirage.rewriting.index import Application, Rules
from taso_mirage.rewriting.text import parse_equation
from taso_mirage.verdicts import Failure

F = "float32"


def x(name: str, *shape: Any, dtype: str = F) -> Node:
    return variable(name, Tensor(dtype, tuple(symbol(d) if isinstance(d, str) else d for d in shape)))


def applied(text: str, **names: Any) -> Application:
    """An equation at terms that its variables stand for; it must have a type there."""
    equation = parse_equation(text, evidence="library")
    from taso_mirage.rewriting.equation import instantiate

    like = next(v.dtype for v in names.values() if isinstance(v, Node))
    lhs = instantiate(equation.lhs, names, like)
    operands = {n: v for n, v in names.items() if isinstance(v, Node)}
    found = Match(lhs, operands, {n: v for n, v in names.items() if n not in operands})
    results = apply_equation(equation, found)
    assert not isinstance(results, Failure), results.reason
    return Application(equation, found, results)


CONCAT_1503 = (
    "mul(concat(x, y, axis=i), concat(expand(1.0, shape=s), z, axis=i)) == concat(x, mul(z, y), axis=i) "
    "where rank(x) == 4 and rank(y) == 4 and rank(z) == 4"
)
SLICE_1391 = (
    "transpose(reshape(slice(concat(x, y, axis=i), starts=(0,), ends=e, axes=(i,), steps=(1,)), shape=s), perm=p) == "
    "slice(transpose(reshape(concat(y, x, axis=i), shape=(dim(y, 0), dim(y, 1), 4, s[3])), perm=p), starts=(2,), "
    "ends=(4,), axes=(inverse(p)[i],), steps=(1,)) where rank(x) == 3 and rank(y) == 3"
)
HEADS_7119 = (
    "multi_head_attention(x, y, z, concat(w, v, u, axis=0), **a) == "
    "multi_head_attention(add(x, w), add(y, w), add(z, u), **a)"
)
ATTENTION = (("num_heads", 2), ("scale", 0.5), ("unidirectional", 0))
P = (0, 2, 1, 3)
FALSE: dict[str, tuple[str, dict[str, Any]]] = {
    "taso.mul_to_concat.1503: cut elsewhere": (
        CONCAT_1503,
        {"x": x("x", 2, 2, 2, 2), "y": x("y", 2, 2, 2, 2), "z": x("z", 2, 1, 2, 2), "i": 1, "s": (2, 3, 2, 2)},
    ),
    "attention.transpose_to_slice.1391: parts of other lengths": (
        SLICE_1391,
        {"x": x("x", 1, 1, 3), "y": x("y", 1, 1, 1), "i": 2, "e": (2,), "s": (1, 1, 2, 1), "p": P},
    ),
    "attention.7119: biases of other lengths": (
        HEADS_7119,
        {
            "x": x("x", 1, 3, 2),
            "y": x("y", 1, 3, 2),
            "z": x("z", 1, 3, 2),
            "w": x("w", 1),
            "v": x("v", 3),
            "u": x("u", 2),
            "a": ATTENTION,
        },
    ),
    "broadcasting: a sum of concatenations": (
        "concat(add(x, y), add(z, w), axis=0) == add(concat(x, z, axis=0), concat(y, w, axis=0))",
        {"x": x("x", 2, 2), "y": x("y", 1), "z": x("z", 2, 2), "w": x("w", 1)},
    ),
    "signs: a slope below zero": ("relu(leaky_relu(x, alpha=a)) == relu(x)", {"x": x("x", 4), "a": -0.5}),
    "integers: a difference that wraps": ("max(x, sub(x, 1)) == x", {"x": x("x", 4, dtype="uint8")}),
    "integers: a conversion that narrows": (
        "cast(cast(x, to='int8'), to='int64') == x",
        {"x": x("x", 4, dtype="int64")},
    ),
    "dtypes: half of one is none": (
        "max(x, y) == mul(add(add(x, y), abs(sub(x, y))), 0.5)",
        {"x": x("x", 4, dtype="int64"), "y": x("y", 4, dtype="int64")},
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_rule_does_not_apply_where_it_is_false(name: str) -> None:
    text, names = FALSE[name]
    application = applied(text, **names)
    verdict = Proofs().of(application)
    assert not verdict
    typing = Typing(application.found.outputs, application.results, names)
    assert refuted(typing) is not None, "numbers show that it is false there"
    assert Rules([application.equation], Proofs()).applications(application.found.outputs[0]) == ()


@pytest.mark.parametrize(
    "text",
    [
        "mul(x, 0) == expand(0, shape=shape(x))",
        "sub(x, x) == expand(0, shape=shape(x))",
        "add(x, sub(y, x)) == y",
        "add(sub(z, x), sub(x, y)) == sub(z, y)",
        "max(y, min(x, y)) == y",
        "clip(min(x, 2), 3) == expand(3, shape=shape(x))",
    ],
)
def test_an_operand_that_may_be_no_number_is_not_dropped(text: str) -> None:
    for dtype, expected in ((F, False), ("int64", True)):
        names = {each: x(each, 4, dtype=dtype) for each in "xyz" if f"({each}" in text or f" {each}" in text}
        application = applied(text, **names)
        assert Proofs().of(application), "it is proved over the reals"
        assert bool(Rules([application.equation], Proofs()).applications(application.found.outputs[0])) is expected
    known = applied(text, **{**names, "x": constant(np.ones(4, F)), **{n: x(n, 4) for n in names if n != "x"}})
    assert Proofs()(known), "a constant is a number"


def test_no_value_that_is_none_becomes_a_number() -> None:
    """The exponential of 1000 is infinite, so each output is NaN."""
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[4] x, float[4] y) => (float[4] a, float[4] b, float[4] c)
        <float zero = {0}> { l = Exp(x) a = Mul(l, zero) b = Sub(l, l) d = Sub(y, l) c = Add(l, d) }"""
    )
    made = taso_mirage.optimize(proto, effort="quick", measure=False)
    outputs = Session(made.SerializeToString()).run({"x": np.full(4, 1000, F), "y": np.ones(4, F)})
    assert np.isnan(outputs).all()


TRUE: dict[str, tuple[str, dict[str, Any]]] = {
    "taso.mul_to_concat.1503": (
        CONCAT_1503,
        {"x": x("x", 2, 3, 2, 2), "y": x("y", 2, 4, 2, 2), "z": x("z", 2, 4, 2, 2), "i": 1, "s": (2, 3, 2, 2)},
    ),
    "attention.transpose_to_slice.1391": (
        SLICE_1391,
        {"x": x("x", 5, 7, 6), "y": x("y", 5, 7, 6), "i": 2, "e": (6,), "s": (5, 7, 2, 3), "p": P},
    ),
    "a slope above zero": ("relu(leaky_relu(x, alpha=a)) == relu(x)", {"x": x("x", 4), "a": 0.5}),
    "integers that wrap alike": (
        "add(sub(x, y), y) == x",
        {"x": x("x", 4, dtype="int8"), "y": x("y", 4, dtype="int8")},
    ),
    "a dynamic dim": ("neg(neg(x)) == x", {"x": x("x", "batch", 4)}),
}


@pytest.mark.parametrize("name", TRUE)
def test_the_same_rules_apply_where_they_are_true(name: str) -> None:
    text, names = TRUE[name]
    verdict = Proofs().of(applied(text, **names))
    assert verdict.covers is Coverage.EVERY
    assert verdict.case.instance.letters


def test_a_case_is_proved_once_and_kept(tmp_path: Any) -> None:
    application = applied("relu(relu(x)) == relu(x)", x=x("x", 3, 5))
    first = Proofs(tmp_path / "proofs.sqlite")
    assert first.of(application)
    assert first.proofs == 1
    assert first.of(applied("relu(relu(x)) == relu(x)", x=x("x", 7, 9)))
    assert (first.asked, first.proofs) == (2, 1)  # other sizes, the same case
    first.close()
    again = Proofs(tmp_path / "proofs.sqlite")
    assert again.of(application)
    assert again.proofs == 0


def test_a_verdict_of_another_prover_is_not_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from taso_mirage.prove.rules import proofs

    path = tmp_path / "proofs.sqlite"
    application = applied("relu(relu(x)) == relu(x)", x=x("x", 3, 5))
    kept = Proofs(path)
    assert kept.of(application)
    kept.close()
    monkeypatch.setattr(proofs, "prover", lambda: "another")
    other = Proofs(path)
    assert other.of(application)
    assert other.proofs == 1


def test_a_dim_that_may_be_empty_is_proved_empty_too() -> None:
    """A mean over nothing is no number on either side, but a maximum over nothing is not zero."""
    verdict = Proofs().of(
        applied(
            "relu(reduce_max(relu(x), axes=(0,), keepdims=0)) == reduce_max(relu(x), axes=(0,), keepdims=0)",
            x=x("x", "n", 4),
        )
    )
    fixed = Proofs().of(
        applied(
            "relu(reduce_max(relu(x), axes=(0,), keepdims=0)) == reduce_max(relu(x), axes=(0,), keepdims=0)",
            x=x("x", 3, 4),
        )
    )
    assert fixed
    assert not verdict
    assert "0" in verdict.why


def test_an_operand_without_a_rank_has_no_proof() -> None:
    unknown = variable("x", Tensor(F, None))
    equation: Equation = parse_equation("relu(relu(x)) == relu(x)")
    node = Node("relu", (Node("relu", (unknown,), (), Tensor(F, None)),), (), Tensor(F, None))
    application = Application(equation, Match((node,), {"x": unknown}, {}), (node.args[0],))
    assert not Proofs().of(application)


def test_a_constant_is_read_where_the_guard_asks_for_it() -> None:
    text = "mul(relu(x), c) == relu(mul(x, c)) where value(c) > 0"
    assert Proofs().of(applied(text, x=x("x", 3), c=constant(2.0, F)))
    bounded = Proofs().of(
        applied("reduce_sum(x, axes=(0,), keepdims=0) == reduce_sum(x, axes=(0,), keepdims=0)", x=x("x", 3))
    )
    assert bounded.covers in (Coverage.EVERY, Coverage.HERE)


def test_a_number_of_a_pattern_may_be_a_constant_of_any_shape() -> None:
    """attention.add_to_add.4418: the constant's own shape makes a matrix of the vector that it is
    multiplied with."""
    equation = parse_equation(
        "add(x, matmul(y, mul(z, 2.0))) == add(add(x, matmul(y, z)), matmul(y, z))", evidence="library"
    )
    for shape, right in (((), True), ((2, 2), False)):
        twice = term("mul", x("z", 2), constant(np.full(shape, 2.0, np.float32)))
        top = term("add", x("x", 1, 2), term("matmul", x("y", 2), twice))
        assert bool(Rules([equation], Proofs()).applications(top)) is right
        assert Rules([equation]).applications(top)


def test_positions_that_only_a_run_tells_are_gathered() -> None:
    """The runtime's own rotary embedding ends with an error at -1, and where a sequence is longer
    than the table, both of which a gather takes. One that has such positions ends so before."""
    law = "rotary_embedding(x, gather(y, z, axis=0), gather(w, z, axis=0), **a) == rotary_embedding(x, y, w, z, **a)"
    head, table, seen = x("x", 1, 2, "s", 8), x("y", 16, 4), x("z", 1, "s", dtype="int64")
    attributes = {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0}

    def gathered(head: Node, positions: Node) -> Node:
        angles = term("gather", table, positions, axis=0)
        return term("rotary_embedding", head, angles, angles, **attributes)

    fixed = x("x", 1, 2, 3, 8)
    known = weight("z", Tensor("int64", (1, 3)))
    assert not Rules([parse_equation(law)]).applications(gathered(head, seen))
    assert Rules([parse_equation(law)]).applications(gathered(fixed, known))
    moved = "rotary_embedding(x, y, w, z, **a) == contrib_rotary_embedding(x, z, y, w, **a)"
    assert Rules([parse_equation(moved)]).applications(term("rotary_embedding", head, table, table, seen, **attributes))


# ---------------------------------------------------------------- the shipped rules

SHIPPED = json.loads((Path(__file__).parents[1] / "equations" / "shipped.json").read_text())
"""Rules and laws of version 0.1 with a typing that their guards admitted and on which they are
false, found by `stranger.py`."""


def instance(row: dict[str, Any]) -> Application:
    names: dict[str, Any] = {name: ast.literal_eval(text) for name, text in row["attributes"].items()}
    for name, text in row["types"].items():
        dtype, _, dims = text.removesuffix("]").partition("[")
        names[name] = x(name, *(int(d) for d in dims.split(",") if d.strip()), dtype=dtype)
    return applied(row["equation"].partition(" where ")[0], **names)


@pytest.mark.parametrize("row", SHIPPED, ids=lambda row: row["name"])
def test_shipped_rules_do_not_apply_where_they_are_false(row: dict[str, Any]) -> None:
    try:
        application = instance(row)
    except IllTyped:  # the runtime computes something else there than any definition
        assert row["name"].startswith("attention.multi_head_attention")
        return
    assert not Proofs().of(application)
