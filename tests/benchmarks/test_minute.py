"""The benchmark of the minute: a row has the results of a fresh process, and figures of one run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from scripts import script

from taso_mirage.onnx_io import load, save
from taso_mirage.targets.cuda.target import CUDA
from taso_mirage.targets.packaging import stamped


@pytest.fixture(scope="module")
def minute() -> ModuleType:
    return script("minute")


def test_ratios_are_of_ours_over_each_other(minute: ModuleType) -> None:
    us = {"onnxruntime": 200.0, "ours 30": 100.0, "ours 60": 50.0, "torch.compile default": 80.0}
    assert minute.ratios(us) == {
        "ours 30": {"onnxruntime": 2.0, "torch.compile default": 0.8},
        "ours 60": {"onnxruntime": 4.0, "torch.compile default": 1.6},
    }
    rows = [{"ratios": minute.ratios(us)}, {"ratios": {"ours 60": {"onnxruntime": 1.0}}}, {"failed": "no"}]
    found = minute.means(rows)
    assert found["ours 60"]["onnxruntime"] == 2.0
    assert found["ours 60"]["least, onnxruntime"] == 1.0
    assert found["ours 30"]["torch.compile default"] == 0.8


def test_a_result_runs_with_the_options_it_was_measured_with(minute: ModuleType, tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    made = helper.make_model(helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y]))
    onnx.save(made, tmp_path / "m.onnx")
    assert minute.target_of(tmp_path / "m.onnx", "cuda") == CUDA
    for each in CUDA.variants:
        save(stamped(load(tmp_path / "m.onnx"), each), tmp_path / "stamped.onnx")
        assert minute.target_of(tmp_path / "stamped.onnx", "cuda") == each


def test_a_process_has_fresh_caches_and_an_end(minute: ModuleType, tmp_path: Path) -> None:
    code = "import os; print(*(os.path.exists(os.environ[n]) for n in ('TASO_MIRAGE_CACHE', 'TRITON_CACHE_DIR')))"
    done = minute.process(["-c", code], 60.0, tmp_path)
    assert done.stdout.split() == ["False", "False"]
    for seconds in (0.5, 5.0, 50.0):  # a busy machine may not have begun
        late = minute.process(["-c", "import time; print('begun', flush=True); time.sleep(6000)"], seconds, tmp_path)
        assert late.returncode == 124
        if late.stdout:
            break
    assert late.stdout.strip() == "begun"
    assert not [*tmp_path.iterdir()]


def lines(*events: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, events))


def test_a_command_that_fails_says_how_far_it_came(
    minute: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = lines({"event": "start"}, {"event": "stage", "stage": "reference", "seconds": 7.125})
    answer = SimpleNamespace(returncode=124, stdout=told, stderr="took longer than 180 s")
    monkeypatch.setattr(minute, "process", lambda *asked: answer)
    options = SimpleNamespace(device="cpu", files=None, models=tmp_path)
    found = minute.optimized("bert", 60.0, options, tmp_path, minute.Clock(float("inf")))
    assert found["failed"] == "exit code 124: took longer than 180 s"
    assert found["stages"] == [["reference", 7.12]]


def test_a_row_is_written_after_each_model_and_one_that_fails_is_one(
    minute: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"good": None, "bad": None, "late": None}
    monkeypatch.setitem(sys.modules, "minute_models", SimpleNamespace(FORMS=names))
    left = iter([100.0, 100.0, 100.0, 1.0])
    monkeypatch.setattr(minute.Clock, "left", lambda self: next(left))
    monkeypatch.setattr(minute, "built", lambda name, *rest: "no memory" if name == "bad" else "")
    monkeypatch.setattr(minute, "row", lambda name, *rest: {"case": name, "us": {"ours 60": 1.0}, "ours": {}})
    monkeypatch.setattr(minute.common, "setting", lambda *of: {"bench": "minute"})
    output = tmp_path / "rows.json"
    minute.main(["-o", str(output)])
    rows = json.loads(output.read_text())["rows"]
    assert [each["case"] for each in rows] == ["good", "bad"]
    assert rows[1]["failed"] == "no memory"
    assert "late: the time for all was over" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        minute.main(["--only", "nobody"])
    assert "no model is named 'nobody'; the names are good, bad, late" in capsys.readouterr().err


def told(**other: Any) -> dict[str, Any]:
    kept = dict.fromkeys(("changed", "time", "nodes", "search", "notes", "spending"))
    return {"event": "result", "sizes": [{"sizes": {"n": 3}}], "integers": {}, **kept, **other}


def test_files_of_a_folder_are_run_at_the_sizes_that_the_command_settled_on(
    minute: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    model = helper.make_model(helper.make_graph(nodes, "relu", [given], [made]), ir_version=8)
    files = tmp_path / "files"
    files.mkdir()
    onnx.save(model, files / "relu.onnx")
    options = SimpleNamespace(device="cpu", files=files, models=tmp_path, modes=["default"])
    assert minute.names_of(options) == ["relu"]
    assert options.modes == []
    assert minute.built("relu", options, tmp_path, minute.Clock(float("inf"))) == ""
    assert int((tmp_path / "relu.bytes").read_text()) == (files / "relu.onnx").stat().st_size
    asked: list[str] = []

    def process(arguments: list[str], *rest: object) -> SimpleNamespace:
        asked.extend(arguments)
        return SimpleNamespace(returncode=0, stdout=lines(told(changed=False)), stderr="")

    monkeypatch.setattr(minute, "process", process)
    minute.optimized("relu", 3.0, options, tmp_path, minute.Clock(float("inf")))
    assert str(files / "relu.onnx") in asked
    assert minute._inputs("relu", options)["x"].shape == (3, 2)


def test_the_curve() -> None:
    tables = script("minute_table")
    fast, kept = {"changed": True, "nodes": {"before": 9, "after": 4}}, {"changed": False}
    us = {"onnxruntime": 4.0, "ours 30": 3.2, "ours 60": 2.0}
    rows = [
        {"case": "ocr", "ours": {"30": fast, "60": fast}, "us": us},
        {"case": "vad", "ours": {"30": kept, "60": kept}, "us": us},
        {"case": "none", "failed": "no memory"},
    ]
    found = tables.curve({"device": "a CPU", "versions": {"onnxruntime": "1.31"}, "rows": rows})
    assert found[0] == "| times as fast, by seconds | 30 | 60 | nodes |"
    assert found[2] == "| ocr | 1.25 | 2.00 | 9 to 4 |"
    assert found[3] == "| vad | kept | kept |  |"
    assert found[4:6] == ["| geometric mean | 1.12 | 1.41 | |", "| kept of 2 | 1 | 1 | |"]
    assert found[-1] == "30 s have 0.9 of the gain of 60 s in 1 of 2 models. a CPU; onnxruntime 1.31."


def test_the_tables() -> None:
    tables = script("minute_table")
    spending = {"seconds": 12.0, "spent": {"loads": 8.0, "files": 1.0, "own work": 3.0}, "stages": []}
    ours = {"wall": 12.5, "spending": spending, "changed": True, "time": {"ratio": 1.5}}
    us = {
        "onnxruntime": 4000.0,
        "ours 60": 2000.0,
        "torch.compile default": 3000.0,
        "torch.compile max-autotune": 2500.0,
    }
    rows = [{"case": "vit", "bytes": 6e8, "ours": {"60": ours}, "us": us}, {"case": "unet", "failed": "no memory"}]
    means = {"ours 60": {"onnxruntime": 2.0, "least, onnxruntime": 2.0}}
    found = {"device": "a GPU", "versions": {"torch": "2.11"}, "rows": rows, "means": means}
    assert tables.spent(found)[2] == (
        "| vit, 60 s | 0.60 | 12.5 | 8.0 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 | 3.0 | 1.0 | 1.50 |"
    )
    lines = tables.minute(found)
    assert lines[2] == "| vit | 4.000 | 2.000 | 3.000 | 2.500 | 1.25 | 2.00 |"
    assert lines[-1] == "Geometric means: ours 60: 2.000 over onnxruntime. a GPU; torch 2.11."
