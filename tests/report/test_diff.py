"""`taso-mirage diff`: differences in structure, equal numbers by the check's criterion, and clear
words where models do not correspond."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commandline import run, run_apart
from onnx import TensorProto, helper, numpy_helper

from taso_mirage.errors import CheckFailed, InvalidOption
from taso_mirage.measure.session import working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.onnx_io import load
from taso_mirage.report.diff import diff_data, failure, number_lines, numbers, structure, structure_lines

F = TensorProto.FLOAT
Build = Callable[..., Path]
RELU = [("Relu", ["x"], ["y"])]
TWICE = [("Relu", ["x"], ["a"]), ("Relu", ["a"], ["y"])]
WIDE = 2048
"""Elements of a weight that is not small enough to be a constant inside a term."""
SCALED = [("Mul", ["x", "k"], ["y"])]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def build(
        name: str,
        nodes: Sequence[tuple[str, list[str], list[str]]],
        shape: Sequence[Any] = ("n", 4),
        opset: int = 17,
        outputs: Sequence[str] = ("y",),
        source: str = "x",
        types: tuple[int, int] = (F, F),
        **weights: Any,
    ) -> Path:
        info = [helper.make_tensor_value_info(source, types[0], shape)]
        results = [helper.make_tensor_value_info(o, types[1], shape) for o in outputs]
        stored = [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in weights.items()]
        graph = helper.make_graph([helper.make_node(*n) for n in nodes], "g", info, results, stored)
        opsets = [helper.make_opsetid("", opset)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / f"{name}.onnx")
        return tmp_path / f"{name}.onnx"

    return build


def lines(a: Path, b: Path) -> list[str]:
    return list(structure_lines(structure(load(a), load(b))))


def test_equal_models(build: Build) -> None:
    values = np.r_[np.arange(WIDE - 1), np.nan]
    a, b = (load(build(name, SCALED, ("n", WIDE), k=values)) for name in "ab")
    assert structure(a, b).equal
    assert list(structure_lines(structure(a, b))) == ["structure: equal, 1 terms"]


def test_operators_and_where_the_models_begin_to_differ(build: Build) -> None:
    a = build("a", TWICE)
    b = build("b", [("Relu", ["x"], ["a"]), ("Tanh", ["a"], ["t"]), ("Neg", ["t"], ["y"])], opset=18)
    assert lines(a, b) == [
        "structure: 1 terms only in the first model, 1 in both, 2 only in the second",
        "  neg: 0 -> 1 (+1)",
        "  relu: 2 -> 1 (-1)",
        "  tanh: 0 -> 1 (+1)",
        "  opset ai.onnx: 17 -> 18",
        "where the first model begins to differ:",
        "  y = relu(<relu>)",
        "where the second model begins to differ:",
        "  t = tanh(<relu>)",
    ]


def test_weights_are_compared_by_name_type_and_value(build: Build) -> None:
    one = np.arange(WIDE)
    a = build("a", [("Mul", ["x", "k"], ["a"]), ("Add", ["a", "l"], ["y"])], ("n", WIDE), k=one, l=one)
    b = build("b", [("Mul", ["x", "k"], ["a"]), ("Add", ["a", "m"], ["y"])], ("n", WIDE), k=one * 2, m=one[None])
    found = structure(load(a), load(b))
    assert found.weights == {
        "k": ("float32[2048], its values", "float32[2048], other values"),
        "l": ("float32[2048]", None),
        "m": (None, "float32[1, 2048]"),
    }
    assert found.terms == (1, 1, 1)
    assert "  weight l: float32[2048] -> none" in lines(a, b)


def test_numbers_within_the_criterion(build: Build) -> None:
    a, b = load(build("a", TWICE)), load(build("b", RELU))
    differences = numbers(a, b, {})
    assert failure(differences) is None
    assert {"random inputs 1", "random inputs at n=11"} <= {d.case for d in differences}
    assert (
        next(number_lines(differences))
        == f"numbers: {len(differences)} of {len(differences)} outputs on 5 input sets within the bound"
    )


def test_numbers_that_differ(build: Build) -> None:
    a, b = load(build("a", SCALED, k=np.full(4, 2.0))), load(build("b", SCALED, k=np.full(4, 2.0001)))
    differences = numbers(a, b, {})
    problem = failure(differences)
    assert isinstance(problem, CheckFailed)
    assert "above the bound" in str(problem)
    assert diff_data(structure(a, b), differences)["equal"] is False


def test_outputs_in_another_order_are_compared_by_name(build: Build) -> None:
    nodes = [("Relu", ["x"], ["y"]), ("Neg", ["x"], ["z"])]
    a, b = load(build("a", nodes, outputs=("y", "z"))), load(build("b", nodes, outputs=("z", "y")))
    assert failure(numbers(a, b, {})) is None
    swapped = load(build("c", [("Relu", ["x"], ["z"]), ("Neg", ["x"], ["y"])], outputs=("y", "z")))
    assert failure(numbers(a, swapped, {})) is not None


def test_sizes_that_only_the_second_fixes_are_taken(build: Build) -> None:
    a, b = load(build("a", TWICE)), load(build("b", RELU, shape=(3, 4)))
    differences = numbers(a, b, {})
    assert {d.case for d in differences} == {"random inputs 1", "random inputs 2", "random inputs 3"}
    assert failure(differences) is None
    assert failure(numbers(b, a, {})) is None
    with pytest.raises(InvalidOption, match="takes none of the sizes"):
        numbers(a, b, {"n": 5})


def test_equal_names_of_dims_must_be_equal_sizes(build: Build) -> None:
    """The second model, with one name for both n and m, takes only the equal sizes among those
    tried."""
    a, b = load(build("a", TWICE, shape=("n", "m"))), load(build("b", RELU, shape=("k", "k")))
    differences = numbers(a, b, {})
    assert {d.case for d in differences} == {"random inputs 1", "random inputs 2", "random inputs 3"}
    assert failure(differences) is None


def test_a_random_model_cannot_be_compared(build: Build) -> None:
    nodes = [("RandomNormalLike", ["x"], ["y"])]
    with pytest.raises(CheckFailed, match="other outputs at every run"):
        numbers(load(build("a", nodes)), load(build("b", nodes)), {})


NO_PAIR = [
    (
        {"source": "z", "nodes": [("Relu", ["z"], ["y"])]},
        "the input 'x' of the first model is not in the second, whose inputs are z",
    ),
    ({"outputs": ("a", "y"), "nodes": TWICE}, "the output 'a' of the second model is not in the first"),
    ({"shape": ("n", 5)}, "dimension 1 of the input 'x' is 4 in the first model, 5 in the second"),
    ({"shape": (4,)}, "the output 'y' has 2 dimensions in the first model, 1 in the second"),
    (
        {"types": (TensorProto.DOUBLE, TensorProto.DOUBLE)},
        "the output 'y' is float32 in the first model, float64 in the second",
    ),
]


@pytest.mark.parametrize(("other", "message"), NO_PAIR, ids=[m for _, m in NO_PAIR])
def test_models_that_do_not_correspond(build: Build, other: dict[str, Any], message: str) -> None:
    a, b = load(build("a", RELU)), load(build("b", **{"nodes": RELU, **other}))
    with pytest.raises(InvalidOption, match=message):
        numbers(a, b, {})


# ---------------------------------------------------------------- the command


def test_the_command_and_its_exit_codes(build: Build, tmp_path: Path) -> None:
    a, b, c = build("a", TWICE), build("b", RELU), build("c", [("Neg", ["x"], ["y"])])
    np.savez(tmp_path / "in.npz", x=np.ones((2, 4), np.float32))
    same = run_apart("diff", a, b, "--shape", "n:5", "--inputs", tmp_path / "in.npz")
    assert same.stderr == ""
    assert "relu: 2 -> 1 (-1)" in same.stdout
    assert "within the bound" in same.stdout
    other = run("diff", a, c, check=5)
    assert other.stderr.startswith("taso-mirage: the models differ: output 'y' on random inputs 1")
    assert other.stderr.count("\n") == 1


def test_where_both_run_is_asked_for(build: Build) -> None:
    a = build("a", RELU)
    assert "the targets are: cpu, cuda" in run("diff", a, a, "--target", "tpu", check=2).stderr
    if CUDA.provider not in working_providers():
        assert "CUDAExecutionProvider" in run("diff", a, a, "--target", "cuda", check=6).stderr


def test_the_command_as_json(build: Build) -> None:
    a, b, d = build("a", TWICE), build("b", RELU), build("d", [("Relu", ["z"], ["y"])], source="z")
    found = json.loads(run("diff", a, b, "--json").stdout)
    assert found["equal"] is True
    assert found["structure"]["operators"] == {"relu": [2, 1]}
    assert found["structure"]["terms"] == {"only_first": 1, "both": 1, "only_second": 0}
    done = run("diff", a, d, "--json", check=2)
    assert "is not in the second" in done.stderr
    assert json.loads(done.stdout)["numeric"] is None
