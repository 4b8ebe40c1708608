"""A rewrite that rounds otherwise before a quantizer is left out with a note; a wrong one is an
alarm, there too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models.quantized import put
from taso_mirage.errors import InvalidOption, OutOfTime
from taso_mirage.measure import in_float64
from taso_mirage.measure.check import NUDGES, Difference, check_cases, compare
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.rounding import output_rounding, parse_rounding
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_ir, from_proto, load, serialize
from taso_mirage.pipeline import checking, optimize_model
from taso_mirage.report.data import result_data
from taso_mirage.report.html import page
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


def optimized(rule: object, end: str = QUANTIZED, *others: object, **options: Any) -> Result:
    kind = "int8" if "r = Quant" in end else "float"
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[64] x, float[64] y, float[64] z) => ({kind}[64] r) <float one = {{1.0}}, int8 zero = {{0}}>
    {{ a = Mul(x, y) b = Mul(x, z) sum = Add(a, b) {end} }}"""
    given = {"x": X, "y": Y, "z": Z}
    config = Config(measure=False, budget=20, rules=RuleSet((rule, *others)), inputs=(given,), **options)
    return optimize_model(from_ir(from_proto(onnx.parser.parse_model(text))), config)


def test_a_right_rewrite_that_turns_a_decision_is_left_out_without_an_alarm() -> None:
    result = optimized(RIGHT)
    assert result.failure is None
    assert not result.changed
    (note,) = (note for note in result.notes if "right.0" in note)
    assert "changes a decision" in note
    assert "right in float64" in note


def test_the_other_rewrites_stay() -> None:
    """The later rewrites were left out together with a wrong one."""
    end = QUANTIZED.replace("r = ", "d = ")
    result = optimized(RIGHT, f"{end} m = Neg(d) n = Neg(m) k = Neg(n) r = Neg(k)", OTHER)
    assert result.failure is None
    assert {name for step in result.steps for name in step.equations} == {"other.0"}
    assert [n.op for n in result.model.nodes()].count("neg") == 0
    (note,) = (note for note in result.notes if "right.0" in note)
    assert "other.0" not in note
    assert "after it" not in note


def test_other_places_of_the_rule_stay() -> None:
    """The other places of the rule differ in their surroundings: it turns no decision there."""
    end = f"{QUANTIZED.replace('r = ', 'd = ')} k = Abs(z) e = Mul(k, d) h = Mul(k, y) r = Add(e, h)"
    result = optimized(RIGHT, end)
    assert result.failure is None
    assert result.equations == {"right.0": 1}
    assert any("left out: 'right.0' in 1 of 2 places" in note for note in result.notes)


def test_a_wrong_rewrite_among_others_is_an_alarm() -> None:
    """The order does not matter: a rewrite that turns a decision may be found first."""
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

    monkeypatch.setattr(in_float64, "FloatReference", Late)
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


# ---------------------------------------------------------------- roundings that are allowed


def rounded(allowed: str, rule: object = RIGHT, end: str = QUANTIZED, *others: object) -> Result:
    return optimized(rule, end, *others, allow_rounding=parse_rounding(allowed))


def test_what_turns_a_decision_is_let_through_where_that_is_allowed() -> None:
    """0.5 and the number after it are quantized to 0 and 1: one step, for all elements; the range
    of the output is 0, so the least of other inputs counts."""
    result = rounded("1", RIGHT, "r = QuantizeLinear(sum, one, zero)")
    assert result.failure is None
    assert [n.op for n in result.model.nodes()].count("mul") == 1
    assert result.let_through is not None
    assert result.let_through.rules == ("right.0",)
    (found,) = result.let_through.outputs
    assert (found.output, found.step, found.steps, found.elements, found.size) == ("r", 1.0, 1.0, 64, 64)
    assert all(d.passed for d in result.differences)
    (note,) = (note for note in result.notes if "right.0" in note)
    assert 'accepted by allow_rounding="1"' in note
    assert "1 quantization steps" in note


