"""`taso-mirage mutants`: the costly parts of a model, and the mutants of one with their regions,
costs and corrections."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import Result
from onnx import TensorProto, helper, numpy_helper
from partial_programs import conv, graph, image, kernel
from typer.testing import CliRunner

from taso_mirage.cli.commands import app
from taso_mirage.cli.partial import WIDTH
from taso_mirage.errors import InvalidOption
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Tensor, topological, variable
from taso_mirage.onnx_io import load
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import work
from taso_mirage.rewriting.text import parse_graph
from taso_mirage.search import ranking
from taso_mirage.search.cost import Cost, Roofline
from taso_mirage.search.partial import candidates
from taso_mirage.search.partial.agreement import AgreementRegion
from taso_mirage.search.partial.families import Mutant, mutants_of
from taso_mirage.search.partial.parts import costly_parts, part
from taso_mirage.search.partial.picture import COLUMNS, LINES, picture
from taso_mirage.search.passes import Context
from taso_mirage.search.ranking import Ranked, costed, proved, ranked_mutants

MINI = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"
COST = Cost(Roofline(Context({"": 17}, {})))
SIDES = ("--no-measure", "--node")


def images(batch: int | str = 2) -> onnx.ModelProto:
    """conv -> relu -> the same convolution with other weights -> add."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(3, 3, 3, 3)).astype(np.float32), f"w{i}") for i in range(2)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["first"], name="block/conv1", pads=[1] * 4),
        helper.make_node("Relu", ["first"], ["positive"], name="block/relu"),
        helper.make_node("Conv", ["positive", "w1"], ["second"], name="block/conv2", pads=[1] * 4),
        helper.make_node("Add", ["second", "x"], ["y"], name="block/add"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 3, 6, 6]) for name in ("x", "y")]
    made = helper.make_graph(nodes, "images", ends[:1], ends[1:], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "images.onnx"
    onnx.save(images(), path)
    return path


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["mutants", *map(str, arguments)])


