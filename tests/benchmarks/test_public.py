"""The judge of the public table finds the faults of wrong optimizers, and no others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from scripts import script

Fault = Callable[[onnx.ModelProto], None]
MODEL = """<ir_version: 9, opset_import: ["": 17]>
g (float[N,4] x, float[4] scale = {1.0, 2.0, 3.0, 4.0}) => (float[N,3] y, int64[N] most, float[N,M] joined)
<float[4,3] w = {0.5, -1.0, 2.0, 1.5, 0.25, -0.75, 1.0, 1.0, -2.0, 0.1, 0.2, 0.3}, float[3] b = {0.1, -0.2, 0.3}>
{
  s = Mul(x, scale) p = MatMul(s, w) a = Add(p, b) y = Softmax<axis = 1>(a)
  most = ArgMax<axis = 1, keepdims = 0>(a) joined = Concat<axis = 1>(a, p)
}"""


def node(model: onnx.ModelProto, op: str) -> onnx.NodeProto:
    return next(each for each in model.graph.node if each.op_type == op)


def weight(model: onnx.ModelProto, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    (old,) = [each for each in model.graph.initializer if each.name == name]
    old.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(old).copy()), name))


def attribute(model: onnx.ModelProto, op: str, name: str, value: object) -> None:
    found = node(model, op)
    kept = [each for each in found.attribute if each.name != name]
    del found.attribute[:]
    found.attribute.extend([*kept, helper.make_attribute(name, value)])


def operands(model: onnx.ModelProto, op: str, *names: str) -> None:
    node(model, op).input[:] = names


def without_input(model: onnx.ModelProto) -> None:
    del model.graph.input[1]


def swapped_outputs(model: onnx.ModelProto) -> None:
    found = [*model.graph.output]
    del model.graph.output[:]
    model.graph.output.extend([found[1], found[0], found[2]])


def renamed(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = node(model, "Softmax").output[0] = "z"


def fixed_batch(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4


def padded(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1 << 15, np.float32), "unused"))
    model.graph.node.append(helper.make_node("Identity", ["unused"], ["nobody"]))


def unordered(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[0] = "nothing"


FAULTS: dict[str, tuple[str, Fault]] = {
    "a weight": ("wrong", lambda m: weight(m, "w", lambda a: a * np.float32(1.001))),
    "a sign": ("wrong", lambda m: weight(m, "b", np.negative)),
    "a transposed order": ("wrong", lambda m: weight(m, "w", lambda a: a[::-1].copy())),
    "one element": (
        "wrong",
        lambda m: weight(m, "w", lambda a: a + (np.arange(12).reshape(4, 3) == 5).astype(np.float32)),
    ),
    "no bias": ("wrong", lambda m: operands(m, "Add", "p", "p")),
    "no scale": ("wrong", lambda m: operands(m, "MatMul", "x", "w")),
    "an axis": ("wrong", lambda m: attribute(m, "Softmax", "axis", 0)),
    "another axis": ("wrong", lambda m: attribute(m, "ArgMax", "axis", 0)),
    "the last of equal ones": ("right", lambda m: attribute(m, "ArgMax", "select_last_index", 0)),
    "an order": ("wrong", lambda m: operands(m, "Concat", "p", "a")),
    "an early value": ("wrong", lambda m: operands(m, "Softmax", "p")),
    "a smallest one": ("wrong", lambda m: setattr(node(m, "ArgMax"), "op_type", "ArgMin")),
    "a logarithm": ("wrong", lambda m: setattr(node(m, "Softmax"), "op_type", "LogSoftmax")),
    "a difference": ("wrong", lambda m: setattr(node(m, "Add"), "op_type", "Sub")),
    "no default": ("interface", without_input),
    "exchanged outputs": ("interface", swapped_outputs),
    "another name": ("interface", renamed),
    "a fixed batch": ("interface", fixed_batch),
    "another opset": ("interface", lambda m: setattr(m.opset_import[0], "version", 18)),
    "a lost value": ("not loaded", unordered),
    "an unknown operator": ("not loaded", lambda m: setattr(node(m, "Mul"), "op_type", "Multiply")),
    "bytes": ("larger", padded),
    "nothing": ("right", lambda m: None),
    "exchanged operands": ("right", lambda m: operands(m, "Add", "b", "p")),
    "a more precise size": (
        "right",
        lambda m: setattr(m.graph.output[2].type.tensor_type.shape.dim[1], "dim_value", 6),
    ),
}


@cache
def bench(name: str) -> ModuleType:
    return script(name)


@cache
def original() -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL)


@cache
def judged() -> object:
    return bench("public_judge").Judged.of(original())


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str) -> None:
    kind, plant = FAULTS[name]
    changed = onnx.ModelProto()
    changed.CopyFrom(original())
    plant(changed)
    found = judged().verdict(changed)  # type: ignore[attr-defined]
    assert found.kind == kind, found.why


def judged_report(build: Callable[[], onnx.ModelProto]) -> str:
    """How a report's model is judged as the result of a tool that changes nothing, or why it cannot
    be."""
    model = build()
    onnx.checker.check_model(model, full_check=True)
    found = bench("public_judge").Judged.of(model)
    return found if isinstance(found, str) else found.verdict(model).kind


@pytest.mark.parametrize("family", bench("public_reports").FAMILIES)
def test_a_report_of_each_family_can_be_judged(family: str) -> None:
    assert judged_report(next(iter(bench("public_reports").FAMILIES[family].values()))) == "right"


@pytest.mark.slow
def test_every_report_can_be_judged() -> None:
    reports = bench("public_reports").REPORTS
    assert {name: judged_report(build) for name, build in reports.items()} == dict.fromkeys(reports, "right")


def test_a_result_runs_at_the_level_at_which_the_original_is_right() -> None:
    """ONNX Runtime's full level cannot load this one; no tool answers for that."""
    model = bench("public_reports").REPORTS["onnxruntime 32416"]()
    found = bench("public_judge").Judged.of(model)
    assert found.target.stamp.level == "ORT_DISABLE_ALL"
    assert found.verdict(model).kind == "right"


