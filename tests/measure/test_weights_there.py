"""Large weights go to the process of the runtime once, sessions share them, and the runtime makes
the same of a model as of its file."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from taso_mirage import api
from taso_mirage.errors import RuntimeCrashed
from taso_mirage.ir.model import Model, StoredWeight, random_inputs
from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.measure.child import child, in_child
from taso_mirage.measure.target import CPU, Target
from taso_mirage.onnx_io import from_ir, from_proto, load, serialize, serialize_apart
from taso_mirage.onnx_io.external import FilesInPlace
from taso_mirage.pipeline.stages import optimize_model
from taso_mirage.search.config import Config
from taso_mirage.search.weights import fold_weights
from taso_mirage.targets.onnx_runtime import dumped_graph, inference_session, ort_values, runtime_nodes

ROOT = Path(__file__).parents[2]
WIDE = 520
"""Columns and rows of a weight that is large enough to go apart."""


def layers(count: int) -> Model:
    """Linear layers, each with a weight of its own that is transposed first."""
    draw, nodes, weights = np.random.default_rng(0), [], []
    for i in range(count):
        weights.append(
            onnx.numpy_helper.from_array(draw.standard_normal((WIDE, WIDE)).astype(np.float32) / 20, f"w{i}")
        )
        nodes += [
            onnx.helper.make_node("Transpose", [f"w{i}"], [f"t{i}"], perm=[1, 0]),
            onnx.helper.make_node("MatMul", [f"x{i}", f"t{i}"], [f"m{i}"]),
            onnx.helper.make_node("Relu", [f"m{i}"], [f"r{i}"]),
            onnx.helper.make_node("Relu", [f"r{i}"], [f"x{i + 1}"]),
        ]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, WIDE]) for name in ("x0", f"x{count}")]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return from_ir(
        from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10))
    )


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls to the runtime's process by the name of the function, and the bytes of weights."""
    found: Counter[str] = Counter()

    def counted(function: Any, *args: Any) -> Any:
        found[function.__name__] += 1
        if function is native.keep_weights:
            found["bytes"] += sum(each.nbytes for each in args[0])
        return in_child(function, *args)

    monkeypatch.setattr(runtime, "in_child", counted)
    return found


def test_sessions_share_weights_that_go_to_the_process_once(sent: Counter[str]) -> None:
    made = layers(3)
    size = 3 * 4 * WIDE * WIDE
    x = np.ones((4, WIDE), np.float32)
    plain = runtime.Session(serialize(made)).run({"x0": x})
    sessions = [runtime.open_in_child(made, source=source) for source in (True, False, False)]
    for session in sessions:
        np.testing.assert_array_equal(session.run({"x0": x}), plain)
    assert sent["bytes"] == size
    assert in_child(held) >= size
    del session, sessions, made
    gc.collect()
    assert in_child(held) < size


