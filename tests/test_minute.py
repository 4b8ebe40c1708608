"""The benchmark of the minute: a row has what a fresh process did, and figures of one run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from scripts import script


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


def test_a_process_has_fresh_caches_and_an_end(minute: ModuleType, tmp_path: Path) -> None:
    code = "import os; print(*(os.path.exists(os.environ[n]) for n in ('TASO_MIRAGE_CACHE', 'TRITON_CACHE_DIR')))"
    done = minute.process(["-c", code], 60.0, tmp_path)
    assert done.stdout.split() == ["False", "False"]
    late = minute.process(["-c", "import time; print('begun', flush=True); time.sleep(60)"], 0.5, tmp_path)
    assert late.returncode == 124
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
    options = SimpleNamespace(device="cpu")
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
