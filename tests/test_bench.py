"""The README's tables are those of the committed results, and the benchmark of the optimizer counts
only right results."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from scripts import ROOT, script

from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.kernels.codegen import tune


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("optimize")


def test_readme_tables_are_generated_from_the_results() -> None:
    done = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, "run `python bench/tables.py`"


def test_the_shipped_library_is_that_of_the_measured_run() -> None:
    """The seed gives the same files: what `generate --ops 4` wrote when it was measured is what is
    shipped."""
    rows = json.loads((ROOT / "bench" / "results" / "generate-cpu2.json").read_text())["rows"]
    assert script("generate").digest(ROOT / "substitutions") in [row.get("sha256") for row in rows]


@pytest.mark.parametrize("name", ["kernels_h100", "end_to_end_h100"])
def test_without_a_gpu_its_benchmarks_say_so(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def absent() -> str:
        raise RuntimeUnavailable("there is no CUDA device to measure on")

    monkeypatch.setattr(tune, "gpu_and_versions", absent)
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit) as ended:
        script(name).main()
    assert ended.value.code == 2
    assert "error: there is no CUDA device to measure on" in capsys.readouterr().err


def doubled(content: bytes) -> bytes:
    """The model with all its matrices doubled."""
    model = onnx.load_from_string(content)
    for tensor in model.graph.initializer:
        if len(tensor.dims) == 2:
            tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), tensor.name))
    return model.SerializeToString()


def failing(content: bytes) -> bytes:
    raise ValueError("no such operator\nand more")


def test_a_wrong_or_failing_peer_has_a_note_and_no_session(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (ROOT / "models" / "mini_transformer.onnx").read_bytes()
    model = bench.from_ir(ir.from_proto(onnx.load_from_string(content)))
    prepared = list(bench.check_cases(model, bench.runtime.Session(content), {}))
    monkeypatch.setattr(bench, "PEERS", {"same": lambda c: c, "wrong": doubled, "failing": failing})
    notes: list[str] = []
    assert list(bench.peers(content, model, prepared, notes)) == ["same"]
    assert notes[0].startswith("wrong is wrong: output 'last_hidden_state' on random inputs 1: error ")
    assert notes[1] == "failing failed: ValueError: no such operator"


def test_ratios_are_those_of_lower_quartiles_and_of_medians(bench: ModuleType) -> None:
    found = bench.figures({"onnxruntime": [4.0, 4.0, 8.0], "onnxslim": [3.0, 3.0, 9.0], "ours": [2.0, 4.0, 4.0]})
    assert (found["ratio"], found["median_ratio"]) == (round(4 / 3, 4), 1.0)
    assert (found["best_peer"], found["ratio_best_peer"], found["median_ratio_best_peer"]) == ("onnxslim", 1.0, 0.75)
    assert found["quartiles"] == [1.5, 2.0]
    assert found["ours"] == 3e6


def test_a_model_that_was_kept_has_ratio_one_to_itself(bench: ModuleType) -> None:
    found = bench.figures({"onnxruntime": [4.0, 5.0], "onnxsim": [2.0, 2.0]})
    assert (found["ratio"], found["spread"], found["ratio_best_peer"]) == (1.0, 0.0, round(2 / 4.25, 4))


def test_shares_of_the_profile_name_the_operators(bench: ModuleType) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "x"], ["y"])], "product", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    assert bench.shares(model.SerializeToString(), {"x": np.ones((2, 2), np.float32)}) == {"MatMul": 1.0}
