"""The rows of a benchmark are kept one by one, and one that fails stops no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripts import script


def test_a_row_that_fails_is_kept_with_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def row(name: str) -> dict[str, Any]:
        if name == "bad":
            raise ValueError("no such model\nand more")
        return {"case": name, "ratio": 2}

    file = tmp_path / "rows.json"
    rows = script("rows").Rows(file, {"bench": "b"})
    rows.run(["good"], row)
    rows.run(["bad", "last", "good"], row, lambda found: print(found["ratio"]))
    assert json.loads(file.read_text()) == {"bench": "b", "rows": rows.kept}
    assert rows.kept == [
        {"case": "bad", "failed": "ValueError: no such model"},
        {"case": "last", "ratio": 2},
        {"case": "good", "ratio": 2},
    ]
    assert capsys.readouterr().out.splitlines()[2:] == ["2", "2"]
    script("rows").Rows(file, {"bench": "b"}).run(["last"], row)
    assert [each["case"] for each in json.loads(file.read_text())["rows"]] == ["bad", "good", "last"]
