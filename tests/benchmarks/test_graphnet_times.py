"""GraphNet's score of rows, by hand, and rows that are read again."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from scripts import script


@pytest.fixture(scope="module")
def scores() -> ModuleType:
    return script("graphnet_score")


def test_the_least_tolerance_at_which_outputs_are_right(scores: ModuleType) -> None:
    eager = [np.float32([1.0, 100.0]), np.int64([3])]
    near = [np.float32([1.0, 100.01]), np.int64([3])]  # off by 0.01: 10^-3 + 10^-3.53 * 100 permits 0.03
    assert scores.least_tolerance(eager, eager) == -10
    assert scores.least_tolerance(near, eager) == -3
    assert scores.least_tolerance([eager[0], np.int64([4])], eager) is None
    assert scores.least_tolerance(eager[:1], eager) is None
    assert scores.least_tolerance([eager[0].astype(np.float64), eager[1]], eager) is None
    assert scores.least_tolerance([eager[0] * 1000, eager[1]], eager) is None  # 10 + 10^1.18 * 100 permits 1,524


def test_the_score_counts_speed_errors_and_failures(scores: ModuleType) -> None:
    rows = [
        {"medians": {"eager": 400.0, "ours": 100.0}, "tolerances": {"ours": -5}},
        {"medians": {"eager": 100.0, "ours": 25.0}, "tolerances": {"ours": None}},
        {"medians": {"eager": 100.0}, "tolerances": {}},
    ]
    for t, factors in (
        (-6, (0.1, 0.1, 0.1)),
        (-5, (4.0, 0.1, 0.1)),
        (0, (4.0, 0.1, 0.1)),
        (1, (4.0, 1.0, 0.1)),
        (3, (4.0, 1.0, 1.0)),
    ):
        assert scores.score(rows, "ours", t) == pytest.approx(np.prod(factors) ** (1 / 3))


def test_rows_of_several_shards_are_one_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = script("graphnet_times")
    head = {"bench": "graphnet", "device": "a machine", "effort": "quick", "versions": {}}
    row = {"medians": {"eager": 400.0, "ours": 100.0}, "tolerances": {"ours": -5}, "ratios": {"eager": [4.0, 3.9, 4.1]}}
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text("\n".join(map(json.dumps, (head, {"case": "a", "parameters": 2e6, **row}))) + '\n{"case": "b", "med')
    two.write_text("\n".join(map(json.dumps, (head, {"case": "c", "left out": "late"}))) + "\n")
    times.merge([one, two], tmp_path / "rows.json")
    shown, _, summary = capsys.readouterr().out.partition("; .\n")
    assert "| a | 2.0 | 0.100 | 0.400 |" in shown
    said = summary.splitlines()
    assert said[:2] == [
        "2 samples, 1 of them run in eager mode",
        "ours over eager: 4.000 on 1 samples, below 0.98 on 0",
    ]
    assert said[2].startswith("ES(t) of ours: -7: 0.100, -6: 0.100, -5: 4.000")
    assert [each["case"] for each in json.loads((tmp_path / "rows.json").read_text())["rows"]] == ["a", "c"]


def test_no_sample_begins_after_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = script("graphnet_times")
    now = 0.0

    def measured(name: str, *_: object) -> dict[str, object]:
        nonlocal now
        now += 60.0
        return {"case": name, "left out": "late"}

    monkeypatch.setattr(times, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(times, "row_of_process", measured)
    monkeypatch.setattr(times, "setting", lambda _: {"bench": "graphnet"})
    monkeypatch.setattr(times.graphnet, "spread", lambda *_: ["a", "b", "c", "d"])
    options = Namespace(
        clone=tmp_path, parameters=1, count=4, shard="1/1", limit=1, total=100.0, lines=tmp_path / "lines.jsonl"
    )
    for done in (["a", "b"], ["a", "b", "c", "d"]):
        times.measure(options)
        assert [row["case"] for row in times.read(options.lines)[1]] == done
