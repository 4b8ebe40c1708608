"""Sizes and scalars that are found: by names, by the sizes that have to agree, by trial runs; and
the remarks on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from protos import F, V, branches, large_kernel, proto, read

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.model import random_inputs
from taso_mirage.measure.hints import hints
from taso_mirage.measure.relations import agreed, relations
from taso_mirage.measure.session import Session
from taso_mirage.measure.sizes import SEEDS, TIMED, choices
from taso_mirage.pipeline import optimize_model
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config


def run(made: onnx.ModelProto, **options: Any) -> Result:
    return optimize_model(read(made), Config(budget=5, measure=False, **options))


def sizes(result: Result) -> dict[str, int]:
    return dict(result.workloads[0][0])


def note(result: Result, start: str) -> str:
    return next((n for n in result.notes if n.startswith(start)), "")


# ---------------------------------------------------------------- names and places


@pytest.mark.parametrize(
    ("name", "dtype", "dims", "expected"),
    [
        ("input_ids", T.INT64, ["batch_size", "sequence_length"], [1, 128]),
        ("ids", T.INT64, ["batch", "seqLen"], [1, 128]),
        ("key", F, ["batch", 4, "past_sequence_length", 16], [1, 256]),
        ("audio", F, ["n_samples"], [16_000]),
        ("image", F, [1, 3, "height", "width"], [224, 224]),
        ("x", F, [1, 3, "h", "w"], [224, 224]),
        ("x", F, ["n", 3, "s10", "s11"], [1, 224, 224]),
        ("x", F, ["N", 48, 48, 3], [1]),
        ("x", F, ["N", 15, "T"], [1, 128]),
        ("features", F, ["batch", 100, "time"], [1, 128]),
        ("sound", F, ["batch", "time"], [1, 16_000]),
        ("mel", F, [1, 80, "n_frames"], [128]),
        ("x", F, ["?", "?", "?", 3], [1, 224, 224]),
        ("ids", T.INT64, ["?", "?"], [1, 128]),
        ("x", F, ["n", "m"], [8, 8]),
        ("x", F, ["h", "w"], [8, 8]),
        ("x", F, ["?"], [8]),
        ("x", F, ["DynamicDimension.0", 3, "DynamicDimension.1", "DynamicDimension.2"], [1, 224, 224]),
        ("state", F, [2, "?", 128], [1]),  # layers, batch, hidden: of a recurrent state
        ("x", F, [2, "?", "?"], [8, 8]),
    ],
)
def test_names_and_places_suggest_sizes(name: str, dtype: int, dims: list[str | int], expected: list[int]) -> None:
    made = proto([h.make_node("Identity", [name], ["y"])], [V(name, dtype, dims)], [V("y", dtype, dims)])
    assert list(hints(read(made), 8).values()) == expected


# ---------------------------------------------------------------- sizes that have to agree


def decoder() -> onnx.ModelProto:
    """Scores over past and new keys, with a mask over both."""
    nodes = [
        h.make_node("Concat", ["past", "key"], ["keys"], axis=1),
        h.make_node("MatMul", ["query", "turned"], ["scores"]),
        h.make_node("Transpose", ["keys"], ["turned"], perm=[0, 2, 1]),
        h.make_node("Add", ["scores", "mask"], ["masked"]),
        h.make_node("Softmax", ["masked"], ["y"]),
    ]
    inputs = [
        V("query", F, ["batch", "sequence", 4]),
        V("key", F, ["batch", "sequence", 4]),
        V("past", F, ["batch", "past_length", 4]),
        V("mask", F, ["batch", 1, "all"]),
    ]
    return proto([nodes[0], nodes[2], nodes[1], *nodes[3:]], inputs, [V("y", F, None)])


def test_sums_have_to_agree() -> None:
    model = read(decoder())
    asked = relations(model)
    found = agreed({"batch": 1, "sequence": 5, "past_length": 6, "all": 8}, asked, [])
    assert found == {"batch": 1, "sequence": 5, "past_length": 6, "all": 11}
    held = agreed({"batch": 1, "sequence": 5, "past_length": 6, "all": 8}, asked, ["all"])
    assert held["sequence"] + held["past_length"] == held["all"] == 8


def test_a_decoder_with_a_cache_runs_at_once_and_every_dim_moves() -> None:
    result = run(decoder())
    assert sizes(result) == {"batch": 1, "sequence": 128, "past_length": 256, "all": 384}
    assert not note(result, "the sizes were found")
    assert note(result, "sizes: batch=1, sequence=128, past_length=256, all=384; other sizes checked: batch=4;")
    assert not note(result, "no other size")
    shapes = {tuple(np.shape(v) for v in case.inputs.values()) for case in result.cases}
    assert any(s[2][1] == 259 and s[3][2] == 387 for s in shapes)


def gathering(mask: str) -> onnx.ModelProto:
    """A cache that grows by one key, and a mask that is read at the place of each key."""
    nodes = [
        h.make_node("Concat", ["past", "key"], ["present"], axis=1),
        h.make_node("Shape", ["present"], ["long"], start=1, end=2),
        h.make_node("Squeeze", ["long"], ["length"]),
        h.make_node("Range", ["zero", "length", "one"], ["places"]),
        h.make_node("Gather", ["mask", "places"], ["y"], axis=1),
    ]
    inputs = [V("past", F, ["batch", "cached", 4]), V("key", F, ["batch", 1, 4]), V("mask", F, ["batch", mask])]
    outputs = [V("present", F, ["batch", "cached + 1", 4]), V("y", F, None)]

    return proto(nodes, inputs, outputs, zero=np.array(0), one=np.array(1))


@pytest.mark.parametrize(("mask", "remarked"), [("total", False), ("all", True)])
def test_a_mask_grows_with_the_cache(mask: str, remarked: bool) -> None:
    result = run(gathering(mask))
    assert sizes(result) == {"batch": 1, "cached": 256, mask: 257}
    assert bool(note(result, "the sizes were found by 2 trial runs")) == remarked
    shapes = {tuple(np.shape(v) for v in case.inputs.values()) for case in result.cases}
    assert {(s[0][1], s[2][1]) for s in shapes} == {(256, 257), (259, 260), (255, 256), (255, 257), (256, 260)}


def joined(second: str, *dims: str | int) -> onnx.ModelProto:
    """A product with 24 rows, of values that lie in a grid or come from a recurrent operator."""
    weights = {"s": [-1, 60], "w": np.ones((60, 24), np.float32), "a": np.ones((1, 12, 9), np.float32)}
    nodes = [
        h.make_node("Reshape", ["x", "s"], ["r"])
        if second == "Reshape"
        else h.make_node(second, ["x", "a", "b"], ["r"], hidden_size=3 if second == "LSTM" else 4),
        *([h.make_node("MatMul", ["r", "w"], ["y"])] if second == "Reshape" else [h.make_node("Relu", ["r"], ["y"])]),
    ]
    rows = {"LSTM": 3, "GRU": 4}.get(second, 3)
    return proto(nodes, [V("x", F, [*dims])], [V("y", F, None)], **weights, b=np.ones((1, 12, rows), np.float32))


@pytest.mark.parametrize(
    ("kind", "dims", "expected"),
    [
        ("Reshape", ("frames", 4, "bins"), {"frames": 128, "bins": 15}),
        ("Reshape", ("rows", "bins"), {"rows": 8, "bins": 60}),
        ("Reshape", ("rows", 15, "bins"), {"rows": 8, "bins": 8}),
        ("LSTM", ("time", 1, "features"), {"time": 128, "features": 9}),
        ("GRU", ("time", 1, "features"), {"time": 128, "features": 9}),
    ],
)
def test_weights_say_how_long_rows_are(kind: str, dims: tuple[str | int, ...], expected: dict[str, int]) -> None:
    result = run(joined(kind, *dims))
    assert sizes(result) == expected
    assert not note(result, "the sizes were found")


def test_no_size_is_changed_where_that_mends_nothing() -> None:
    """3 n = 128 has no solution."""
    model = read(proto([h.make_node("Reshape", ["x", "s"], ["y"])], [V("x", F, ["m", 3, "n"])], [], s=[-1, 128]))
    assert agreed({"m": 8, "n": 8}, relations(model), []) == {"m": 8, "n": 8}


# ---------------------------------------------------------------- trial runs


def reshaped(*shape: int, dims: Sequence[str | int] = ("n",)) -> onnx.ModelProto:
    nodes = [h.make_node("Reshape", ["x", "s"], ["r"], name="rows"), h.make_node("Relu", ["r"], ["y"])]
    return proto(nodes, [V("x", F, list(dims))], [V("y", F, None)], s=list(shape))


def test_the_first_sizes_that_run_take_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    plain = Session.run
    monkeypatch.setattr(Session, "run", lambda self, inputs: runs.append(1) or plain(self, inputs))
    from taso_mirage.search.config import settled_sizes

    made = proto([h.make_node("Relu", ["x"], ["y"])], [V("x", F, ["n"])], [V("y", F, ["n"])])
    settled = settled_sizes(read(made), Session(made.SerializeToString()), Config())
    assert len(runs) == 1
    assert settled.remarks == ()
    fixed = settled_sizes(read(made), Session(made.SerializeToString()), Config(shapes=(({"n": 4}, 1.0),)))
    assert len(runs) == 1
    assert dict(fixed.workloads[0][0]) == {"n": 4}


def test_images_that_are_too_small_grow() -> None:
    made = large_kernel()
    for dim, name in zip(list(made.graph.input[0].type.tensor_type.shape.dim)[2:], "ab", strict=True):
        dim.dim_param = name
    result = run(made)
    assert sizes(result) == {"n": 1, "a": 224, "b": 224}
    assert "n=1, a=8, b=8 the original does not run" in note(result, "the sizes were found by")


def test_named_images_run_at_once() -> None:
    assert sizes(run(large_kernel())) == {"n": 1, "height": 224, "width": 224}


@pytest.mark.parametrize(("shape", "expected"), [((-1, 32), 16 * 2), ((997,), 997), ((53, -1), 53)])
def test_what_a_reshape_asks_for_is_found(shape: tuple[int, ...], expected: int) -> None:
    """The last two stand in the runtime's message alone."""
    assert sizes(run(reshaped(*shape))) == {"n": expected}