def test_what_moves_an_output_further_than_that_is_left_out() -> None:
    result = rounded("0.5", RIGHT, "r = QuantizeLinear(sum, one, zero)")
    assert result.failure is None
    assert result.let_through is None
    assert not result.changed
    (note,) = (note for note in result.notes if "right.0" in note)
    assert 'allow_rounding="0.5" allows less' in note


def test_steps_of_floats_are_a_255th_of_their_range() -> None:
    """The step is 0.78, and one turned decision moves the results by 1."""
    end = f"{QUANTIZED.replace('r = ', 'd = ')} r = Sub(d, x)"
    steps = 255 / float(X[0])
    assert rounded(f"{steps - 0.1}", RIGHT, end).let_through is None
    found = rounded(f"{steps + 0.1}", RIGHT, end).let_through
    assert found is not None
    assert found.outputs[0].steps == pytest.approx(steps)


def test_where_rules_are_named_these_alone_are_let_through() -> None:
    end = "r = QuantizeLinear(sum, one, zero)"
    assert rounded("1:right.*", RIGHT, end, OTHER).let_through is not None
    result = rounded("1:other.0", RIGHT, end, OTHER)
    assert result.let_through is None
    assert not result.changed
    (note,) = (note for note in result.notes if "right.0" in note)
    assert 'allow_rounding="1:other.0" does not name it' in note
    with pytest.raises(InvalidOption, match=r"no rule is named 'rigth\.0'"):
        rounded("1:rigth.0", RIGHT, end)


@pytest.mark.parametrize("allowed", ["1", "1000000"])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_wrong_is_an_alarm_however_much_is_allowed(allowed: str, first: bool) -> None:
    """A zero that is one off moves results by one step; it is not right in float64."""
    wrong = parse_equation(
        "quantize(abs(abs(x)), s, z, dtype=d, **a) == quantize(abs(x), s, cast(add(cast(z, to='int32'), 1), to='int8'), dtype=d, **a)",
        name="wrong.0",
        evidence="taken on trust",
    )
    end = "h = Abs(sum) k = Abs(h) r = QuantizeLinear(k, one, zero)"
    rules = (wrong, RIGHT) if first else (RIGHT, wrong)
    result = rounded(allowed, rules[0], end, *rules[1:])
    assert result.failure is not None
    assert "wrong.0" in str(result.failure)
    assert result.let_through is None
    assert "wrong.0" not in {name for step in result.steps for name in step.equations}


def test_without_a_turned_decision_the_option_changes_nothing() -> None:
    with_it, without = rounded("1", RIGHT, "r = Identity(sum)"), optimized(RIGHT, "r = Identity(sum)")
    assert with_it.model.graph == without.model.graph
    assert with_it.differences == without.differences
    assert with_it.let_through is None


def test_what_was_let_through_is_in_the_data_and_on_the_page() -> None:
    result = rounded("1", RIGHT, "r = QuantizeLinear(sum, one, zero)")
    said = json.loads(json.dumps(result_data(result, Path("m.onnx"), ())))["let_through"]
    assert said["rules"] == ["right.0"]
    assert said["allowed"] == {"steps": 1.0, "rules": []}
    assert said["outputs"][0] | {"case": ""} == {
        **{"case": "", "output": "r", "against": "float64"},
        **{"step": 1.0, "steps": 1.0, "elements": 64, "size": 64},
    }
    shown = page(result, (), Path("m.onnx"), (), (), {})
    assert "accepted right.0" in shown
    assert result_data(optimized(RIGHT), Path("m.onnx"), ())["let_through"] is None


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "one", "1:", "1: ,"])
def test_what_is_no_number_of_steps_is_an_error(text: str) -> None:
    with pytest.raises(InvalidOption, match="no number of quantization steps above 0"):
        parse_rounding(text)
    assert str(parse_rounding("0.5: add.3 ,conv.*")) == "0.5:add.3,conv.*"


