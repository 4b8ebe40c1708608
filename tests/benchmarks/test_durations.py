"""The seconds of the tests are read from a report of pytest, and every folder states its
subject."""

from __future__ import annotations

from pathlib import Path

from scripts import ROOT, script

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" tests="3" time="61.4">
<testcase classname="tests.benchmarks.test_durations" name="test_one[a-b]" time="0.25" />
<testcase classname="tests.benchmarks.test_durations" name="test_two" time="1.5"><skipped /></testcase>
<testcase classname="tests.cli.test_streams" name="test_it" time="2.0" />
</testsuite></testsuites>
"""


def test_a_report_becomes_tables(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    bench = script("durations")
    found = bench.recorded(tmp_path / "report.xml")
    assert found["run"] == 61
    own = found["files"]["tests/benchmarks/test_durations.py"]
    assert (own["tests"], own["seconds"]) == (2, 1.8)
    assert own["checks"].startswith("The seconds of the tests are read")
    lines = bench.durations(found)
    assert lines[2].startswith("| `cli/` | 2 | 1 | ")
    assert lines[4] == "| all | 4 | 3 | |"
    assert "1:01 minutes" in lines[6]
    assert [line.split("`")[1] for line in lines[10:]] == [
        "tests/cli/test_streams.py",
        "tests/benchmarks/test_durations.py",
    ]


def test_every_folder_says_what_it_checks() -> None:
    folders = {file.parent.name for file in ROOT.glob("tests/*/test_*.py")}
    assert folders == script("durations").FOLDERS.keys()