def test_one_dim_is_moved_after_the_other() -> None:
    """Once the runtime fails at another node, the search goes on from there."""
    nodes = [
        h.make_node("Reshape", ["x", "s"], ["a"], name="first"),
        h.make_node("ReduceSum", ["a"], ["b"], keepdims=0),
        h.make_node("Reshape", ["z", "t"], ["c"], name="second"),
        h.make_node("Mul", ["b", "c"], ["y"]),
    ]
    made = proto(nodes, [V("x", F, ["n"]), V("z", F, ["m"])], [V("y", F, None)], s=[211], t=[307])
    assert sizes(run(made)) == {"n": 211, "m": 307}


def test_sizes_run_on_every_draw_that_the_check_needs() -> None:
    """Places are sums of a mask: how far they reach into the table depends on the drawn mask. 70
    rows are enough for the first draw of 128, and not for another."""
    made = proto(
        [
            h.make_node("CumSum", ["mask", "last"], ["count"]),
            h.make_node("Gather", ["table", "count"], ["y"]),
        ],
        [V("mask", T.INT64, ["batch", "sequence"])],
        [V("y", F, ["batch", "sequence", 4])],
        last=np.array(1),
        table=np.zeros((70, 4), np.float32),
    )
    found = sizes(run(made))
    reached = [random_inputs(read(made), seed, {"batch": 1, "sequence": 128})["mask"].sum() for seed in (*SEEDS, TIMED)]
    assert reached[0] < 70 <= max(reached)
    assert found["sequence"] < 128


