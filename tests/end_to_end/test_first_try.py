"""Errors that stopped a first try on a model: sizes and integers that were made up, dims without
names, slices to the end, sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import commandline
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from protos import F, V, branches, large_kernel, map_given, proto, read, sequence_given

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.terms import Tensor
from taso_mirage.measure import check, sizes
from taso_mirage.measure.check_inputs import feed
from taso_mirage.onnx_io import load
from taso_mirage.pipeline import optimize_model
from taso_mirage.regions.kernel_regions import kernel_regions
from taso_mirage.search.config import Config


def run(made: onnx.ModelProto, **options: Any) -> Any:
    return optimize_model(read(made), Config(budget=1, measure=False, **options))


def command(*arguments: str | Path) -> tuple[int, str]:
    done = commandline.run(*arguments, check=None)
    return done.returncode, done.stdout + done.stderr


# ---------------------------------------------------------------- invented arguments


def test_sizes_that_do_not_run_are_named_with_what_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LENGTHS", "SINGLE"):  # at the last, as at a number of the message, x has a gigabyte
        monkeypatch.setattr(sizes, name, getattr(sizes, name)[:-1])
    path = tmp_path / "m.onnx"
    rows = proto(
        [h.make_node("Reshape", ["x", "s"], ["r"], name="rows"), h.make_node("Relu", ["r"], ["y"])],
        [V("x", F, ["n", "n"])],
        [V("y", F, None)],
        s=[1009 * 1009],
    )
    onnx.save(rows, path)
    code, said = command("optimize", path, "-o", tmp_path / "o.onnx", "--no-measure")
    assert code == 2
    assert "the sizes n=8 were chosen here" in said
    assert "other trials did not run either" in said
    assert "--shape NAME:SIZE" in said
    assert "x:8,8" in said
    assert "--inputs FILE.npz" in said
    assert "Name:'rows'" in said  # the runtime's own line
    assert not (tmp_path / "o.onnx").exists()
    code, said = command("optimize", path, "-o", tmp_path / "o.onnx", "--no-measure", "--shape", "n:1009")
    assert code == 0, said


def test_sizes_that_were_given_are_not_blamed() -> None:
    with pytest.raises(InvalidOption, match=r"the sizes n=1, width=224 were chosen here") as error:
        run(large_kernel(), shapes=(({"height": 3}, 1.0),))
    assert "height=" not in str(error.value)


def test_integers_that_do_not_run_are_named() -> None:
    """Two elements cannot be three rows."""
    made = proto(
        [h.make_node("Reshape", ["x", "rows"], ["y"])],
        [V("x", F, [6]), V("rows", T.INT64, [2])],
        [V("y", F, [None, None])],
    )
    with pytest.raises(InvalidOption, match=r"0 or 1 for 'rows' \(int64\[2\]\) were chosen here.*inputs=") as error:
        run(made)
    assert "shape=" not in str(error.value)


def test_sizes_at_which_there_are_no_results_are_left() -> None:
    """The runtime gives nothing for a window that is larger than the image, and no error (Paddle's
    recognizers)."""
    pool = h.make_node("MaxPool", ["x"], ["p"], kernel_shape=[12, 12], strides=[12, 12])
    made = proto(
        [pool, h.make_node("Relu", ["p"], ["y"])], [V("x", F, [1, 1, "p", "q"])], [V("y", F, [1, 1, None, None])]
    )
    result = run(made)
    assert dict(result.workloads[0][0]) == {"p": 224, "q": 224}
    assert all(output.size for case in result.cases for output in case.original)
    with pytest.raises(InvalidOption, match="the sizes q=8 were chosen here"):
        run(made, shapes=(({"p": 8}, 1.0),))


def test_further_sizes_that_were_left_out_are_said_in_one_line() -> None:
    made = proto(
        [h.make_node("Reshape", ["x", "s"], ["r"]), h.make_node("Relu", ["r"], ["y"])],
        [V("x", F, ["n"])],
        [V("y", F, None)],
        s=[-1, 4],
    )
    result = run(made)
    assert [n for n in result.notes if "left out" in n] == [
        "the check left out n=11; n=7: the original does not run there"
    ]


# ---------------------------------------------------------------- the user's inputs


GIVEN = {"x": np.linspace(-1, 1, 32, dtype=np.float32), "rate": np.array(16000)}


def test_the_users_inputs_come_before_the_draws() -> None:
    """The rate is kept, because it chooses a branch; the rest is drawn as without inputs."""
    result = run(branches(), inputs=(GIVEN,))
    assert result.changed
    names = [case.name for case in result.cases]
    assert names[:4] == ["the given inputs 1", "random inputs 1", "random inputs 2", "random inputs 3"]
    assert [case.inputs["x"].shape for case in result.cases[4:]] == [(35,), (31,)]
    assert all(case.inputs["rate"] == 16000 for case in result.cases)
    assert max(np.abs(case.inputs["x"]).max() for case in result.cases[1:4]) > 1


def test_integers_are_drawn_beside_the_users_if_the_original_runs_there() -> None:
    nodes = [h.make_node("Gather", ["t", "i"], ["g"]), h.make_node("Relu", ["g"], ["y"])]
    made = proto(nodes, [V("i", T.INT64, [3])], [V("y", F, [3])], t=np.ones(5, np.float32))
    result = run(made, inputs=({"i": np.array([2, 2, 1])},))
    drawn = [case.inputs["i"] for case in result.cases[1:4]]
    assert [case.name for case in result.cases][1:4] == ["random inputs 1", "random inputs 2", "random inputs 3"]
    assert any(list(i) != [2, 2, 1] for i in drawn)


def test_the_users_floats_are_varied_if_the_original_runs_on_no_others() -> None:
    """A float chooses one of two rows of a table, and 2.1 chooses none."""
    nodes = [
        h.make_node("Cast", ["f"], ["i"], to=T.INT64),
        h.make_node("Gather", ["t", "i"], ["g"]),
        h.make_node("Neg", ["g"], ["m"]),
        h.make_node("Neg", ["m"], ["y"]),
    ]
    made = proto(nodes, [V("f", F, [512])], [V("y", F, [512])], t=np.ones(2, np.float32))
    given = {"f": np.linspace(0, 1.9, 512, dtype=np.float32)}
    result = run(made, inputs=(given,))
    assert result.changed
    others = [f"the given integers with other floats {i}" for i in (1, 2, 3)]
    assert [case.name for case in result.cases] == ["the given inputs 1", *others]
    assert any("no random inputs beside the given ones" in note for note in result.notes)


def test_sizes_that_the_users_inputs_do_not_have_are_drawn_beside_their_integers() -> None:
    result = run(branches(), inputs=(GIVEN,), shapes=(({"n": 32}, 2.0), ({"n": 5}, 1.0)))
    assert [case.inputs["x"].shape for case in result.cases] == [*[(32,)] * 4, (5,), (35,), (31,)]
    assert all(case.inputs["rate"] == 16000 for case in result.cases)


def test_the_timing_runs_on_the_users_integers_too() -> None:
    model = read(branches())
    assert feed(model, (GIVEN,), {"n": 32}) is GIVEN
    other = feed(model, (GIVEN,), {"n": 5})
    assert other["rate"] == 16000
    assert other["x"].shape == (5,)


def test_the_command_runs_on_the_users_inputs(tmp_path: Path) -> None:
    onnx.save(branches(), tmp_path / "m.onnx")
    np.savez(tmp_path / "given.npz", **GIVEN)
    code, said = command(
        "optimize",
        tmp_path / "m.onnx",
        "-o",
        tmp_path / "o.onnx",
        "--no-measure",
        "--inputs",
        tmp_path / "given.npz",
    )
    assert code == 0, said
    assert command("diff", tmp_path / "m.onnx", tmp_path / "o.onnx", "--inputs", tmp_path / "given.npz")[0] == 0


# ---------------------------------------------------------------- dims


@pytest.mark.parametrize("name", ["?", "", "*", "None", "unknown", -1])
def test_dims_without_a_name_are_each_a_dim_of_their_own(name: str | int) -> None:
    """Paddle calls them all "?"."""
    made = proto(
        [h.make_node("Relu", ["x"], ["r"]), h.make_node("Neg", ["r"], ["m"]), h.make_node("Neg", ["m"], ["y"])],
        [V("x", F, [1, 3, None, None])],
        [V("y", F, [1, 3, None, None])],
    )
    for value in (*made.graph.input, *made.graph.output):
        for dim in list(value.type.tensor_type.shape.dim)[2:]:
            if isinstance(name, int):
                dim.dim_value = name
            else:
                dim.dim_param = name
    model = read(made)
    assert len(model.symbols()) == 2
    given = {"x": np.random.default_rng(0).normal(size=(1, 3, 4, 6)).astype(np.float32)}
    result = optimize_model(model, Config(budget=1, measure=False, inputs=(given,)))
    assert result.changed
    assert all(d.passed for d in result.differences)


def test_dims_with_one_name_are_one_dim() -> None:
    made = proto(
        [h.make_node("Add", ["x", "z"], ["y"])], [V("x", F, ["n", 2]), V("z", F, ["n", 2])], [V("y", F, ["n", 2])]
    )
    assert read(made).symbols() == ["n"]


def sliced(end: int, *after: onnx.NodeProto) -> onnx.ModelProto:
    cut = h.make_node("Slice", ["x", "start", "end"], ["a"])
    return proto(
        [cut, *(after or [h.make_node("NonZero", ["a"], ["y"])])],
        [V("x", F, ["n", 4])],
        [V("y", T.INT64 if not after else F, None)],
        start=[0],
        end=[end],
    )


@pytest.mark.parametrize("end", [2**31 - 1, 10**9, 10**8, 999_999, 5])
def test_a_slice_to_far_beyond_the_end_is_no_dim_of_that_size(end: int) -> None:
    """Magika: a gigabyte for every filter."""
    model = read(sliced(end))
    dims = [d for n in model.nodes() if isinstance(n.type, Tensor) for d in n.tensor.shape or ()]
    assert end not in dims
    assert optimize_model(model, Config(budget=1, measure=False)).cases


def test_a_slice_to_a_billion_is_no_slice() -> None:
    relu = [h.make_node("Relu", ["a"], ["b"]), h.make_node("Relu", ["b"], ["y"])]
    result = run(sliced(10**9, *relu))
    assert [n.op for n in result.model.nodes()] == ["input", "relu"]
    assert all(d.passed for d in result.differences)


def test_a_slice_of_a_fixed_dim_ends_where_that_does() -> None:
    made = sliced(10**8)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 6
    kinds = {str(n.type) for n in read(made).nodes()}
    assert "float32[6, 4]" in kinds
    assert not any("100000000" in kind for kind in kinds)


# ---------------------------------------------------------------- sequences, maps, and values without a type


def zipped(name: str) -> onnx.ValueInfoProto:
    """A sequence of maps from labels to probabilities."""
    value = onnx.ValueInfoProto(name=name)
    kind = value.type.sequence_type.elem_type.map_type
    kind.key_type = T.INT64
    kind.value_type.tensor_type.elem_type = F
    return value


def forest() -> onnx.ModelProto:
    """A classifier of scikit-learn as skl2onnx writes it: no value inside has a type."""
    leaves = {
        "class_ids": [0, 1, 0, 1],
        "class_nodeids": [1, 1, 2, 2],
        "class_treeids": [0] * 4,
        "class_weights": [0.3, 0.7, 0.6, 0.4],
        "classlabels_int64s": [0, 1],
        "post_transform": "NONE",
    }
    nodes = {
        "falsenodeids": [2, 0, 0],
        "featureids": [0] * 3,
        "hitrates": [1.0] * 3,
        "missing_value_tracks_true": [0] * 3,
        "modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodeids": [0, 1, 2],
        "treeids": [0] * 3,
        "truenodeids": [1, 0, 0],
        "values": [0.5, 0.0, 0.0],
    }
    attributes = leaves | {f"nodes_{k}": v for k, v in nodes.items()}
    made = [
        h.make_node("Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=[0.1] * 4, scale=[2.0] * 4),
        h.make_node("TreeEnsembleClassifier", ["scaled"], ["label", "p"], domain="ai.onnx.ml", **attributes),
        h.make_node("Cast", ["label"], ["out"], to=T.INT64),
        h.make_node("ZipMap", ["p"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]
    return proto(made, [V("x", F, ["n", 4])], [V("out", T.INT64, ["n"]), zipped("probabilities")])


def network_with_a_map() -> onnx.ModelProto:
    w = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["m"]),
        h.make_node("Relu", ["m"], ["a"]),
        h.make_node("Relu", ["a"], ["b"]),
        h.make_node("Softmax", ["b"], ["p"]),
        h.make_node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]
    return proto(nodes, [V("x", F, ["n", 4])], [zipped("y")], w=w)


def sequence(at: str = "s") -> onnx.ModelProto:
    nodes = [
        h.make_node("SequenceConstruct", ["x", "z"], ["s"]),
        h.make_node("SequenceAt", ["s", "one"], ["a"]),
        h.make_node("Relu", ["a"], ["y"]),
    ]
    values = [V("x", F, ["n", 4]), V("z", F, ["n", 4])]
    out = [V("y", F, ["n", 4]), h.make_tensor_sequence_value_info("s", F, None)]
    return proto(nodes, values, out, one=np.array(1))


def empty_sequence() -> onnx.ModelProto:
    nodes = [
        h.make_node("SequenceEmpty", [], ["s"], dtype=1),
        h.make_node("SequenceInsert", ["s", "x"], ["t"]),
        h.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    return proto(nodes, [V("x", F, ["n", 4])], [V("y", F, None)])


def optional() -> onnx.ModelProto:
    nodes = [h.make_node("Optional", ["x"], ["o"]), h.make_node("OptionalGetElement", ["o"], ["y"])]
    return proto(nodes, [V("x", F, ["n", 4])], [V("y", F, ["n", 4])])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [forest, sequence, empty_sequence, sequence_given, map_given, optional])
def test_models_of_sequences_and_maps_are_kept(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(make(), path)
    model = load(path)
    result = optimize_model(model, Config(budget=0.5, seconds=0.1, kernels="search"))
    opaque = [[str(n.attr("call")) for n in each.nodes() if n.op == "opaque"] for each in (model, result.model)]
    assert opaque[0] == opaque[1]
    # the scale before the forest has other forms that take as long: noise may choose one
    assert not result.changed or make is forest
    assert result.notes
    code, said = command("optimize", path, "-o", out, "--kernels", "off", "--no-measure", "--budget", "1")
    assert code == 0, said
    assert "kept" in said
    assert [n.op_type for n in onnx.load(out).graph.node] == [n.op_type for n in onnx.load(path).graph.node]


def test_a_network_before_a_map_is_optimized_and_checked() -> None:
    result = run(network_with_a_map())
    assert result.changed
    assert len(result.differences) == len(result.cases) >= 3
    assert all(d.passed for d in result.differences)


def test_the_criterion_of_maps_and_sequences_is_that_of_their_arrays() -> None:
    old = [{0: 0.25, 1: 0.75}, {0: 0.5, 1: 0.5}]
    near = [{0: 0.25 + 2**-26, 1: 0.75}, {0: 0.5, 1: 0.5}]
    far = [{0: 0.26, 1: 0.75}, {0: 0.5, 1: 0.5}]
    assert check.difference("c", "y", near, old, old).passed
    for wrong in (far, old[:1], [{1: 0.25, 0: 0.75}, old[1]], [old[0], {0: 0.5}], None):
        assert not check.difference("c", "y", wrong, old, old).passed
    array = np.ones(3, np.float32)
    assert check.difference("c", "y", [array, array + 1e-7], [array, array], [array, array]).passed
    assert not check.difference("c", "y", [array, array + 1e-2], [array, array], [array, array]).passed


def test_terms_without_a_known_rank_are_in_no_region() -> None:
    """Silero's detector in half precision: an internal error of the search for kernels."""
    good = h.make_graph([h.make_node("Relu", ["x"], ["a"])], "then", [], [onnx.ValueInfoProto(name="a")])
    bad = h.make_graph(
        [h.make_node("ReduceSum", ["x"], ["b"], keepdims=0)], "else", [], [onnx.ValueInfoProto(name="b")]
    )
    nodes = [
        h.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        h.make_node("Greater", ["top", "zero"], ["c"]),
        h.make_node("If", ["c"], ["r"], then_branch=good, else_branch=bad),
        h.make_node("MatMul", ["x", "w"], ["m"]),
        h.make_node("Tanh", ["m"], ["t"]),
        h.make_node("Softmax", ["t"], ["y"]),
    ]
    made = proto(
        nodes,
        [V("x", F, [4, 4])],
        [V("y", F, [4, 4]), V("r", F, None)],
        zero=np.array(0, np.float32),
        w=np.eye(4, dtype=np.float32),
    )
    model = read(made)
    assert any(n.op == "opaque" and n.tensor.shape is None for n in model.nodes())
    assert kernel_regions(model, {})
    result = optimize_model(model, Config(budget=1, seconds=0.1, kernels="cached"))
    assert not any("internal" in note for note in result.notes)
