"""The rows of goals on a GPU and the runs below compute-sanitizer, as far as they need no GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from scripts import script

from taso_mirage.forms.base.form import in_operators
from taso_mirage.ir.terms import Graph
from taso_mirage.mugraph.checkpoint import from_json


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    script("goals")  # puts the folder of the benchmarks on the path
    return importlib.import_module("goal_rows")


@pytest.mark.sampled(3)
def test_a_convolution_of_a_row_is_the_term_of_a_model(bench: ModuleType) -> None:
    own = bench.own_goal("form: pad, convolution")
    assert bench.operators(own) == ["implicit_gemm"]
    written = bench.operators(Graph(own.inputs, in_operators(own.outputs)))
    assert "conv" in written
    assert len([op for op in written if op not in ("transpose", "reshape")]) == 2  # and its activation


@pytest.mark.sampled(3)
def test_what_no_form_has_whole_is_searched_as_it_is(bench: ModuleType) -> None:
    name = "form: depthwise 7x7, layer norm"
    assert bench.own_goal(name) == bench.goal(name)


def test_the_clock_is_held_by_one_at_a_time(bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    times = bench.goal_times
    monkeypatch.setenv(times.LOCK, str(tmp_path / "lock"))

    def is_free() -> bool:
        with (tmp_path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    assert is_free()
    with times.held():
        assert times.alone(is_free)() is False  # the same process holds it again
        assert not is_free()
    assert is_free()


@pytest.mark.parametrize(
    ("name", "steps"), [("layer norm, product", "kernels, product"), ("product, GELU", "product, kernels")]
)
def test_a_plan_around_a_product_computes_the_goal(name: str, steps: str, bench: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    checks, plans, peers = (importlib.import_module(each) for each in ("goal_checks", "goal_plans", "goal_peers"))
    graph = importlib.import_module("goal_forms").FORMS[name](rows=plans.ROWS + 1)
    plan = plans.plan(graph)
    assert ", ".join("product" if "product" in step else "kernels" for step in plan) == steps
    goals = [from_json(step["goal"]) if "goal" in step else None for step in plan]
    calls = [goal and peers.function(goal, "cpu") for goal in goals]
    read = [[x.attr("name") for x in goal.inputs] if goal else [] for goal in goals]
    arrays = checks.arrays(graph)
    given = {x.attr("name"): torch.tensor(a) for x, a in zip(graph.inputs, arrays, strict=True)}
    found = plans.run(plan, calls, read, given)
    assert checks.difference([x.numpy() for x in found], checks.exact(graph, arrays)) < 1e-5


def test_a_product_of_few_rows_has_no_plan(bench: ModuleType) -> None:
    plans = importlib.import_module("goal_plans")
    assert plans.plan(importlib.import_module("goal_forms").FORMS["product, GELU"](rows=plans.ROWS)) == []


LINES = """\
========= COMPUTE-SANITIZER
CASE right
ERROR 1e-6
CASE off
ERROR 0.5
CASE outside
========= Invalid __global__ read of size 4 bytes
ERROR 1e-6
CASE unsupported
PROBLEM it does not compile
========= ERROR SUMMARY: 1 error
"""


def test_reports_of_the_tool_belong_to_the_program_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sanitized = script("sanitized")
    monkeypatch.setattr(sanitized, "RUN", f"print({LINES!r}, end='')\nraise SystemExit(9)\n")
    found, said = sanitized.ran([{}] * 4, tmp_path, 20.0)
    assert set(sanitized.wrong(found)) == {"off", "outside", "unsupported"}
    assert found["outside"]["reported"] == "Invalid __global__ read of size 4 bytes"
    assert said == "exit 9; 4 of 4 launched; ========= ERROR SUMMARY: 1 error"


def test_a_row_keeps_the_least_times_of_two_runs(bench: ModuleType) -> None:
    before = {"case": "a", "ours": 3.0, "plan": "kernels", "baselines": {"eager": 9.0, "SDPA": 5.0}}
    later = {"case": "a", "ours": 4.0, "plan": "others", "baselines": {"eager": 8.0}}
    times = {"eager": 8.0, "SDPA": 5.0}
    assert bench.least(later, before) == before | {"baselines": times}
    assert bench.least(later | {"ours": 2.0}, before) == later | {"ours": 2.0, "baselines": times}
    assert bench.least({"case": "a", "problem": "late", "peer_problem": "late"}, before) == before
    assert bench.least({"case": "a", "problem": "late"}, {}) == {"case": "a", "problem": "late"}