def test_what_the_user_gave_stays() -> None:
    made = reshaped(-1, 32, dims=("n", "m"))
    assert sizes(run(made, shapes=(({"n": 5}, 1.0),))) == {"n": 5, "m": 32}
    with pytest.raises(InvalidOption, match="the sizes m=8 were chosen here") as error:
        run(reshaped(10_007, 37, dims=("n", "m")), shapes=(({"n": 5}, 1.0),))
    assert "Name:'rows'" in str(error.value)
    assert "x:5,8" in str(error.value)


def test_where_near_sizes_do_not_run_multiples_are_checked() -> None:
    result = run(reshaped(-1, 4))
    assert note(result, "sizes: n=8; other sizes checked: n=16")
    assert any(case.inputs["x"].shape == (16,) for case in result.cases)
    only = run(reshaped(997))
    assert note(only, "sizes: n=997; other sizes checked: none")
    assert note(only, "no other size of n was checked")


# ---------------------------------------------------------------- scalars


def switch() -> onnx.ModelProto:
    """Two branches that both run."""
    good = h.make_graph([h.make_node("Relu", ["x"], ["a"])], "then", [], [V("a", F, ["n"])])
    other = h.make_graph([h.make_node("Neg", ["x"], ["b"])], "else", [], [V("b", F, ["n"])])
    nodes = [
        h.make_node("Cast", ["rate"], ["wide"], to=T.INT64),
        h.make_node("Equal", ["wide", "known"], ["same"]),
        h.make_node("If", ["same"], ["y"], then_branch=good, else_branch=other),
    ]
    return proto(nodes, [V("x", F, ["n"]), V("rate", T.INT32, [1])], [V("y", F, ["n"])], known=np.array([8000]))