def test_many_weights_go_in_few_calls(sent: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call waits for Python's lock, which another thread may hold for long."""
    made = layers(8)
    runtime.open_in_child(made)
    assert sent["keep_weights"] == 1
    monkeypatch.setattr(runtime, "TOGETHER", 3 * 4 * WIDE * WIDE)
    others = layers(8)
    runtime.open_in_child(others)
    assert sent["keep_weights"] == 1 + 2


def in_a_file(made: Model, folder: Path, begin: int = 0) -> Model:
    """A model whose large weights were read from a file beside it, from a byte on."""
    proto, content = onnx.load_from_string(serialize(made)), bytearray(begin)
    for tensor in proto.graph.initializer:
        if len(tensor.raw_data) > 1000:
            for key, value in (("location", "w"), ("offset", len(content)), ("length", len(tensor.raw_data))):
                tensor.external_data.add(key=key, value=str(value))
            content += tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
    (folder / "w").write_bytes(content)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return load(folder / "m.onnx")


@pytest.mark.parametrize("target", [CPU, CPU.serial])
def test_weights_in_a_file_stay_there(sent: Counter[str], tmp_path: Path, target: Target) -> None:
    """The runtime maps them itself, as in a user's session: nothing is sent, and nothing stays
    open."""
    made, x = in_a_file(layers(2), tmp_path), np.ones((4, WIDE), np.float32)
    plain = runtime.Session(str(tmp_path / "m.onnx")).run({"x0": x})
    numbers = os.listdir("/proc/self/fd")
    for source in (True, False):
        session = runtime.open_in_child(made, target, source=source)
        np.testing.assert_array_equal(session.run({"x0": x}), plain)
    assert sent["bytes"] == 0
    assert os.listdir("/proc/self/fd") == numbers


def test_weights_of_a_file_that_is_another_one_now_are_sent(sent: Counter[str], tmp_path: Path) -> None:
    """A model runs with the weights that were read, whatever its file becomes."""
    made, x = in_a_file(layers(2), tmp_path), np.ones((4, WIDE), np.float32)
    plain = runtime.open_in_child(made).run({"x0": x})
    for there in ("zeros", "link", "none"):
        (tmp_path / "w").unlink(missing_ok=True)
        if there == "link":
            (tmp_path / "w").symlink_to(tmp_path / "other")
        (tmp_path / "other").write_bytes(bytes(2 * 4 * WIDE * WIDE))
        if there == "zeros":
            (tmp_path / "other").rename(tmp_path / "w")
        np.testing.assert_array_equal(runtime.open_in_child(made, anew=True).run({"x0": x}), plain)
    assert sent["bytes"] == 2 * 4 * WIDE * WIDE


def test_weights_at_odd_places_of_a_file_are_sent_to_a_processor(sent: Counter[str], tmp_path: Path) -> None:
    """Weights lie in memory as in the file that will be written."""
    made, x = in_a_file(layers(1), tmp_path, begin=4), np.ones((4, WIDE), np.float32)
    runtime.open_in_child(made).run({"x0": x})
    assert sent["bytes"] == 4 * WIDE * WIDE
    with FilesInPlace() as files:
        assert not serialize_apart(made, files=files, aligned=1)[1]
        assert serialize_apart(made, files=files, aligned=native.ALIGNED)[1]


def held() -> int:
    """Bytes of the weights that the process of the runtime has."""
    return sum(each.nbytes for each in native._WEIGHTS.values())


def test_a_process_that_is_started_anew_gets_the_weights_again(sent: Counter[str]) -> None:
    made = layers(1)
    session = runtime.open_in_child(made)
    x = np.ones((4, WIDE), np.float32)
    before = session.run({"x0": x})
    child().stop()
    np.testing.assert_array_equal(session.run({"x0": x}), before)
    assert sent["keep_weights"] == 2


@pytest.mark.sampled(3)
def test_computed_weights_go_once_too(sent: Counter[str]) -> None:
    """A weight that was folded is the same in every candidate that has it."""
    found = optimize_model(layers(2), Config(kernels="off", budget=5))
    assert found.failure is None, found.notes
    assert sent["open_session"] > 2
    assert sent["bytes"] <= 2 * 2 * 4 * WIDE * WIDE  # as they were read, and transposed


def test_what_is_computed_twice_is_one_weight() -> None:
    """Two ways to one graph find one graph; weights of another value make another one."""
    made = layers(2)
    weights = dict(made.weights)
    first, _ = fold_weights(made, weights)
    weights.update(first.weights)
    again, steps = fold_weights(made, weights)
    assert steps
    assert again.graph == first.graph
    assert all(again.weights[name] is each for name, each in first.weights.items())
    ones = replace(made, weights={name: StoredWeight(np.ones_like(w.numpy())) for name, w in made.weights.items()})
    other, _ = fold_weights(ones, weights)
    assert not other.weights.keys() & first.weights.keys()
    assert all((each.numpy() == 1).all() for each in other.weights.values())


@pytest.fixture
def files() -> Iterator[FilesInPlace]:
    with FilesInPlace() as opened:
        yield opened


@pytest.mark.parametrize("source", [False, True])
def test_the_runtime_makes_the_same_of_a_model_whose_weights_are_apart(
    tmp_path: Path, source: bool, files: FilesInPlace
) -> None:
    """The measured model is the written one: the runtime folds, fuses and lays out shared weights
    too."""
    read = in_a_file(layers(3), tmp_path)
    for number, made in enumerate((load(ROOT / "models" / "mini_transformer.onnx"), layers(2), convolutions(), read)):
        content, apart = serialize_apart(made, source, above=100, files=files)
        assert bool(apart) == (made is not read)
        graphs = []
        for name, model, weights in (("whole", serialize(made, source), {}), ("apart", content, apart)):
            path = tmp_path / f"{name}{number}.onnx"
            given = ort_values({each: weight.numpy() for each, weight in weights.items()})
            inference_session(model, ["CPUExecutionProvider"], apart=given, dump=str(path))
            graphs.append(onnx.load(path).graph)
        assert [(n.op_type, n.input, n.output) for n in graphs[0].node] == [
            (n.op_type, n.input, n.output) for n in graphs[1].node
        ]
        arrays = [{w.name: onnx.numpy_helper.to_array(w) for w in graph.initializer} for graph in graphs]
        assert arrays[0].keys() == arrays[1].keys()
        for each, array in arrays[0].items():
            np.testing.assert_array_equal(array, arrays[1][each])


def test_nodes_are_counted_without_writing_weights(tmp_path: Path) -> None:
    """The runtime makes the same nodes of a model, and no weight of it reaches a disk."""
    for number, made in enumerate((layers(2), convolutions())):
        content, folders = serialize(made), [tmp_path / f"{number}{name}" for name in ("whole", "graph")]
        for folder in folders:
            folder.mkdir()
        whole = folders[0] / "optimized.onnx"
        inference_session(content, ["CPUExecutionProvider"], dump=str(whole))
        graph = dumped_graph(content, ["CPUExecutionProvider"], str(folders[1]))
        nodes = [onnx.load(path, load_external_data=False).graph.node for path in (whole, graph)]
        assert nodes[0] == nodes[1]
        written = [sum(each.lstat().st_size for each in folder.iterdir()) for folder in folders]
        assert written[1] < written[0] / 2
        assert runtime_nodes(content, ["CPUExecutionProvider"]) == len(nodes[0])


def convolutions() -> Model:
    """A batch norm that goes into a convolution, whose weights get a blocked layout."""
    draw = np.random.default_rng(1)
    weight = draw.standard_normal((32, 16, 3, 3)).astype(np.float32)
    parts = {name: draw.uniform(0.5, 1.5, 32).astype(np.float32) for name in ("scale", "bias", "mean", "var")}
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            onnx.helper.make_node("BatchNormalization", ["c", *parts], ["n"]),
            onnx.helper.make_node("Relu", ["n"], ["y"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 16, 8, 8])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 32, 8, 8])],
        [onnx.numpy_helper.from_array(array, name) for name, array in {"w": weight, **parts}.items()],
    )
    return from_ir(
        from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10))
    )


