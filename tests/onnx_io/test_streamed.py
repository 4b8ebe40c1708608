"""A model is written one weight at a time, with the bytes that protobuf would write at once."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from taso_mirage.onnx_io import load, save
from taso_mirage.onnx_io.serialization import as_onnx
from taso_mirage.onnx_io.streaming import save_inside

ROOT = Path(__file__).parents[2]
DTYPES = ("float32", "float16", "float64", "int8", "uint8", "int64", "bool", "bfloat16")


def weighted(path: Path, rows: int = 300) -> Path:
    """A model with weights of all kinds, in all the ways that protobuf has for them: as bytes, as
    numbers, texts, documented, and small ones among them."""
    weights = []
    for dtype in DTYPES:
        array = np.arange(rows * 256).reshape(rows, 256) % 2
        weights.append(
            onnx.numpy_helper.from_array(
                array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype), f"of {dtype}"
            )
        )
        weights.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), f"small {dtype}"))
    weights[0].doc_string = "said of a weight"
    weights.append(onnx.helper.make_tensor("numbers", onnx.TensorProto.FLOAT, [20000], np.ones(20000)))
    weights.append(onnx.helper.make_tensor("texts", onnx.TensorProto.STRING, [20000], [b"abcd"] * 20000))
    weights.append(onnx.numpy_helper.from_array(np.zeros((0, 4), np.float32), "nothing"))
    nodes = [onnx.helper.make_node("Identity", [w.name], [f"y {w.name}"]) for w in weights]
    ends = [onnx.helper.make_tensor_value_info(f"y {w.name}", w.data_type, w.dims) for w in weights]
    graph = onnx.helper.make_graph(nodes, "g", [], ends, weights, doc_string="said of the graph")
    graph.metadata_props.add(key="of", value="the graph")
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    made.metadata_props.add(key="of", value="the model")
    made.doc_string = "said of the model"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.parametrize("source", [False, True])
def test_the_bytes_are_those_of_protobuf(tmp_path: Path, source: bool) -> None:
    for number, path in enumerate((weighted(tmp_path / "made.onnx"), ROOT / "models" / "mini_transformer.onnx")):
        made, whole, parts = load(path), tmp_path / f"whole{number}.onnx", tmp_path / f"parts{number}.onnx"
        ir.save(as_onnx(made, source), whole, format="protobuf")
        save_inside(as_onnx(made, source), parts)
        assert parts.read_bytes() == whole.read_bytes()
        assert path.stat().st_size / 2 < parts.stat().st_size
        onnx.checker.check_model(parts)


def test_what_is_said_of_a_weight_stays(tmp_path: Path) -> None:
    proto = onnx.load(weighted(tmp_path / "made.onnx"))
    proto.graph.initializer[2].metadata_props.add(key="a", value="b")
    onnx.save(proto, tmp_path / "said.onnx")
    save_inside(as_onnx(load(tmp_path / "said.onnx"), True), tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx").graph.initializer
    assert [(each.key, each.value) for each in written[2].metadata_props] == [("a", "b")]
    assert written[0].doc_string == "said of a weight"


def test_writing_takes_the_memory_of_one_weight(tmp_path: Path) -> None:
    """Not that of the file once more, let alone three times."""
    draw = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array(draw.standard_normal((512, 512)), f"w{i}") for i in range(16)]
    nodes = [onnx.helper.make_node("Sum", [w.name for w in weights], ["y"])]
    end = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, [512, 512])
    graph = onnx.helper.make_graph(nodes, "g", [], [end], weights)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    path = tmp_path / "made.onnx"
    path.write_bytes(made.SerializeToString())
    read = load(path)
    tracemalloc.start()
    save(read, tmp_path / "out.onnx", source=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < path.stat().st_size / 2
    assert load(tmp_path / "out.onnx").weights.keys() == read.weights.keys()


def beside(folder: Path, offset: int) -> Path:
    """A model with three weights in a file beside it, the first of which begins at an offset."""
    draw, content, weights = np.random.default_rng(0), bytearray(offset), []
    for name, rows in {"large": 2000, "larger": 3001, "small": 3}.items():
        array = draw.standard_normal((rows, 256)).astype(np.float32)
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=array.shape, data_location=1)
        for key, value in (("location", "w"), ("offset", len(content)), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        content += array.tobytes()
        weights.append(tensor)
    nodes = [onnx.helper.make_node("Identity", [w.name], [f"y {w.name}"]) for w in weights]
    ends = [onnx.helper.make_tensor_value_info(f"y {w.name}", w.data_type, w.dims) for w in weights]
    graph = onnx.helper.make_graph(nodes, "g", [], ends, weights)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    (folder / "w").write_bytes(content)
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    return folder / "m.onnx"


def refusing(*_: int) -> int:
    raise OSError(errno.EXDEV, "another file system")


COPY = os.copy_file_range
WAYS: dict[str, Callable[..., int]] = {
    "at once": COPY,
    "in steps": lambda source, target, count, *at: COPY(source, target, min(count, 100_001), *at),
    "a part": lambda source, target, count, start, place: (
        COPY(source, target, 777, start, place) if start < 4096 else 0
    ),
    "not at all": refusing,
}


@pytest.mark.parametrize("offset", [0, 6 * 4])
@pytest.mark.parametrize("way", WAYS)
def test_the_system_copies_weights_from_file_to_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str, offset: int
) -> None:
    """Other bytes than those that the system copies are written; a file that has the path only now
    is not copied."""
    moved: list[int] = []

    def counted(*args: int) -> int:
        moved.append(0)
        moved[-1] = WAYS[way](*args)
        return moved[-1]

    monkeypatch.setattr(os, "copy_file_range", counted)
    read = load(beside(tmp_path, offset))
    values = {name: weight.numpy().copy() for name, weight in read.weights.items()}
    for name in ("first", "second"):
        save(read, tmp_path / f"{name}.onnx", source=True)
        written = load(tmp_path / f"{name}.onnx").weights
        assert written.keys() == values.keys()
        for each, array in values.items():
            np.testing.assert_array_equal(written[each].numpy(), array)
        if name == "first":
            assert moved
            assert (sum(moved) == 5001 * 256 * 4) == (way in ("at once", "in steps"))
        else:
            assert not moved
        moved.clear()
        (tmp_path / "w").rename(tmp_path / "before")
        (tmp_path / "w").write_bytes(bytes(6 << 20))
