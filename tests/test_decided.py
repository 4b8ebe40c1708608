"""A rewrite that rounds otherwise before a quantizer is left out with a note; a wrong one is an
alarm, there too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from taso_mirage.errors import OutOfTime
from taso_mirage.measure.check import NUDGES, check_cases
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.pipeline import checking, optimize_model
from taso_mirage.report.result import Result
from taso_mirage.rewriting.text import parse_equation
from taso_mirage.search.config import Config
from taso_mirage.search.rulesets import RuleSet

X, Y, Z = (np.full(64, value, np.float32) for value in (0.78126156, -0.17359228, 0.81358284))
"""x * y + x * z is 0.5 in single precision, which is quantized to 0, and x * (y + z) the number
after it, which is quantized to 1."""
RIGHT = parse_equation("add(mul(x, y), mul(x, z)) == mul(x, add(y, z))", name="right.0", evidence="taken on trust")
WRONG = parse_equation("add(mul(x, y), mul(x, z)) == mul(x, sub(y, z))", name="wrong.0", evidence="taken on trust")
QUANTIZED = "q = QuantizeLinear(sum, one, zero) r = DequantizeLinear(q, one, zero)"


OTHER = parse_equation("neg(neg(x)) == x", name="other.0", evidence="taken on trust")


def optimized(rule: object, end: str = QUANTIZED, *others: object) -> Result:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[64] x, float[64] y, float[64] z) => (float[64] r) <float one = {{1.0}}, int8 zero = {{0}}>
    {{ a = Mul(x, y) b = Mul(x, z) sum = Add(a, b) {end} }}"""
    given = {"x": X, "y": Y, "z": Z}
    config = Config(measure=False, budget=20, rules=RuleSet((rule, *others)), inputs=(given,))
    return optimize_model(from_ir(from_proto(onnx.parser.parse_model(text))), config)


def test_a_right_rewrite_that_turns_a_decision_is_left_out_without_an_alarm() -> None:
    result = optimized(RIGHT)
    assert result.failure is None
    assert not result.changed
    (note,) = (note for note in result.notes if "right.0" in note)
    assert "turns a decision" in note
    assert "right in float64" in note


def test_the_other_rewrites_stay() -> None:
    """They were left out with it where they came after."""
    end = QUANTIZED.replace("r = ", "d = ")
    result = optimized(RIGHT, f"{end} m = Neg(d) n = Neg(m) k = Neg(n) r = Neg(k)", OTHER)
    assert result.failure is None
    assert {name for step in result.steps for name in step.equations} == {"other.0"}
    assert [n.op for n in result.model.nodes()].count("neg") == 0
    (note,) = (note for note in result.notes if "right.0" in note)
    assert "other.0" not in note
    assert "after it" not in note


def test_a_wrong_rewrite_among_others_is_an_alarm() -> None:
    """Also where one that turns a decision is found first."""
    end = f"{QUANTIZED.replace('r = ', 'd = ')} e = Sub(d, x) h = Add(e, y) r = Abs(h)"
    wrong = parse_equation("abs(add(x, y)) == abs(x)", name="wrong.0", evidence="taken on trust")
    result = optimized(RIGHT, end, wrong)
    assert result.failure is not None
    assert "wrong.0" in str(result.failure)


def test_a_wrong_rewrite_before_a_quantizer_is_an_alarm() -> None:
    result = optimized(WRONG)
    assert result.failure is not None
    assert "wrong.0" in str(result.failure)
    assert not result.changed


def test_without_a_quantizer_nothing_is_put_down_to_a_decision() -> None:
    """A rounding is no error there, and a wrong rewrite is one."""
    assert optimized(RIGHT, "r = Identity(sum)").changed
    assert optimized(WRONG, "r = Identity(sum)").failure is not None


def test_what_cannot_be_evaluated_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(FloatReference):
        def __call__(self, *_: object) -> list[object]:
            raise OutOfTime("the time is over")

    monkeypatch.setattr(checking, "FloatReference", Late)
    assert optimized(RIGHT).failure is not None


def test_what_could_not_be_checked_in_time_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantized models need more references in the check: where there is no time for them, the
    fastest candidate is not yet the choice."""

    def late(*_: object) -> None:
        raise OutOfTime("a float64 reference takes too long")

    assert optimized(RIGHT, "r = Identity(sum)").changed
    monkeypatch.setattr(checking, "compare", late)
    result = optimized(RIGHT, "r = Identity(sum)")
    assert not result.changed
    assert result.model.graph == result.original.graph
    assert any("ended in the stage 'check'" in note for note in result.notes)


def test_roundings_of_scales_move_a_reference_whose_inputs_are_whole() -> None:
    """1 over a scale of 0.4 is 2.5, which a scale that is rounded another way quantizes to 3; of
    whole numbers and integers alone nothing is rounded otherwise."""
    for scale, moved in (("0.4", True), ("2.0", False)):
        text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (int32[4] x) => (float[4] r) <float s = {{{scale}}}, int8 zero = {{0}}>
        {{ a = Cast <to = 1> (x) q = QuantizeLinear(a, s, zero) r = DequantizeLinear(q, s, zero) }}"""
        model = from_ir(from_proto(onnx.parser.parse_model(text)))
        given = {"x": np.array([1, 3, -1, 5], np.int32)}
        case = next(check_cases(model, Session(serialize(model, source=True)), {}, [given]))
        (found,) = case.moved(len(NUDGES))
        assert (found > 0.3) == moved