@pytest.mark.sampled(2)
def test_the_process_starts_while_the_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process has a session on the target, and so its libraries, before anything waits for
    it."""
    began: list[int] = []
    child().stop()

    def reading(path: Path, trust: bool) -> Model:
        began.append(child()._owed)
        return load(path, trust)

    monkeypatch.setattr(api, "load", reading)
    path = tmp_path / "model.onnx"
    path.write_bytes((ROOT / "models" / "mini_transformer.onnx").read_bytes())
    api.optimize(path, effort="quick")
    assert began == [2]  # the start of the process, and that of the runtime
    assert child()._owed == 0


@pytest.mark.sampled(2)
def test_what_fails_ahead_of_need_fails_where_it_is_needed() -> None:
    child().stop()
    child().begin(broken)
    assert in_child(held) == 0
    child().begin(crashing)
    with pytest.raises(RuntimeCrashed):
        in_child(held)
    assert in_child(held) == 0


def broken() -> None:
    raise ValueError("nobody hears of it")


def crashing() -> None:
    os._exit(1)


def test_small_weights_of_a_deep_model_are_not_sent_again(sent: Counter[str]) -> None:
    """A session after the first needs no more than the graph, however many layers there are."""
    made = load(ROOT / "models" / "mini_transformer.onnx")
    contents = [len(serialize_apart(made, source)[0]) for source in (True, False)]
    assert max(contents) < sum(w.numpy().nbytes for w in made.weights.values()) / 3
    first = runtime.open_in_child(made, source=True)
    once = sent["bytes"]
    assert once > 3 * max(contents)
    second = runtime.open_in_child(made)
    assert sent["bytes"] == once
    inputs = random_inputs(made, 0)
    for got, wanted in zip(second.run(inputs), first.run(inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
