"""Kinds of rewrites: which rest on each other, the model without some, and that those which do not
pay are found and left out. Clocks are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from equal_layers import FUSED, layers, values
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import F, model, w

from taso_mirage.certificates.follow import follow
from taso_mirage.devices.cpu.device import SLOW
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Tensor, variable
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CPU
from taso_mirage.measure.timing import Timing, compared_times
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import ablation, optimize_model
from taso_mirage.pipeline.ablation import WIDE, Ablation, split
from taso_mirage.pipeline.problem import pose
from taso_mirage.pipeline.stage import Job
from taso_mirage.report.certificate import certificate
from taso_mirage.search.config import Config, Stop, measuring, quiet
from taso_mirage.search.rewriter import ModelCandidate, Rewriter
from taso_mirage.search.rulesets import rules
from taso_mirage.search.selection import ChangeKind, change_kinds, single_steps, steps_without
from taso_mirage.search.steps import RewriteStep, replay


@pytest.fixture(autouse=True)
def _as_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator is known to be slow."""
    for name in list(SLOW):
        monkeypatch.delitem(SLOW, name)


def mixed(count: int = 2) -> Model:
    """Layers with two fusions into the runtime's own operators each: of a norm with the sum
    before it, and of a bias with the activation behind it; at the end is a rewrite of standard
    operators."""
    x = variable("x", Tensor(F, (2, 16, 64)))
    state = x
    for i in range(count):
        total = term("add", state, term("tanh", state))
        norm = term("layer_norm", total, w(64, name=f"g{i}"), w(64, name=f"b{i}"), axis=2)
        product = term("matmul", norm, w(64, 64, name=f"m{i}"))
        state = term("add", term("gelu", term("add", product, w(64, name=f"c{i}"))), total)
    return model((x,), (term("sub", state, term("neg", term("exp", x))),))


def passed(made: Model) -> tuple[ModelCandidate, Rewriter]:
    """The model after the passes, on a roofline."""
    rewriter = Rewriter(made, CPU, (({}, 1.0),), tuple(rules()), dict(made.weights), None)
    return rewriter.passes()[2], rewriter


def steps_of(made: Model) -> tuple[list[RewriteStep], list[ChangeKind]]:
    outputs = made.graph.outputs
    steps = single_steps(outputs, passed(made)[0].steps)
    return steps, change_kinds(outputs, steps)


# ---------------------------------------------------------------- kinds


def test_equal_layers_are_one_kind() -> None:
    few, many = (steps_of(mixed(count))[1] for count in (2, 5))
    assert [k.equations for k in few] == [k.equations for k in many]
    assert {(k.places, m.places) for k, m in zip(few, many, strict=True)} == {(1, 1), (2, 5)}
    assert any(str(kind).endswith("in 5 places") for kind in many)


def test_what_only_leaves_terms_away_is_no_kind() -> None:
    x = variable("x", Tensor(F, (2, 3)))
    steps, kinds = steps_of(model((x,), (term("relu", term("relu", term("neg", term("neg", x)))),)))
    assert steps
    assert not kinds


def test_a_step_rests_on_the_one_whose_result_it_replaces() -> None:
    a, b, c = (variable(name, Tensor(F, (2,))) for name in "abc")
    first = term("relu", term("add", a, b))
    made, joined = term("tanh", term("add", a, b)), term("neg", term("add", a, b))
    other, another = term("exp", c), term("sqrt", c)
    outputs = (first, other)
    steps = [
        RewriteStep(("first",), (first,), (made,)),
        RewriteStep(("other",), (other,), (another,)),
        RewriteStep(("second",), (made,), (joined,)),
    ]
    kinds = change_kinds(outputs, steps)
    assert [(k.equations, k.steps) for k in kinds] == [(("first", "second"), (0, 2)), (("other",), (1,))]


# ---------------------------------------------------------------- without some


def test_without_none_is_all_and_without_all_is_the_original() -> None:
    made = mixed()
    candidate, _ = passed(made)
    outputs = made.graph.outputs
    steps, kinds = steps_of(made)
    assert replay(outputs, steps_without(outputs, steps, ())) == candidate.model.graph.outputs
    assert not steps_without(outputs, steps, {i for kind in kinds for i in kind.steps})


MADE = mixed(3)
CANDIDATE, REWRITER = passed(MADE)
STEPS = single_steps(MADE.graph.outputs, CANDIDATE.steps)
KINDS = change_kinds(MADE.graph.outputs, STEPS)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(gone=st.sets(st.integers(0, len(STEPS) - 1)))
def test_the_model_is_equal_without_any_steps(gone: set[int]) -> None:
    """A step may stay whose operands would have been made by one that does not."""
    outputs = MADE.graph.outputs
    made = replay(outputs, steps_without(outputs, STEPS, gone))
    expected = values(MADE, outputs, REWRITER.weights)
    for a, b in zip(expected, values(MADE, made, REWRITER.weights), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-9, atol=1e-9)


def test_without_one_kind_the_others_stay() -> None:
    outputs = MADE.graph.outputs
    before = {kind.equations for kind in KINDS}
    for kind in KINDS:
        steps = steps_without(outputs, STEPS, set(kind.steps))
        assert {k.equations for k in change_kinds(outputs, steps)} == before - {kind.equations}


# ---------------------------------------------------------------- kernels that pay


def nodes(content: bytes) -> list[str]:
    return [n.op_type for n in onnx.load_from_string(content).graph.node]


