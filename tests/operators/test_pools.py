"""Pools with ceil_mode whose window is larger than the image, as exporters write global ones."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from protos import read

import taso_mirage
from taso_mirage.measure import reference
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize


def pool(op: str, kernel: str, more: str = "", opset: int = 19, image: str = "5,4") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g (float[1,2,{image}] x) => (float[1,2,a,b] y) '
        f"{{ y = {op}<kernel_shape = [{kernel}], ceil_mode = 1{more}>(x) }}"
    )


@pytest.mark.parametrize("opset", [11, 19, 22])
@pytest.mark.parametrize(
    ("op", "kernel", "more", "seen"),
    [
        ("AveragePool", "9,7", ", strides = [9,7]", (5, 4)),
        ("AveragePool", "9,2", ", strides = [9,2], count_include_pad = 1, pads = [1,0,1,0]", (7, 2)),
        ("AveragePool", "2560,2560", ", strides = [2560,2560], count_include_pad = 1", (5, 4)),
        ("MaxPool", "9,7", ", strides = [9,7]", (5, 4)),
        ("MaxPool", "6,4", ", strides = [2,2]", (5, 4)),
        ("AveragePool", "3,3", ", strides = [2,2]", (3, 3)),
    ],
)
def test_a_window_has_no_more_than_the_image(
    op: str, kernel: str, more: str, seen: tuple[int, int], opset: int
) -> None:
    made = pool(op, kernel, more, opset)
    model = read(made)
    (found,) = model.graph.outputs
    assert found.attr("kernel") == seen
    feed = {"x": np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype(np.float32)}
    wanted = Session(made.SerializeToString()).run(feed)[0]
    np.testing.assert_allclose(FloatReference(model)(feed)[0], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(Session(serialize(model)).run(feed)[0], wanted, rtol=1e-5, atol=1e-6)


def test_an_original_whose_reference_needs_too_much_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(*_: object) -> None:
        raise MemoryError("125 GiB")

    monkeypatch.setattr(reference, "interpret", without_memory)
    given = pool("MaxPool", "2,2")
    result, said = taso_mirage.optimize(given, effort="quick", return_result=True)
    assert not said.changed
    assert [each.op_type for each in result.graph.node] == ["MaxPool"]
    assert "there is too little memory: 125 GiB" in " ".join(said.notes)
