"""The quantized models of `models/quantized.py` in their small forms: their structure, and that
they compute their float32 originals, but for the rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from scripts import script

import models
from models.quantized import BLOCKS, LANGUAGE, ORIGINALS, QUANTIZED, main, put

MARKS = {
    "qdq": {"QuantizeLinear", "DequantizeLinear"},
    "int8": {"DynamicQuantizeLinear", "MatMulInteger"},
    "int4": {"MatMulNBits"},
}
QUICK = ("bert_qdq", "bert_int8", "llama_decode_int4_32")
Both = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def both(shared: Path) -> Both:
    return lambda name: put(name, shared / "quantized", small=True)


def method(name: str) -> str:
    return next(each for each in MARKS if f"_{each}" in name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in QUANTIZED])
def test_a_quantized_model_computes_what_its_original_does(both: Both, name: str) -> None:
    quantized, original = both(name)
    made, wide = onnx.load(quantized), onnx.load(original)
    assert MARKS[method(name)] <= {node.op_type for node in made.graph.node}
    sizes = {**ORIGINALS[QUANTIZED[name].original].sizes, "sequence": 16, "past": 8, "total": 9}
    fed = models.inputs(wide, 7, sizes)
    sessions = [onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"]) for p in (quantized, original)]
    found, exact = (session.run(None, fed)[0].ravel().astype(np.float64) for session in sessions)
    assert np.isfinite(found).all()
    assert np.corrcoef(found, exact)[0, 1] > 0.8
    assert not np.array_equal(found, exact)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["llama_decode_int4_32"])
def test_weights_have_4_bits_in_blocks_and_activations_are_multiplied_in_int8(both: Both, name: str) -> None:
    nodes = [n for n in onnx.load(both(name)[0]).graph.node if n.op_type == "MatMulNBits"]
    attributes = [{a.name: a.i for a in node.attribute} for node in nodes]
    assert {(a["bits"], a["block_size"], a["accuracy_level"]) for a in attributes} == {(4, 32, 4)}


def test_the_benchmark_has_all_that_it_is_to_compare() -> None:
    assert {f"{form}_int4_{block}" for form in LANGUAGE for block in BLOCKS} < set(QUANTIZED)
    assert {quantized.original for quantized in QUANTIZED.values()} == set(ORIGINALS)


def test_an_unknown_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "bert_int3"]) == 2
    assert "no model is named bert_int3" in capsys.readouterr().err


def test_a_model_that_is_there_is_kept(tmp_path: Path) -> None:
    for name in ("bert", "bert_int8"):
        (tmp_path / f"{name}.onnx").write_bytes(b"there")
    quantized, original = put("bert_int8", tmp_path)
    assert quantized.read_bytes() == original.read_bytes() == b"there"


def test_the_benchmark_compares_with_the_model_alone_and_with_float32() -> None:
    bench = script("quantized")
    times = {"onnxruntime": [2.0, 2.2, 2.4], "float32": [3.0, 3.3, 3.6], "ours": [1.0, 1.1, 1.2]}
    found = bench.figures(times)
    assert (found["ratio"], found["float32_over_alone"], found["float32_over_ours"]) == (2.0, 1.5, 3.0)
    kept = bench.figures({k: v for k, v in times.items() if k != "ours"})
    assert (kept["ratio"], kept["float32_over_ours"]) == (1.0, 1.5)
