"""Remarks of `optimize` on the original itself, weights that are stored twice, and files that would
grow."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from certificate_cases import certified, followed
from commandline import result_of, run
from onnx import TensorProto, helper, numpy_helper
from small_models import F, model, w, x

from taso_mirage import optimize
from taso_mirage.cli import optimize as command
from taso_mirage.errors import OutOfTime
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Node, Tensor, constant, topological, variable
from taso_mirage.measure.child import child
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import CPU, UNOPTIMIZED, Target
from taso_mirage.onnx_io import save, serialize
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import growth, oddities, optimize_model
from taso_mirage.pipeline.problem import pose
from taso_mirage.pipeline.stage import Job
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.config import Config, Stop, quiet
from taso_mirage.search.duplicate_weights import duplicate_weights, shared_weights
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.rulesets import rules
from taso_mirage.search.steps import RewriteStep, replay
from taso_mirage.search.weights_at_load import made_at_load
from taso_mirage.targets.onnx_runtime import inference_session

QUICK = Config(budget=0.0, measure=False)


def notes(made: Model) -> tuple[str, ...]:
    return optimize_model(made, QUICK).notes


def said(made: Model, words: str) -> list[str]:
    return [note for note in notes(made) if words in note]


# ---------------------------------------------------------------- the runtime's optimizations


def test_a_session_without_optimizations_has_none() -> None:
    content = serialize(model((x(4),), (term("relu", x(4)),)))
    levels = onnxruntime.GraphOptimizationLevel
    for target, level in ((CPU, levels.ORT_ENABLE_ALL), (UNOPTIMIZED, levels.ORT_DISABLE_ALL)):
        session: Any = target.open(content, False, {})
        assert session._session.get_session_options().graph_optimization_level == level


def off(monkeypatch: pytest.MonkeyPatch, wrong: Target, by: float) -> None:
    """A runtime whose results are off with or without optimizations."""
    ran = Session.run

    def run(self: Session, inputs: Any) -> list[Any]:
        return [o + np.float32(by * (self.target == wrong)) for o in ran(self, inputs)]

    monkeypatch.setattr(Session, "run", run)


@pytest.mark.parametrize(("wrong", "words"), [(UNOPTIMIZED, ", 0.01 without"), (CPU, ": 0.01 off float64 with them")])
def test_results_that_hang_on_the_optimizations_are_named(
    monkeypatch: pytest.MonkeyPatch, wrong: Target, words: str
) -> None:
    off(monkeypatch, wrong, 0.01)
    (note,) = said(model((x(4, 8),), (term("tanh", x(4, 8)),)), "gives other results")
    assert words in note


@pytest.mark.parametrize("by", [0.0, 1e-7])
def test_a_rounding_is_no_other_result(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    off(monkeypatch, UNOPTIMIZED, by)
    assert not said(model((x(4, 8),), (term("tanh", x(4, 8)),)), "gives other results")


# ---------------------------------------------------------------- constant outputs


def test_an_output_that_hangs_on_no_input_is_named() -> None:
    fixed = term("relu", w(3))
    assert said(model((x(4),), (term("tanh", x(4)), fixed)), "is constant: it depends on no input")


def test_an_output_that_no_input_changed_is_named() -> None:
    """A softmax over one element is 1."""
    (note,) = said(model((x(4, 1),), (term("softmax", x(4, 1), axis=1),)), "it may be constant")
    assert "was the same on" in note


def test_other_outputs_are_not_constant() -> None:
    ids = variable("ids", Tensor("int64", (2,)))
    assert not said(model((x(4),), (term("tanh", x(4)),)), "constant:")
    assert not said(model((x(4),), (term("tanh", x(4)),)), "may be constant")
    assert not said(model((ids,), (term("cast", ids, to=F),)), "may be constant")


# ---------------------------------------------------------------- weights that are stored twice


def tied(equal: bool = True, name: str = "b") -> Model:
    """Two products with weights of the same numbers under two names."""
    first, second = w(64, 64, name="a"), w(64, 64, name=name)
    made = model((x(4, 64),), (term("matmul", term("relu", term("matmul", x(4, 64), first)), second),))
    arrays: dict[str, Any] = {n: np.array(each.numpy()) for n, each in made.weights.items()}
    if equal:
        arrays[name] = arrays["a"].copy()
    return Model(**{**vars(made), "weights": {n: StoredWeight(each) for n, each in arrays.items()}})


def test_weights_that_are_stored_twice_are_named_and_become_one() -> None:
    (note,) = said(tied(), "stored once more")
    assert "'b' is 'a'" in note
    assert not said(tied(equal=False), "stored once more")
    shared = shared_weights(tied())
    assert set(shared.weights) == {"a"}
    inputs = {"x": np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)}
    before, after = (Session(serialize(each)).run(inputs)[0] for each in (tied(), shared))
    np.testing.assert_array_equal(before, after)
    assert shared_weights(tied(equal=False)).weights.keys() == {"a", "b"}


def test_one_bit_makes_two_weights() -> None:
    """0 and -0 are equal numbers; and the bit lies between those that are looked at first."""
    made = tied()
    other = made.weights["b"].numpy().copy()
    other.reshape(-1).view(np.uint8)[1] ^= 1
    assert duplicate_weights(made)
    for array in (other, np.where(np.arange(64 * 64).reshape(64, 64) == 1, np.float32(-0.0), np.float32(0.0))):
        arrays = {"a": np.zeros((64, 64), np.float32) if array is not other else made.weights["a"].numpy(), "b": array}
        assert not duplicate_weights(
            Model(**{**vars(made), "weights": {n: StoredWeight(a) for n, a in arrays.items()}})
        )


def test_weights_that_are_inputs_stay() -> None:
    """Before IR version 4 a user may give every weight of a model at a run."""
    made = tied()
    made.header.ir_version = 3
    assert shared_weights(made) is made


def test_a_changed_file_has_each_weight_once(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["once"]),
        helper.make_node("Relu", ["once"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(array, n) for n in "ab"])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    made, result = optimize(proto, measure=False, budget=0.0, return_result=True)
    assert result.changed
    assert len(made.graph.initializer) == 1
    assert any("stored once more" in note for note in result.notes)


# ---------------------------------------------------------------- files that would grow


@pytest.fixture
def growing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A model whose result takes twice the bytes."""
    monkeypatch.setattr(growth, "stored_bytes", lambda made: 10_000_000 * (1 + (len(made.nodes()) < 5)))
    path = tmp_path / "m.onnx"
    a = x(4, 8)
    save(model((a,), (term("relu", term("relu", term("neg", term("neg", a)))),)), path)
    return path