def test_counts_and_shapes_have_no_steps() -> None:
    """A position that differs is no rounding; nor is a result that is not finite."""
    found = Difference("a case", "y", np.inf, 0.0, 0.0)
    for new, old in (
        (np.array([3], np.int64), np.array([4], np.int64)),
        (np.array([3], np.int8), np.array([3], np.uint8)),
        (np.zeros(2, np.int8), np.zeros(3, np.int8)),
        (np.array([np.nan], np.float32), np.array([0.0])),
    ):
        assert output_rounding(found, "a case", new, old).steps == np.inf
    off = output_rounding(found, "a case", np.array([3, 7, 9], np.uint8), np.array([3, 8, 7], np.uint8))
    assert (off.step, off.steps, off.elements, off.size) == (1.0, 2.0, 2, 3)


def test_what_comes_later_is_compared_with_what_was_let_through() -> None:
    """Kernels have no share in the steps that are allowed."""
    result = rounded("1", RIGHT, "r = QuantizeLinear(sum, one, zero)")
    assert all(d.passed for d in compare(result.original, Session(serialize(result.model)), result.cases))
    original = Session(serialize(result.original, source=True))
    assert not all(d.passed for d in compare(result.original, original, result.cases))


@pytest.fixture(scope="module")
def bert(shared: Path) -> Path:
    return put("bert_qdq", shared / "quantized", small=True)[0]


WEIGHTS = "dequantize(quantize(softmax({}, axis=i), u, k, **a), u, {}, **b)"
"""The weights of an attention, in QDQ."""
COARSE = WEIGHTS.format("add(s, 65536)", "k")
"""Right in float64; in single precision the sum has lost all digits below 1 / 128."""
OFF = WEIGHTS.format("s", "cast(sub(cast(k, to='int32'), 1), to='int8')")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("after", "allowed", "ends"),
    [
        (COARSE, "20", "accepted"),
        pytest.param(COARSE, "1", "left out", marks=pytest.mark.slow),
        (COARSE, None, "left out"),
        (OFF, "1000", "the check failed"),
    ],
)
def test_bert_with_a_softmax_that_rounds_otherwise(bert: Path, after: str, allowed: str | None, ends: str) -> None:
    before = WEIGHTS.format("s", "k")
    rule = parse_equation(f"where(isnan({before}), c, {before}) == {after}", name="softmax.9", evidence="trusted")
    rounding = None if allowed is None else parse_rounding(allowed)
    config = Config(measure=False, budget=30, rules=RuleSet((rule,)), allow_rounding=rounding)
    result = optimize_model(load(bert), config)
    (note,) = (note for note in result.notes if "softmax.9" in note)
    assert note.startswith(ends)
    assert (result.failure is not None) == (ends == "the check failed")
    assert result.changed == (result.let_through is not None) == (ends == "accepted")
    if result.let_through is not None:
        (found,) = result.let_through.outputs
        assert 1 < found.steps < 20
        assert 0 < found.elements <= found.size
        assert f"{found.steps:.3g} quantization steps" in note


def test_an_equal_form_that_the_runtime_computes_in_integers_is_let_through() -> None:
    """ONNX Runtime has a quantized softmax, which is a step off now and then; for values that
    several operators read in uint8 alone."""
    signed = "dequantize(quantize(x, s, z, dtype='int8', **a), s, z, **b)"
    unsigned = "dequantize(quantize(x, s, {z}, dtype='uint8', **a), s, {z}, **b)".format(
        z="cast(add(cast(z, to='int32'), 128), to='uint8')"
    )
    text = f"add(abs(neg({signed})), {signed}) == add(abs({unsigned}), {unsigned})"
    rule = parse_equation(text, name="unsigned.0", evidence="taken on trust")
    model = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[400, 33] x) => (float[400, 33] r)
    <float s = {0.03}, uint8 z = {133}, float t = {0.0039}, int8 u = {-128}>
    { a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = Softmax <axis = -1> (b)
      d = QuantizeLinear(c, t, u) e = DequantizeLinear(d, t, u) f = Neg(e) h = Abs(f) r = Add(h, e) }"""
    config = Config(measure=False, budget=30, rules=RuleSet((rule,)), allow_rounding=parse_rounding("2.5"))
    result = optimize_model(from_ir(from_proto(onnx.parser.parse_model(model))), config)
    assert result.let_through is not None
    assert result.let_through.rules == ("unsigned.0",)
    assert all(0 < each.elements < 0.03 * each.size for each in result.let_through.outputs)