def test_numbers_that_a_scalar_is_compared_with_are_its_values() -> None:
    assert choices(read(branches())) == {"rate": [16_000, 0, 1]}
    assert choices(read(switch())) == {"rate": [8000, 0, 1]}


def test_every_branch_that_runs_is_checked() -> None:
    result = run(switch())
    assert {int(case.inputs["rate"][0]) for case in result.cases} >= {8000, 0, 1}
    assert note(result, "sizes: n=8, rate=8000; other sizes checked: n=11; n=7")


def test_a_branch_that_runs_is_found() -> None:
    result = run(branches())
    assert result.cases
    assert all(case.inputs["rate"] == 16_000 for case in result.cases if "rate" not in case.name)


def test_a_row_of_a_table_is_no_choice() -> None:
    nodes = [h.make_node("Gather", ["table", "position"], ["row"]), h.make_node("Relu", ["row"], ["y"])]
    made = proto(nodes, [V("table", F, [64, 4]), V("position", T.INT64, [1])], [V("y", F, [1, 4])])
    assert choices(read(made)) == {}
    result = run(made)
    assert "position" not in note(result, "sizes")
    assert len({int(case.inputs["position"][0]) for case in result.cases}) > 3


# ---------------------------------------------------------------- tensors that nobody can hold


def lying(first: int | str) -> onnx.ModelProto:
    """An opaque node whose result the file says to have a billion rows."""
    nodes = [h.make_node("Unique", ["x"], ["u"], axis=0, name="rows"), h.make_node("Relu", ["u"], ["y"])]
    made = proto(nodes, [V("x", F, [first, 4])], [V("y", F, None)])
    made.graph.value_info.append(V("u", F, [10**9, 4]))
    return made


def test_a_tensor_that_is_too_large_is_refused_before_it_is_made() -> None:
    result = run(lying(6))
    assert not result.changed
    assert result.kept is not None
    assert "the node 'rows' (Unique) gives float32[1000000000, 4], 32.0 GB" in result.kept
    with pytest.raises(InvalidOption, match=r"The node 'rows' \(Unique\) gives float32\[1000000000, 4\], 32.0 GB"):
        run(lying("n"))


def test_sizes_that_fill_the_memory_are_not_tried() -> None:
    made = proto(
        [h.make_node("Relu", ["x"], ["y"])],
        [V("x", F, ["audio_a", "audio_b", "audio_c"])],
        [V("y", F, ["audio_a", "audio_b", "audio_c"])],
    )
    result = run(made)
    assert sizes(result) == {"audio_a": 8, "audio_b": 8, "audio_c": 8}
    assert "16000, 16000, 16000]" in note(result, "the sizes were found by")


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("end", [10**9, 2**31 - 1])
def test_no_opset_takes_the_end_of_a_slice_for_a_size(opset: int, end: int) -> None:
    if opset < 10:
        cut = h.make_node("Slice", ["x"], ["a"], starts=[0], ends=[end])
    else:
        cut = h.make_node("Slice", ["x", "start", "end"], ["a"])
    nodes = [cut, h.make_node("NonZero", ["a"], ["y"])]
    weights = {} if opset < 10 else {"start": [0], "end": [end]}
    made = proto(nodes, [V("x", F, ["n", 4])], [V("y", T.INT64, None)], **weights)
    made.opset_import[0].version = opset
    result = run(made)
    assert result.cases
    assert not any("1000000000" in str(n.type) for n in result.original.nodes())