def lines(*arguments: object) -> list[str]:
    """The lines that the command prints."""
    done = invoked(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def data(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads("\n".join(lines(*arguments, "--json")))
    return found


def problem(*arguments: object) -> str:
    done = invoked(*arguments)
    assert isinstance(done.exception, InvalidOption)
    return str(done.exception)


# ---------------------------------------------------------------- two images side by side

SEAMS = """
     [0, 0:3, :, :]
     0:6 ....#
         ....#
         ....#
         0 1:5 5
     [1, 0:3, :, :]
     0:6 #....
         #....
         #....
         0 1:5 5
"""


def test_the_seams_of_two_images_side_by_side(model: Path) -> None:
    text = "\n".join(lines(model, *SIDES, "block/conv1", "--limit", 20))
    assert "images.onnx, block/conv1 (also at block/conv2)" in text
    found = [m for m in text.split("\n\n") if "batch into axis 3: " in m and "corrected" in m]
    assert len(found) == 1
    assert SEAMS.strip("\n") in found[0]
    assert "right in 83.3% of the elements; the original corrects 2 boxes" in found[0]
    assert "verified: equal in 24 random field trials" in found[0]
    assert "conv [1,3,6,12] x [3,3,3,3] pads 1,1,1,1" in found[0], "the main convolution sees both images"
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_same_as_json(model: Path) -> None:
    found = data(model, *SIDES, "second", "--limit", 3)
    assert (found["nodes"], found["costs"], found["left"]) == (["block/conv1", "block/conv2"], "estimated", 0)
    rows = found["mutants"]
    costs = [row["cost"]["corrected"] for row in rows if row["cost"]["corrected"] is not None]
    assert costs == sorted(costs)
    assert [row["verified"] for row in rows] == [i < 3 for i in range(len(rows))]
    assert rows[0]["evidence"]["trials"] == 24
    seams = next(r for r in rows if r["families"] == ["batch into axis 3"] and r["corrections"])
    assert seams["agreement"]["regions"][0] == {
        "edges": [[0, 1, 2], [0, 3], [0, 6], [0, 1, 5, 6]],
        "right": [[[[True, True, False]]], [[[False, True, True]]]],
    }
    assert seams["right"] == pytest.approx(10 / 12)
    original = parse_graph(found["program"])
    assert parse_graph(seams["corrected"]).outputs[0].type == original.outputs[0].type
    assert found["cost"] == COST(original.outputs)
    assert seams["cost"]["without"] == COST(parse_graph(seams["mutant"]).outputs) < seams["cost"]["corrected"]


def test_costs_are_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pool.onnx"
    onnx.save(pooling(), path)
    found = data(path, "--node", "pool")
    assert found["costs"] == "measured"
    assert [m["families"] for m in found["mutants"]] == [["pool to convolution"]]
    monkeypatch.setattr("taso_mirage.measure.tasks._runner", None)  # nothing may be measured again
    again = data(path, "--node", "pool")
    assert (again["cost"], again["mutants"]) == (found["cost"], found["mutants"])


def pooling() -> onnx.ModelProto:
    node = helper.make_node("AveragePool", ["x"], ["y"], name="pool", kernel_shape=[3, 3], pads=[1] * 4)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 7, 7]) for name in ("x", "y")]
    made = helper.make_graph([node], "pooling", ends[:1], ends[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_two_steps_lead_to_more_mutants(model: Path) -> None:
    one, two = (data(model, *SIDES, "first", "--limit", 1, "--depth", depth)["mutants"] for depth in (1, 2))
    assert {len(m["families"]) for m in one} == {1}
    assert {len(m["families"]) for m in two} == {1, 2}


def test_no_more_are_made_than_there_is_time_for(model: Path) -> None:
    """Every step multiplies them: four took minutes before the first was looked at."""
    found = data(model, *SIDES, "first", "--budget", 0, "--depth", 9)
    assert (found["mutants"], found["left"]) == ([], 9)


def test_convolutions_of_each_other_beside_each_other() -> None:
    """The second is an operand of the first: it is unchanged."""
    x = image(1, 4, 6, 6)
    inner = conv(x, kernel(4, 4, 3, 3, name="u"))
    output = term("concat", conv(inner, kernel(4, 4, 3, 3, name="v")), inner, axis=1)
    last = costly_parts(made(output), {})[-1].program
    assert [len(last.inputs), sum(n.op == "conv" for n in topological(last.outputs))] == [1, 2]


# ---------------------------------------------------------------- results that are not kept


def test_without_time_nothing_is_looked_at(model: Path) -> None:
    text = " ".join(lines(model, *SIDES, "first", "--budget", 0))
    assert "0 mutants: 0 right everywhere, 0 corrected, 0 without a correction; 9 more were not tried" in text


def test_late_mutants_are_not_verified(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "proved", lambda original, found, late: proved(original, found, lambda: True))
    text = "\n".join(lines(model, *SIDES, "first"))
    assert text.count("not verified for lack of time (--budget, or Ctrl-C)") == 9
    assert "  verified" not in text


def test_an_interrupt_keeps_what_was_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(original: Graph, found: list[Mutant], cost: Cost, late: Callable[[], bool]) -> Iterator[Ranked]:
        for i, each in enumerate(costed(original, found, cost, late)):
            if i == 2:
                signal.raise_signal(signal.SIGINT)
            yield each

    monkeypatch.setattr(ranking, "costed", interrupted)
    found = data(model, *SIDES, "first")
    assert (len(found["mutants"]), found["left"]) == (3, 6)
    assert not any(m["verified"] for m in found["mutants"])


def test_what_agrees_nowhere_has_no_correction(tmp_path: Path) -> None:
    original = graph(conv(image(4, 2, 2, 2), kernel(2, 2, 3, 3)))
    found = ranked_mutants(list(costed(original, list(mutants_of(original)), COST)))
    nowhere = [each for each in found if each.corrected is None]
    assert nowhere
    assert found[-len(nowhere) :] == nowhere, "they are last"
    assert {each.refused.reason for each in nowhere if each.refused is not None} == {
        "the programs agree nowhere; there is nothing to correct"
    }
    assert all(each.evidence is None for each in proved(original, nowhere))


def test_a_wrong_correction_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "correct", lambda original, mutant, agreement, joined: mutant)
    text = "\n".join(lines(model, *SIDES, "first", "--limit", 20))
    assert "WRONG, not to be used: output 0 differs from the original's at " in text
    row = next(m for m in data(model, *SIDES, "first", "--limit", 20)["mutants"] if m["right"] < 1)
    assert not row["verified"]
    assert row["refused"].startswith("output 0 differs from the original's at")


def test_one_of_equal_corrected_programs_is_kept() -> None:
    original = graph(conv(image(2, 3, 6, 6), kernel(3, 3, 3, 3)))
    found = list(costed(original, list(mutants_of(original)), COST))
    assert len(ranked_mutants([*found, *found])) == len(ranked_mutants(found)) == len(found)


def test_it_stops_when_it_is_late() -> None:
    original = graph(conv(image(2, 3, 6, 6), kernel(3, 3, 3, 3)))
    assert not list(costed(original, list(mutants_of(original)), COST, late=lambda: True))


# ---------------------------------------------------------------- parts and names


def test_parts_are_listed_with_their_share(model: Path) -> None:
    text = lines(model, "--no-measure")
    assert text[0].startswith("images.onnx: 1 costly part in 2 places, ")
    assert text[1].endswith("conv [2,3,6,6] x [3,3,3,3] pads 1,1,1,1")
    assert text[2].strip() == "--node block/conv1 (also at block/conv2)"
    found = data(model, "--no-measure")
    (row,) = found["parts"]
    assert row["share"] == pytest.approx(2 * row["cost"] / found["total"])
    assert 0.5 < row["share"] < 1


def test_every_part_of_a_model_has_mutants_by_its_name() -> None:
    rows = data(MINI, "--no-measure")["parts"]
    shares = [row["share"] for row in rows]
    assert shares == sorted(shares, reverse=True)
    loaded = load(MINI)
    for row in rows:
        for name in row["nodes"]:
            assert part(loaded, name, {}).program == parse_graph(row["program"])
    text = lines(MINI, *SIDES, rows[0]["nodes"][0])
    assert "1. batched to matmul: " in "\n".join(text)
    assert sum("verified: equal in" in line for line in text) == 1
    assert max(map(len, text)) <= WIDTH


def test_dynamic_dims_are_fixed(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    onnx.save(images("batch"), path)
    found = data(path, *SIDES, "first", "--shape", "batch:4", "--limit", 1)
    assert found["sizes"] == {"batch": 4}
    assert parse_graph(found["program"]).outputs[0].shape == (4, 3, 6, 6)


def test_equal_parts_are_one_and_convolutions_beside_each_other_are_one_more() -> None:
    x = variable("x", Tensor("float32", (symbol("n"), 4, 6, 6)))
    sides = [term("conv", x, kernel(4, 4, 3, 3, name=name), **CONV) for name in "uv"]
    found = costly_parts(made(term("concat", *sides, axis=1)), {"n": 2})
    assert [(p.program.outputs[0].op, len(p.nodes)) for p in found] == [("conv", 2), ("concat", 1)]
    assert found[1].program.outputs[0].shape == (2, 8, 6, 6)
    assert {n.attr("name") for n in topological(found[1].program.outputs) if not n.args} == {"x0", "x1", "x2"}
    assert work(found[0].program.outputs[0], {}).flops > 0


CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}


def made(*outputs: Any) -> Model:
    return standalone(Graph(tuple(n for n in topological(outputs) if n.op == "input"), outputs), {"": 17})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("block/conv3", "no node or value of this name .*; the nearest: block/conv2, block/conv1"),
        ("~", "no node or value of this name .*; without --node the costly parts are listed"),
        ("block/relu", "relu ends a part: maximum is not linear; the costly parts around it: block/conv1, block/conv2"),
        ("y", "no mutant begins at add, only at average_pool, conv, matmul of floats"),
        ("x", "it is an input, which nothing computes"),
    ],
)
def test_errors_name_what_works(model: Path, name: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        part(load(model), name, {})
    assert problem(model, "--node", name).startswith(f"--node {name}: ")


def test_a_square_has_no_mutants() -> None:
    x = variable("x", Tensor("float32", (2, 3)))
    square = made(term("mul", x, x))
    with pytest.raises(InvalidOption, match="mul ends a part: it has degree 2 in an operand; 1 is the most"):
        part(square, square.output_names[0], {})


def test_a_target_that_is_not_there(model: Path) -> None:
    assert "the targets are: cpu, cuda" in problem(model, "--target", "abacus")


# ---------------------------------------------------------------- pictures


def region(grid: np.ndarray, *edges: tuple[int, ...]) -> AgreementRegion:
    return AgreementRegion(edges, grid.astype(np.int64), 1)


def test_a_seam_in_depth_is_drawn_once() -> None:
    right = np.array([[1, 1, 0], [0, 1, 1]]).reshape(2, 1, 3, 1, 1)
    drawn = picture(region(right, (0, 1, 2), (0, 64), (0, 1, 7, 8), (0, 56), (0, 56)))
    assert drawn == "[:, 0:64, :, 0:56, 0:56]\n0 ....#\n1 #....\n  0 1:7 7"


def test_what_is_right_in_one_axis_alone_is_drawn_beside_the_next() -> None:
    drawn = picture(region(np.array([1, 0]).reshape(2, 1, 1, 1), (0, 1, 2), (0, 64), (0, 56), (0, 56)))
    assert drawn == "[:, :, 0:56, 0:56]\n0 ...\n1 ###\n  0:64"


def test_a_ragged_picture_keeps_its_size() -> None:
    rng = np.random.default_rng(0)
    right = rng.random((2, 1, 112, 112)) < 0.8
    drawn = picture(region(right, (0, 1, 2), (0, 64), tuple(range(113)), tuple(range(113)))).splitlines()
    assert len(drawn) == LINES
    assert max(map(len, drawn)) <= COLUMNS
    assert drawn[-1].startswith("... and ")
    assert drawn[1].endswith(" ...")
