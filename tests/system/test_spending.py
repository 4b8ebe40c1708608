"""The account of the seconds of a command: each counts once."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import result_of, run

from taso_mirage.errors import RunFailed
from taso_mirage.measure import native
from taso_mirage.measure.child import child, in_child
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.reference import NoReference
from taso_mirage.onnx_io import load
from taso_mirage.pipeline import optimize_model, problem
from taso_mirage.report.summary import show_spending
from taso_mirage.search.config import Config
from taso_mirage.search.cost import MeasuredCost
from taso_mirage.search.passes import Context
from taso_mirage.system.spending import (
    BETWEEN,
    START,
    Purpose,
    Spending,
    accounting,
    spent,
    staged,
    waited,
)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def test_a_second_is_of_the_outermost_stage_and_the_innermost_purpose() -> None:
    clock = Clock()
    with accounting(2.0, clock) as account:
        clock.passes(1)
        with staged("search"):
            clock.passes(3)
            with spent(Purpose.OPERATORS):
                clock.passes(5)
                with staged("a body's check"), spent(Purpose.LOADS):
                    clock.passes(7)
                clock.passes(11)
        found = account.spending()
    assert found.stages == {
        START: {"starting": 2.0},
        BETWEEN: {"own work": 1.0},
        "search": {"own work": 3.0, "operators": 16.0, "loads": 7.0},
    }
    assert found.seconds == 2 + clock.now - 100
    assert list(found.purposes.items()) == [("operators", 16.0), ("loads", 7.0), ("own work", 4.0), ("starting", 2.0)]


def test_loads_are_counted_by_stage_each_once() -> None:
    with accounting(clock=Clock()) as account:
        with staged("check"), spent(Purpose.LOADS), spent(Purpose.LOADS):
            pass
        with staged("check"), spent(Purpose.LOADS), spent(Purpose.STARTING):
            pass
        with spent(Purpose.CHECKS):
            pass
    assert account.spending().loads == {"check": 2}


def failing(clock: Clock) -> None:
    with staged("check"), spent(Purpose.CHECKS):
        clock.passes(2)
        raise RunFailed("it does not run")


def test_what_fails_ends_its_purpose_and_stage() -> None:
    clock = Clock()
    with accounting(clock=clock) as account:
        with pytest.raises(RunFailed):
            failing(clock)
        clock.passes(4)
    assert account.spending().stages == {"check": {"own work": 0.0, "checks": 2.0}, BETWEEN: {"own work": 4.0}}


def test_other_threads_add_no_seconds() -> None:
    clock = Clock()

    def work() -> None:
        with spent(Purpose.COMPILING), staged("beside"):
            clock.passes(3)

    with accounting(clock=clock) as account, spent(Purpose.WAITING):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert account.spending().stages == {BETWEEN: {"own work": 0.0, "waiting": 3.0}}


def test_an_account_within_another_is_the_same() -> None:
    clock = Clock()
    with accounting(clock=clock) as outer, staged("bodies"):
        with accounting() as inner, staged("search"):
            clock.passes(2)
        assert inner is outer
        assert outer.spending().stages["bodies"] == {"own work": 2.0}
    with accounting() as later:
        assert later is not outer


def test_until_there_is_a_next_one_is_waiting_and_what_is_done_with_it_is_not() -> None:
    clock = Clock()

    def answers() -> Iterator[int]:
        for seconds in (1, 2):
            clock.passes(seconds)
            yield seconds
        clock.passes(4)

    with accounting(clock=clock) as account:
        for _ in waited(answers(), Purpose.COMPILING):
            with spent(Purpose.TUNING):
                clock.passes(10)
    assert account.spending().purposes == {"tuning": 20.0, "compiling": 7.0, "own work": 0.0}


def test_the_start_of_the_child_is_told_from_what_it_is_asked() -> None:
    child().stop()
    with accounting() as account, spent(Purpose.CHECKS):
        in_child(native.installed_providers)
        first = account.spending().purposes
        in_child(native.installed_providers)
        assert account.spending().purposes["starting"] == first["starting"] > 0


def test_what_the_runtime_is_asked_is_no_own_work() -> None:
    clock = Clock()
    with accounting(clock=clock) as account:
        with spent(Purpose.RUNS, usual=True):
            clock.passes(2)
        with spent(Purpose.LOADS), spent(Purpose.RUNS, usual=True):
            clock.passes(3)
    assert account.spending().purposes == {"loads": 3.0, "runs": 2.0, "own work": 0.0}
    with accounting() as account:
        in_child(native.installed_providers)
        assert account.spending().purposes["runs"] > 0


BEGUN = """
import sys, time
from taso_mirage.cli import commands, main
commands.main = lambda began: print(began)
main()
"""


def test_a_shell_that_becomes_the_command_takes_nothing_of_its_budget() -> None:
    """Bash executes the last command of a subshell, or of a script, in its own process."""
    script = 'sleep 0.3; "$0" -S -c "import time; print(time.monotonic())"; exec "$0" -c "$1"'
    done = subprocess.run(["bash", "-c", script, sys.executable, BEGUN], capture_output=True, text=True, check=True)
    became, began = map(float, done.stdout.split())
    assert became < began <= time.monotonic()


def test_operators_are_told_from_other_calls() -> None:
    cost = MeasuredCost(Context({"": 20}, {}), CostCache(None))
    with accounting() as account:
        cost.device()
        assert account.spending().purposes["operators"] > 0


@pytest.mark.sampled(3)
def test_the_command_says_what_its_seconds_were_spent_on(tmp_path: Path, layer: Path) -> None:
    before = time.monotonic()
    told = result_of(run("optimize", layer, "-o", tmp_path / "m.onnx", "--budget", "3", "--kernels", "off", "--json"))
    wall, found = time.monotonic() - before, told["spending"]
    stages = {each["stage"]: each for each in found["stages"]}
    assert found["seconds"] == pytest.approx(sum(each["seconds"] for each in found["stages"]))
    assert found["seconds"] == pytest.approx(sum(found["spent"].values()))
    assert found["seconds"] - stages[START]["spent"]["starting"] <= wall  # the tests started before the command
    for stage, seconds in told["seconds"].items():
        assert stages[stage]["seconds"] == pytest.approx(seconds, rel=0.2, abs=0.2)
        assert sum(stages[stage]["spent"].values()) == pytest.approx(stages[stage]["seconds"])
    assert stages["load the original"]["loads"] == 1
    assert found["loads"] == sum(each["loads"] for each in stages.values()) >= 2
    for stage, purpose in (("load the original", "loads"), ("reference", "references"), ("write", "files")):
        assert stages[stage]["spent"][purpose] > 0


def test_the_table_of_timing(tmp_path: Path, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # each row is one line, whatever took the most
    options = "optimize", layer, "--no-measure", "--budget", "2"
    shown = run(*options, "-o", tmp_path / "a.onnx", "--timing").stdout
    assert "seconds spent" in shown
    assert re.search(r"│ passes +│ +\d+\.\d\d │ own work", shown)
    assert re.search(r"│ load the original +│ +\d+\.\d\d │ .*\b1 load \d", shown)
    assert re.search(r"│ all +│ +\d+\.\d\d │ .*\b\d+ loads? \d", shown)
    assert "seconds spent" not in run(*options, "-o", tmp_path / "b.onnx").stdout


def test_loads_are_counted_however_quick_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    stages = {"load": {"loads": 0.001}, "write": {"files": 0.001}, "search": {"loads": 0.25, "own work": 0.001}}
    show_spending(Spending(stages, {"load": 1, "search": 2}))
    shown = capsys.readouterr().out
    assert re.search(r"│ load +│ +0.00 │ 1 load 0.00 ", shown)
    assert re.search(r"│ search +│ +0.25 │ 2 loads 0.25 ", shown)
    assert re.search(r"│ all +│ +0.25 │ 3 loads 0.25 ", shown)
    assert "write" not in shown


def test_a_model_that_cannot_be_checked_has_no_operators_measured(
    tmp_path: Path, layer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*asked: object) -> None:
        raise NoReference("there is none")

    monkeypatch.setattr(problem, "check_cases", none)
    found = optimize_model(load(layer), Config(budget=20, cache=tmp_path / "costs"))
    assert not found.changed
    assert "operators" not in found.spending.purposes


@pytest.mark.sampled(3)
def test_of_a_folder_each_model_has_its_table(tmp_path: Path, layer: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a.onnx", "b.onnx"):
        shutil.copy(layer, folder / name)
    shown = run("optimize", folder, "-o", tmp_path / "out", "--no-measure", "--budget", "2", "--timing").stdout
    assert shown.count("seconds spent") == 2
    totals = [float(each) for each in re.findall(r"│ all +│ +(\d+\.\d\d) │ ", shown)]
    assert len(totals) == 2
