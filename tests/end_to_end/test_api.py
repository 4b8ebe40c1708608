"""`taso_mirage.optimize`: takes and gives back the user's kind of model, with the options of the
command line."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx_ir
import pytest
from commandline import run
from onnx import helper, numpy_helper

from taso_mirage import api, dispatch
from taso_mirage import optimize_options as options
from taso_mirage.api import optimize
from taso_mirage.cli import commands
from taso_mirage.errors import CheckFailed, InvalidModel, InvalidOption
from taso_mirage.onnx_io.files import from_memory as read
from taso_mirage.optimize_options import Options
from taso_mirage.pipeline.stage import Job, Kept, Stage
from taso_mirage.pipeline.stage import run as run_stages
from taso_mirage.pipeline.stages import CONCLUDED, FINISH, SEARCH
from taso_mirage.rewriting import library
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.text import laws, parse_equation
from taso_mirage.search.rulesets import RuleSet, rules

QUICK = {"measure": False, "budget": 1}


def twice(external: str | None = None) -> onnx.ModelProto:
    """Relu of Relu of x + w."""
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    if external is not None:
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=external)
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph(nodes, "twice", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_a_model_is_optimized_while_a_thread_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # as at the begin of an import
    monkeypatch.setitem(sys.modules, "torch.nn", ModuleType("torch.nn"))
    assert operators(dispatch.optimize(twice(), **QUICK)) == ["Add", "Relu"]


def test_a_proto_is_given_back_as_a_proto_and_stays_as_it_was() -> None:
    model = twice()
    before = model.SerializeToString(deterministic=True)
    found = optimize(model, **QUICK)
    assert isinstance(found, onnx.ModelProto)
    assert operators(found) == ["Add", "Relu"]
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(found, full_check=True)


def test_a_model_of_onnx_ir_is_given_back_as_one() -> None:
    model = onnx_ir.from_proto(twice())
    found = optimize(model, **QUICK)
    assert isinstance(found, onnx_ir.Model)
    assert [node.op_type for node in found.graph] == ["Add", "Relu"]
    assert len(list(model.graph)) == 3


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_given_back_as_the_path_that_was_written(kind: type, tmp_path: Path) -> None:
    onnx.save(twice(), tmp_path / "m.onnx")
    found = optimize(kind(tmp_path / "m.onnx"), **QUICK)
    assert found == kind(tmp_path / "m.optimized.onnx")
    assert operators(onnx.load(found)) == ["Add", "Relu"]
    there = optimize(kind(tmp_path / "m.onnx"), output=tmp_path / "there.onnx", **QUICK)
    assert there == kind(tmp_path / "there.onnx")


def test_a_kept_model_is_given_back_as_it_was() -> None:
    model = twice()
    del model.graph.node[1]
    model.graph.node[1].input[0] = "a"
    model.producer_name = "someone"
    found, result = optimize(model, return_result=True, **QUICK)
    assert not result.changed
    assert result.kept is not None
    assert operators(found) == operators(model)
    assert found.producer_name == "someone"


def test_the_result_has_changes_times_evidence_and_notes(tmp_path: Path) -> None:
    found, result = optimize(
        twice(), return_result=True, report=tmp_path / "r.html", certificate=tmp_path / "c.json", **QUICK
    )
    assert operators(found) == ["Add", "Relu"]
    assert [change.count for change in result.changes] == [1]
    assert result.timing is None
    assert all(each.passed for each in result.differences)
    assert result.failure is None
    assert result.explanations
    assert "proved" in result.explanations[0].ground
    assert "twice" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "c.json").stat().st_size > 0
    assert set(result.seconds) >= {stage.name for stage in SEARCH}


def test_a_failed_check_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    model, result = optimize(twice(), return_result=True, **QUICK)
    failed = replace(result, failure=CheckFailed("the check failed: the rewrite 'x' is left out"))
    monkeypatch.setattr(api, "_run", lambda *_: failed)
    with pytest.warns(UserWarning, match="the rewrite 'x' is left out"):
        assert optimize(twice(), **QUICK) == model
    assert optimize(twice(), return_result=True, **QUICK)[1].failure is failed.failure


def test_no_rule_is_taken_on_trust() -> None:
    wrong = parse_equation("relu(relu(x)) == neg(x)", name="wrong.0", evidence="taken on trust")
    _, result = optimize(twice(), return_result=True, rules=RuleSet((wrong,)), **QUICK)
    assert not result.changed, "a rule that has no proof does not apply, whatever it says of itself"
    assert result.failure is None


def test_the_command_line_has_the_same_options() -> None:
    ours = set(Options.__dataclass_fields__) - {"progress", "candidates", "stop", "command", "began"}
    shown = {"model", "as_json", "timing", "quiet", "verbose", "context"}
    assert ours == set(inspect.signature(commands.optimize).parameters) - shown


def test_an_option_that_is_not_known_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="budgte"):
        optimize(twice(), budgte=3)
    with pytest.raises(InvalidOption, match="the strategies are"):
        optimize(twice(), strategy="luck")
    with pytest.raises(InvalidOption, match="int is no model"):
        optimize(3)


def test_weights_in_files_need_the_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the current folder is not read because a name says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.bin").write_bytes(np.ones(4, np.float32).tobytes())
    with pytest.raises(InvalidModel, match="give the model's path"):
        optimize(twice("w.bin"), **QUICK)
    onnx.save(twice("w.bin"), tmp_path / "m.onnx")
    found = optimize(onnx_ir.load(tmp_path / "m.onnx"), **QUICK)
    assert [node.op_type for node in found.graph] == ["Add", "Relu"]
    onnx.save(twice("../w.bin"), tmp_path / "m.onnx")
    with pytest.raises(InvalidModel, match="outside"):
        optimize(onnx_ir.load(tmp_path / "m.onnx"), **QUICK)


def test_inputs_are_arrays_or_files(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((3, 4), np.float32)}
    np.savez(tmp_path / "x.npz", **arrays)
    _, result = optimize(twice(), return_result=True, inputs=[arrays, tmp_path / "x.npz"], **QUICK)
    assert sum(np.array_equal(case.inputs["x"], arrays["x"]) for case in result.cases) >= 2
    with pytest.raises(InvalidOption, match="inputs: no array 'x'"):
        optimize(twice(), inputs=[{}], **QUICK)


# ---------------------------------------------------------------- rules


def named(equations: Sequence[Equation]) -> list[str]:
    return [each.name for each in equations]


def test_sets_of_rules_are_values() -> None:
    every = rules()
    mine = RuleSet((parse_equation("sub(x, x) == mul(x, 0)", name="mine.0"),))
    assert named((every + mine).equations) == [*named(every.equations), "mine.0"]
    assert named((every + mine - "mine.*").equations) == named(every.equations)
    assert len(every - "relu.*") < len(every)
    assert set(laws()) <= set(every)
    with pytest.raises(InvalidOption, match=r"no rule is named 'nothing\.like\.this'"):
        every - "nothing.like.this"


def test_rules_can_be_left_out_and_added(tmp_path: Path) -> None:
    assert operators(optimize(twice(), rules=RuleSet(), **QUICK)) == ["Add", "Relu", "Relu"]
    alone = rules().where(lambda each: each.name.startswith("relu."))
    assert operators(optimize(twice(), rules=alone, **QUICK)) == ["Add", "Relu"]
    with pytest.raises(InvalidOption, match="cannot read"):
        optimize(twice(), rules=[tmp_path / "mine.toml"], **QUICK)
    (tmp_path / "mine.toml").write_text("[[rule]]\n")
    with pytest.raises(InvalidOption, match=r"mine\.toml"):
        optimize(twice(), rules=[tmp_path / "mine.toml"], **QUICK)
    generated = next(rule for rule in library.load_rules() if rule.equation.lhs.outputs[0].op == "relu")
    library.write_rules(tmp_path / "mine.toml", [replace(generated, name="mine.0")])
    assert (
        named(options.Options(rules=[tmp_path / "mine.toml"]).config(read(twice())).applied.equations)[-1] == "mine.0"
    )
    assert "--rules" in run("optimize", "--help").stdout


# ---------------------------------------------------------------- the pipeline


def test_the_stages_take_what_earlier_ones_give() -> None:
    known = {"model"}
    for stage in SEARCH:
        assert set(stage.takes) <= known, stage.name
        known |= set(stage.gives)
    assert set(CONCLUDED) <= known
    assert all(set(stage.takes) <= {"result", "output"} for stage in FINISH)
    assert len({stage.name for stage in (*SEARCH, *FINISH)}) == len(SEARCH) + len(FINISH)


def test_a_stage_that_keeps_the_original_ends_the_rest() -> None:
    def give(job: object) -> int:
        return 1

    def keep(job: object, one: int) -> None:
        raise Kept("it may not be changed")

    job = Job(None, lambda *_: None, None, None)  # type: ignore[arg-type]
    stages = (
        Stage("a", give, (), ("one",)),
        Stage("b", keep, ("one",), ("two",)),
        Stage("c", give, (), ("three",)),
        Stage("d", give, ("two",), ("four",)),
    )
    assert run_stages(stages, job, {}) == {"one": 1}
    assert job.kept == "it may not be changed"
    assert set(job.seconds) == {"a"}


def test_nothing_of_a_model_outlives_its_run() -> None:
    """A search keeps megabytes of facts about a model: kept from run to run they would fill the
    memory of a process that has many models."""

    def kept() -> int:
        gc.collect()
        return sum(type(each) is Rules for each in gc.get_objects())

    before = kept()
    optimize(twice(), **QUICK)
    assert kept() <= before  # files of an earlier test may be removed
