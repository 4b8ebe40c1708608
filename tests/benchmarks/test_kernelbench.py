"""The driver of KernelBench: sizes are made smaller by their names, every program has one line, and
the table counts them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts import ROOT, script


@pytest.fixture(scope="module")
def sizes() -> ModuleType:
    return script("kernelbench_sizes")


PROGRAM = """
batch_size = 128
height = width = 512
depth, scale = 8, 2.0
M = 1024 * 2
in_channels = 64
kernel_size = (3, 5)
input_shape = (4096, 3)
dim = 1
bias_shape = (in_channels, 1)
layer_sizes = [1024] * 2
"""


def values(source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(source, found)
    return {name: value for name, value in found.items() if name != "__builtins__"}


def test_sizes_shrink_by_what_their_names_say(sizes: ModuleType) -> None:
    both, alike, batches, own = sizes.attempts(PROGRAM, 64.0)
    extents = {"height": 64, "width": 64, "M": 256, "input_shape": (512, 3), "layer_sizes": [128, 128]}
    for (text, changed), expected in ((both, extents | {"batch_size": 2}), (alike, extents | {"batch_size": 16})):
        assert {name: smaller for name, (_, smaller) in changed.items()} == expected
        assert values(text) == values(PROGRAM) | expected
        assert changed["M"] == (2048, 256)
    assert batches[1] == {"batch_size": (128, 2)}
    assert values(batches[0]) == values(PROGRAM) | {"batch_size": 2}
    assert own == (PROGRAM, {})


def program(forward: str, init: str = "") -> str:
    return textwrap.dedent(f"""
        import torch
        class Model(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.norm = torch.nn.BatchNorm1d(n){init}
            def forward(self, x):
                return {forward}
        batch_size = 1024
        def get_inputs():
            return [torch.rand(batch_size, 8)]
        def get_init_inputs():
            return [8]
    """)


PROGRAMS = {
    "level1/1_right": program("self.norm(x) * 2 + 1"),
    "level1/2_random": program("torch.bernoulli(self.norm(x).sigmoid())"),
    "level2/1_wrong_sizes": program("self.norm(x.reshape(7, 8))"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "names", [("level1/1_right", "level2/1_wrong_sizes"), pytest.param(tuple(PROGRAMS), marks=pytest.mark.slow)]
)
def test_every_program_has_one_line_and_a_second_run_adds_none(names: Sequence[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    for name, source in ((name, PROGRAMS[name]) for name in names):
        path = tmp_path / "KernelBench" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    output = tmp_path / "lines.jsonl"
    command = [sys.executable, ROOT / "bench" / "kernelbench.py", tmp_path, "-o", output]
    command += "--trials 0 --budget 1 --scale 64 --jobs 2".split()
    subprocess.run(command, check=True, capture_output=True)
    rows = {row["case"]: row for row in map(json.loads, output.read_text().splitlines())}
    ended = {"level1/1_right": "whole", "level1/2_random": "partly", "level2/1_wrong_sizes": "failed while building"}
    assert {name: row["ended"] for name, row in rows.items()} == {name: ended[name] for name in names}
    assert rows["level1/1_right"]["results"]["equal"] == 5
    assert rows["level1/1_right"]["sizes"] == {"batch_size": [1024, 16]}
    if "level1/2_random" in names:
        assert "random numbers" in rows["level1/2_random"]["graphs"]["reasons"][0]
        assert rows["level1/2_random"]["results"]["equal"] == 5
    assert "7" in rows["level2/1_wrong_sizes"]["reason"]
    subprocess.run(command, check=True, capture_output=True)
    assert len(output.read_text().splitlines()) == len(names)


def test_a_sample_has_of_each_level_a_share_like_its_own() -> None:
    driver = script("kernelbench")
    names = [f"level{level}/{i}" for level, count in ((1, 100), (2, 100), (3, 50)) for i in range(count)]
    drawn = driver.sampled(names, 60, 0)
    assert [sum(name.startswith(f"level{i}/") for name in drawn) for i in (1, 2, 3)] == [24, 24, 12]
    assert drawn == driver.sampled(names, 60, 0) != driver.sampled(names, 60, 1)
    assert drawn == [name for name in names if name in set(drawn)]


def row(case: str, ended: str, ratios: tuple[float, float] | None = None, reason: str = "") -> dict[str, Any]:
    setting = {"scale": 64.0, "machine": "a CPU", "threads": 2, "budget": 1.0, "versions": {"torch": "2"}}
    timed = (
        {"times": {"ratio": dict(zip(("eager", "inductor"), ([r, r, r] for r in ratios), strict=True))}}
        if ratios
        else {}
    )
    return {"case": case, "ended": ended, "setting": setting, "reason": reason, **timed}


def test_a_program_ends_as_what_its_graphs_run_by() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    ending = script("kernelbench_program").ending

    def ended(compiled: int, eager: int, inductor: int, *reasons: str) -> Any:
        return ending({"compiled": compiled, "eager": eager, "inductor": inductor, "reasons": reasons})

    slow = "it takes 1.50 times as long here"
    assert ended(1, 0, 0) == "whole"
    assert ended(1, 1, 0, slow) == ended(1, 0, 1, slow) == "partly"
    assert ended(0, 2, 0, slow, slow) == "eager"
    assert ended(0, 1, 1, "it draws", f"{slow} as Inductor's code") == "inductor"
    assert ended(0, 1, 0, "it draws") == ended(0, 0, 0) == "refused"


def test_the_table_counts_what_is_right_and_says_why_the_rest_is_not() -> None:
    rows = [
        row("level1/1_a", "failed while optimizing"),
        row("level1/1_a", "whole", (4.0, 1.0)),
        row("level1/2_b", "partly", (1.0, 0.25)),
        row("level1/3_c", "refused", reason="it draws a|b"),
        row("level1/4_d", "wrong", (9.0, 9.0), "results differ by 2"),
        row("level1/5_f", "eager", (1.0, 1.0), "it takes 2 times as long here"),
        row("level1/6_g", "inductor", (2.0, 1.01), "it takes 2 times as long here as Inductor's code"),
        row("level3/1_e", "whole"),
    ]
    lines = script("kernelbench_table").kernelbench(rows)
    assert (
        lines[2]
        == "| 1 | 6 of 100 | 3, 1, 1 | 1 | 1 | 0 | 1 | 2 (1) of 4 | 0 (0) of 4 | 1.682 | 0.707 | 0.33, 0.17 | 0.00, 0.00 |"
    )
    assert lines[3] == "| 3 | 1 of 50 | 1, 0, 0 | 0 | 0 | 0 | 0 |  |  |  |  |  |  |"
    assert "no figures of KernelBench" in lines[5]
    assert lines[-2:] == ["- level1/3_c: refused: it draws a/b", "- level1/4_d: wrong: results differ by 2"]