COMMAND = ("--no-measure", "--budget", "0", "--json")


def test_a_file_that_would_grow_is_not_written_without_a_word(growing: Path) -> None:
    said = result_of(run("optimize", growing, *COMMAND))
    assert not said["changed"]
    (note,) = (n for n in said["notes"] if "would grow" in n)
    assert "from 10 to 20 MB (2.00 times)" in note
    assert "--may-grow" in note
    assert said["nodes"]["before"] == said["nodes"]["after"] == 4
    assert len(onnx.load(growing.with_name("m.optimized.onnx")).graph.node) == 4


def test_a_file_may_grow_where_that_is_allowed(growing: Path) -> None:
    said = result_of(run("optimize", growing, *COMMAND, "--may-grow"))
    assert said["changed"]
    assert any("the file grew from 10 to 20 MB" in note for note in said["notes"])


@pytest.mark.parametrize("answer", ["y\n", "n\n", ""])
def test_who_is_there_is_asked(monkeypatch: pytest.MonkeyPatch, growing: Path, answer: str) -> None:
    monkeypatch.setattr(command, "asking", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    done = run("optimize", growing, *COMMAND[:-1])
    assert "the file would grow from 10 to 20 MB (2.00 times). Write it? [y/N]" in done.stderr
    written = onnx.load(growing.with_name("m.optimized.onnx"))
    assert (len(written.graph.node) < 4) is (answer == "y\n")


def asks(answer: bool, heard: list[str]) -> Callable[[str], bool]:
    def hear(said: str) -> bool:
        heard.append(said)
        return answer

    return hear


def test_a_program_is_asked_by_its_function(growing: Path) -> None:
    heard: list[str] = []
    _, result = optimize(growing, measure=False, budget=0.0, may_grow=asks(True, heard), return_result=True)
    assert result.changed
    assert heard == ["the file would grow from 10 to 20 MB (2.00 times)"]


def test_what_is_stored_is_counted() -> None:
    """Weights, and the metadata and functions of kernels."""
    made = tied()
    assert growth.stored_bytes(made) == 2 * 4 * 64 * 64
    made.header.metadata_props["taso_mirage.cpp.k"] = "x" * 1000
    assert growth.stored_bytes(made) == 2 * 4 * 64 * 64 + 1000


def grown_by(laws: list[str], outputs: tuple[Node, ...], config: Config) -> tuple[Job, ModelCandidate, Model]:
    """The job of a model to which laws were applied, the changed model, and the model as it was."""
    job, made = Job(config, quiet, Stop(), CostCache(None)), model((x(1, 256, 8, 8),), outputs)
    problem, steps = pose(job, made), list[RewriteStep]()
    for law in laws:
        applied = [
            RewriteStep((law,), (node,), found.results)
            for node in topological(outputs)
            for found in Rules(rules()).applications(node)
            if found.equation.name == law
        ]
        steps.append(applied[0])
        outputs = replay(outputs, applied[:1])
    given = ModelCandidate("all", made, tuple(steps), 0.0, CPU)
    return job, growth.small(job, problem, problem.without(given, steps, (), "all")), made


def enlarged(*bias: Node) -> Node:
    """A kernel of 3 by 3 over an image that is enlarged twofold, which may be one of 4 by 4."""
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    return term(
        "conv", term("resize", x(1, 256, 8, 8), factors=(1, 1, 2, 2)), w(256, 256, 3, 3, name="k"), *bias, **window
    )


@pytest.mark.parametrize("allowed", [False, True])
def test_what_would_make_a_file_too_large_is_left_out_and_the_rest_stays(allowed: bool) -> None:
    silu = term("mul", enlarged(), term("sigmoid", enlarged()))
    job, candidate, made = grown_by(["conv.54", "quick_gelu.0"], (silu,), Config(measure=False, may_grow=allowed))
    found = candidate.model
    kinds = ["conv_transpose"] if allowed else ["resize", "conv"]
    assert [n.op for n in found.nodes() if n.args] == [*kinds, "quick_gelu"]
    assert (growth.stored_bytes(found) > growth.GROWTH * growth.stored_bytes(made)) is allowed
    said = "not tried, as the file would grow from 2.36 to 4.19 MB (1.78 times): with 'conv.54' in 1 place"
    assert [note.partition(";")[0] for note in job.remarks] == [said] * (not allowed)


def test_rewrites_that_enlarge_one_weight_together_are_both_left_out() -> None:
    """Without one of them alone the weight is still there."""
    outputs = (enlarged(), term("relu", term("neg", term("neg", enlarged(w(256, name="b"))))))
    job, candidate, made = grown_by(["conv.54", "conv.55"], outputs, Config(measure=False))
    found = candidate.model
    assert sorted(n.op for n in found.nodes() if n.args) == ["conv", "conv", "neg", "neg", "relu", "resize"]
    assert growth.stored_bytes(found) == growth.stored_bytes(made)
    (note,) = job.remarks
    assert "'conv.54'" in note
    assert "'conv.55'" in note


def read_twice(alpha: float = 1.0) -> tuple[Node, ...]:
    """A weight of 64 KiB that two products read: one transposed, one as it is."""
    rows, shared = term("reshape", x(1, 256, 8, 8), shape=(128, 128)), w(128, 128, name="k")
    product = term("gemm", rows, shared, w(128, name="b"), transB=1, alpha=alpha)
    return term("relu", product), term("tanh", term("matmul", rows, shared))


def test_a_weight_in_another_order_is_made_at_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ONNX Runtime computes the transposition when it opens the file, and the product reads it."""
    monkeypatch.setattr(growth, "LITTLE", 0)
    job, candidate, made = grown_by(["gemm.5"], read_twice(), Config(measure=False))
    assert not job.remarks
    result = replace(optimize_model(made, QUICK).of(candidate), weights=candidate.model.weights)
    result = growth.within_growth(job, result)
    stored, written = candidate.model, result.model
    assert growth.stored_bytes(stored) > 1.9 * growth.stored_bytes(made)
    assert growth.stored_bytes(written) == growth.stored_bytes(made)
    followed(certified(made, result, tmp_path), strict=True)
    inference_session(serialize(written), ["CPUExecutionProvider"], dump=str(tmp_path / "ran.onnx"))
    ran = [node.op_type for node in onnx.load(tmp_path / "ran.onnx").graph.node]
    assert "Transpose" not in ran
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 256, 8, 8)).astype(np.float32)}
    results = [Session(serialize(each)).run(feeds) for each in (stored, written)]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_weight_that_is_made_wrongly_at_load_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is checked again after weights are made at load."""
    monkeypatch.setattr(growth, "LITTLE", 0)
    job, candidate, made = grown_by(["gemm.5"], read_twice(), Config(measure=False, may_grow=True))
    result = replace(optimize_model(made, QUICK).of(candidate), weights=candidate.model.weights)

    def wrong(model: Model, equations: Any) -> tuple[Model, list[Any]]:
        first, *others = model.graph.outputs
        return model.with_graph((term("neg", first), *others)), []

    monkeypatch.setattr(growth, "made_at_load", wrong)
    found = growth.within_growth(job, result)
    assert found.model.graph.outputs == candidate.model.graph.outputs


def test_a_weight_stays_where_it_cannot_be_made_at_load() -> None:
    """A product by two would be merged with the transposition, and other numbers are no
    elements of the weight."""
    turned = term("transpose", w(128, 128, name="k"), perm=(1, 0))
    rows, array = x(128, 128), np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32)
    plain = term("gemm", rows, w(128, 128, name="t"), w(128, name="b"))
    for product, content, same in (
        (plain, array.T, False),
        (plain, array.T + 1, True),
        (term("gemm", *plain.args, alpha=2.0), array.T, True),
        (term("gemm", *plain.args, transA=1), array.T, True),
    ):
        made = model((rows,), (product, term("matmul", rows, w(128, 128, name="k"))))
        stored = {"t": StoredWeight(np.ascontiguousarray(content), turned), "k": StoredWeight(array)}
        made = replace(made, weights={**made.weights, **stored})
        assert (made_at_load(made, rules())[0] is made) is same


def test_a_little_more_is_no_question(tmp_path: Path) -> None:
    small: Node = term("relu", term("relu", term("add", x(4, 8), constant(np.ones((4, 8), np.float32)))))
    heard: list[str] = []
    config = Config(budget=0.0, measure=False, may_grow=asks(False, heard))
    assert optimize_model(model((x(4, 8),), (small,)), config).changed
    assert not heard


def test_a_remark_takes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A float64 reference that takes too long there does not end the command."""
    ends: list[float] = []

    def late(*_: object) -> None:
        ends.append(child().deadline.left())
        raise OutOfTime("a float64 reference takes too long")

    monkeypatch.setattr(oddities, "compare", late)
    asked = model((x(4),), (term("relu", term("relu", x(4))),))
    result = optimize_model(asked, Config(measure=False, budget=60))
    assert result.changed
    assert 0 < ends[0] <= oddities.SHARE * 60
