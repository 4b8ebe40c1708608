"""The oracle refutes every equation of the false lists and none of the true list, and agrees with
ONNX's own reference."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from stranger import Counterexample, examine, inputs, instances, legal, refute

from taso_mirage.ir.terms import Tensor, topological, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.pairs import models
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.library import Rule, read

pytestmark = pytest.mark.sampled(3, together=True)

FOLDER = Path(__file__).parents[1] / "equations"
FALSE = {
    "broadcasting": 34,
    "signs": 34,
    "integers": 34,
    "dtypes": 34,
    "vectors": 34,
    "smaller": 30,
}
DRAWS = 3000
"""The rarest counterexample is found within a third of these."""


@cache
def rules(name: str) -> tuple[Rule, ...]:
    return read(FOLDER / f"{name}.toml")


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "least"), FALSE.items())
def test_every_false_equation_is_refuted(name: str, least: int, step: int) -> None:
    """By default each third one of a kind."""
    found = rules(f"false_{name}")
    assert len(found) >= least
    found = found[::step]
    assert [r.name for r in found if refute(r, draws=DRAWS) is None] == []


@pytest.mark.parametrize("draws", [DRAWS // 6, pytest.param(DRAWS, marks=pytest.mark.slow)])
def test_what_the_runtime_rounds_is_left_alone(draws: int) -> None:
    """False of integers alone, where no equation moves a term onto or off a kernel of the runtime
    that rounds."""
    found = rules("kept_off")
    assert len(found) == 4
    assert [r.name for r in found if refute(r, draws=draws) is not None] == []


def test_no_true_equation_is_refuted_in_a_few_draws() -> None:
    assert len(rules("true")) >= 120
    _not_refuted(15)


def test_no_true_equation_of_scalars_is_refuted_in_a_few_draws() -> None:
    for rule in rules("true_scalars")[::6]:
        found = examine(rule, draws=12)
        assert found.counterexample is None, f"{rule.name}\n{found.counterexample}"


@pytest.mark.slow
def test_no_true_equation_is_refuted() -> None:
    _not_refuted(2000)


def _not_refuted(draws: int) -> None:
    for rule in rules("true"):
        found = examine(rule, draws=draws)
        assert found.counterexample is None, f"{rule.name}\n{found.counterexample}"
        assert found.runs >= draws / 3, f"{rule.name}: {found.instances} instances, {found.runs} runs"


def test_equations_and_names_are_different() -> None:
    every = [r for path in sorted(FOLDER.glob("*.toml")) for r in read(path)]
    assert len({r.name for r in every}) == len(every)
    assert len({(r.equation.lhs, r.equation.rhs, r.equation.where) for r in every}) == len(every)


def test_every_false_list_has_many_operators() -> None:
    for name in FALSE:
        found = {n.op for r in rules(f"false_{name}") for n in r.equation.lhs if n.args}
        assert len(found) >= 15, f"{name}: {found}"


def test_what_onnx_allows() -> None:
    def of(dtype: str) -> Tensor:
        return Tensor(dtype, (2, 3))

    x, i, u, b = (variable("x", of(d)) for d in ("float32", "int8", "uint8", "bool"))
    assert all(map(legal, (term("relu", x), term("relu", i), term("neg", i), term("equal", b, b), term("abs", u))))
    assert not any(map(legal, (term("relu", u), term("neg", u), term("add", b, b))))
    assert legal(term("mod", i, i))
    assert not legal(term("mod", x, x))
    assert legal(term("mod", x, x, fmod=1))
    assert not legal(term("clip", x, x))
    assert legal(term("clip", x, variable("c", Tensor("float32", ()))))


@pytest.mark.parametrize("name", ["integers", "dtypes", "signs", "vectors", "broadcasting", "smaller"])
def test_counterexamples_hold_in_the_reference_of_onnx(name: str) -> None:
    """The two sides as ONNX models, in their own dtypes, differ where the oracle says so."""
    checked = 0
    for rule in rules(f"false_{name}")[::3]:
        found = refute(rule, draws=DRAWS)
        assert found is not None
        if any("bfloat16" in t for t in found.types.values()):
            continue
        sides = _in_onnx(found)
        if sides is None:
            continue
        left, right = sides
        checked += 1
        same = left.shape == right.shape and np.allclose(
            left.astype(np.float64), right.astype(np.float64), rtol=1e-6, atol=1e-7
        )
        assert not same, f"{rule.name}\n{found}\n{left}\n{right}"
    assert checked >= 8


def _in_onnx(found: Counterexample) -> tuple[np.ndarray, np.ndarray] | None:
    pair = models(found.lhs, found.rhs)
    feeds = {str(n.attr("name")): a for n, a in found.arrays.items()}
    results = []
    for model in (pair.lhs, pair.rhs):
        proto = onnx.load_from_string(serialize(model))
        try:
            evaluator = ReferenceEvaluator(proto)
            with np.errstate(all="ignore"):
                values = evaluator.run(None, {n: feeds[n] for n in evaluator.input_names})
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            return None  # ONNX's reference does not have it
        results.append(np.asarray(values[found.output]))
    return results[0], results[1]


def test_the_same_draws_in_every_run() -> None:
    rule = rules("false_signs")[0]
    first, second = (refute(rule), refute(rule))
    assert first is not None
    assert second is not None
    assert str(first) == str(second)


def test_draws_have_all_dtypes_ranks_and_extremes() -> None:
    from random import Random

    rule = next(r for r in rules("true") if r.name == "true.max_to_operand")
    rng, numbers = Random(0), np.random.default_rng(0)
    dtypes, ranks, extremes = set(), set(), 0
    for lhs, _, _ in instances(rule, rng, 600):
        leaves = [n for n in topological(lhs) if n.op == "input"]
        dtypes |= {n.dtype for n in leaves}
        ranks |= {len(n.shape) for n in leaves}
        arrays = inputs(leaves, {"max"}, rng, numbers)
        extremes += any(a.dtype.kind == "i" and a.size and (a == np.iinfo(a.dtype).min).any() for a in arrays.values())
    assert dtypes >= {"float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64"}
    assert ranks >= {0, 1, 2, 3}
    assert extremes > 10