def clock(**seconds: float) -> Callable[[Sequence[ModelCandidate], int], list[Timing]]:
    """Every operator takes a second, but for those named."""

    def timed(candidates: Sequence[ModelCandidate], rounds: int) -> list[Timing]:
        times = [sum(seconds.get(op, 1.0) for op in nodes(serialize(c.model))) for c in candidates]
        return [compared_times([[times[0]] * rounds], [[t] * rounds], [1.0]) for t in times[1:]]

    return timed


def looked(tmp_path: Path, seconds: float = 1000.0, **clocks: float) -> tuple[ModelCandidate | None, list[ChangeKind]]:
    made = mixed(3)
    config = Config(measure=False, cache=tmp_path / "c.sqlite")
    with measuring(config) as cache:
        problem = pose(Job(config, quiet, Stop(), cache), made)
        candidate = problem.rewriter.passes()[2]
        found = Ablation(problem, candidate, clock(**clocks), seconds, 0.1)
        return found.run(), found.left_out


def test_the_kind_that_is_slow_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    found, left_out = looked(tmp_path, **{FUSED: 50.0})
    assert found is not None
    assert len(left_out) == 1
    there = nodes(serialize(found.model))
    assert FUSED not in there
    assert "BiasGelu" in there
    assert replay(mixed(3).graph.outputs, found.steps) == found.model.graph.outputs


def test_several_kinds_that_are_slow_are_all_left_out(tmp_path: Path) -> None:
    found, left_out = looked(tmp_path, **{FUSED: 50.0, "BiasGelu": 50.0})
    assert found is not None
    assert len(left_out) == 2
    assert not {FUSED, "BiasGelu", "Neg"} & set(nodes(serialize(found.model)))


def test_steps_are_taken_apart_only_where_a_look_is_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look walks over the whole model for many of its steps."""
    asked: list[int] = []

    def noted(outputs: Sequence[Any], steps: Sequence[RewriteStep]) -> list[RewriteStep]:
        asked.append(len(steps))
        return single_steps(outputs, steps)

    monkeypatch.setattr(ablation, "single_steps", noted)
    assert looked(tmp_path, 0.5) == (None, [])
    assert not asked
    assert looked(tmp_path) == (None, [])
    assert len(asked) == 1


def test_nothing_is_left_out_of_what_pays_or_without_time(tmp_path: Path) -> None:
    assert looked(tmp_path) == (None, [])
    assert looked(tmp_path, 0.5, **{FUSED: 50.0}) == (None, [])


def test_bundles_are_as_even_as_can_be() -> None:
    kinds = [ChangeKind((str(i),), 1, (i,)) for i in range(20)]
    sizes = [len(bundle) for bundle in split(kinds, WIDE)]
    assert sum(sizes) == 20
    assert max(sizes) - min(sizes) <= 1
    assert split(kinds[:1], WIDE) == [(kinds[0],)]


# ---------------------------------------------------------------- in the pipeline


@pytest.fixture
def made_up_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole models take a microsecond for every operator, and 50 for the fused norm."""

    def interleaved(
        sessions: Sequence[Any], inputs: Any, seconds: float, least: int = 12, *_: Any
    ) -> list[list[float]]:
        return [[length(s._source())] * least for s in sessions]

    def length(source: AbstractContextManager[Any]) -> float:
        with source as (content, _):
            return sum(50e-6 if op == FUSED else 1e-6 for op in nodes(content))

    monkeypatch.setattr(runtime, "interleaved", interleaved)
    monkeypatch.setattr(Rewriter, "_slower", lambda *_: False)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("made_up_times")
def test_a_result_keeps_what_pays_and_names_what_does_not(tmp_path: Path) -> None:
    result = optimize_model(mixed(3), Config(budget=60.0, cache=tmp_path / "costs", seconds=0.1))
    assert result.changed
    there = nodes(serialize(result.model))
    assert FUSED not in there
    assert "BiasGelu" in there
    assert result.timing is not None
    before = nodes(serialize(result.original))
    assert result.timing.ratio == pytest.approx(len(before) / len(there))  # how many fewer depends on measured costs
    assert len(there) < len(before)
    assert all(d.passed for d in result.differences)
    (said,) = (note for note in result.notes if note.startswith("left out, as the model was measured faster without"))
    assert "skip_layer_norm" in said
    assert not [name for name in result.equations if "skip_layer_norm" in name]
    assert not [change for change in result.changes if "skip_layer_norm" in str(change.equations)]
    follows(result, tmp_path)


def follows(result: Any, tmp_path: Path) -> None:
    """The certificate of the result leads to it."""
    made = json.loads(json.dumps(certificate(result, result.named, pose_proofs(tmp_path))))
    assert follow(result.original, result.model, made, lambda proof, lhs, rhs: proof).places


def pose_proofs(tmp_path: Path) -> Any:
    from taso_mirage.measure.cost_cache import proofs_path
    from taso_mirage.prove.rules.proofs import Proofs

    return Proofs(proofs_path(tmp_path / "costs"))


@pytest.mark.usefixtures("made_up_times")
def test_where_nothing_else_pays_the_original_is_kept(tmp_path: Path) -> None:
    only = rules().where(lambda each: "skip_layer_norm" in each.name)
    result = optimize_model(layers(), replace(Config(budget=8.0, cache=tmp_path / "costs", seconds=0.1), rules=only))
    assert not result.changed
    assert result.kept is not None
    assert "the original's graph is kept" in result.kept