def test_no_name_is_taken_twice() -> None:
    families = bench("public_reports").FAMILIES.values()
    assert sum(map(len, families)) == len(bench("public_reports").REPORTS)


def test_outputs_of_a_tool_without_a_file_are_judged() -> None:
    there = judged()
    right = [each.original for each in there.cases]  # type: ignore[attr-defined]
    assert there.verdict_on(right).kind == "right"  # type: ignore[attr-defined]
    off = [[each[0] * np.float32(1.001), *each[1:]] for each in right]
    assert there.verdict_on([right[0], *off[1:]]).kind == "wrong"  # type: ignore[attr-defined]
    assert there.verdict_on([each[::-1] for each in right]).kind == "wrong"  # type: ignore[attr-defined]
    assert there.verdict_on([each[:2] for each in right]).kind == "interface"  # type: ignore[attr-defined]


def test_a_second_run_goes_on_and_shards_are_counted_together(tmp_path: Path) -> None:
    lines, verdict = bench("public_lines"), bench("public_judge").Verdict
    head = {"versions": {"ours": "1"}}
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    first = lines.Lines(one, head)
    first.add("a:1", "ours", verdict("right"), 1.0)
    first.add("a:2", "", verdict("not judged", "no model"), 1.0)
    with one.open("a") as file:
        file.write('{"model": "a:3", "to')  # the machine stopped here
    again = lines.Lines(one, head)
    assert again.has("a:1", ["ours", "other"]) == ["ours"]
    assert again.has("a:2", ["ours", "other"]) == ["ours", "other"]
    assert again.has("a:3", ["ours"]) == []
    again.add("a:3", "ours", verdict("wrong", "by 1"), 2.0)
    lines.Lines(two, head).add("b:1", "ours", verdict("late"), 60.0)
    found = lines.counted(lines.merged([one, two])[1], ["ours", "other"])
    assert [(each["corpus"], each["judged"], each["not judged"]) for each in found] == [
        ("a", 2, {"no model": 1}),
        ("b", 1, {}),
    ]
    (row,) = found[0]["rows"]
    assert (row["models"], row["right"], row["wrong"], row["late"], row["seconds"]) == (2, 1, 1, 0, 3.0)
    assert row["findings"] == [{"model": "a:3", "kind": "wrong", "why": "by 1"}]
    with pytest.raises(SystemExit, match="name another file"):
        lines.Lines(two, {"versions": {"ours": "2"}})


def test_lines_of_different_tools_are_counted_together(tmp_path: Path) -> None:
    lines, verdict = bench("public_lines"), bench("public_judge").Verdict
    one, two, three = (tmp_path / f"{i}.jsonl" for i in range(3))
    lines.Lines(one, {"versions": {"a": "1", "b": "1"}}).add("x:1", "b", verdict("right"), 1.0)
    lines.Lines(two, {"versions": {"a": "1", "c": "2"}}).add("x:1", "c", verdict("wrong", "by 1"), 1.0)
    head, found = lines.merged([one, two])
    assert head["versions"] == {"a": "1", "b": "1", "c": "2"}
    assert [row["case"] for row in lines.counted(found, ["b", "c"])[0]["rows"]] == ["b", "c"]
    lines.Lines(three, {"versions": {"c": "3"}})
    with pytest.raises(SystemExit, match="of c 2 and 3"):
        lines.merged([one, two, three])
