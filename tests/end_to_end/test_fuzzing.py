"""A part of the soak (`bench/soak.py` runs all): hostile models, random graphs, interrupts and
damaged caches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from fuzz.corpus import KEPT
from fuzz.mutate import hostile
from fuzz.seeds import SEEDS, contents
from fuzz.values import random_values
from scripts import script

from taso_mirage.onnx_io import load
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.report.diff import numbers
from taso_mirage.search.arrays import fitting


@pytest.mark.parametrize("index", range(len(SEEDS)), ids=[seed.__name__ for seed in SEEDS])
def test_seeds_are_read(index: int, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(contents()[index])
    assert load(tmp_path / "m.onnx").graph.outputs


def test_a_seed_gives_the_same_model() -> None:
    assert [hostile(seed) for seed in range(50)] == [hostile(seed) for seed in range(50)]
    assert len({hostile(seed) for seed in range(50)}) > 45


COUNTS = {
    "model": 8,
    "graph": 2,
    "interrupt": 1,
    "cache": 8,
    "text": 6,
    "archive": 4,
    "fault": 1,
    "replaced": 6,
    "value": 12,
    "torch": 2,
}
"""Cases of a run of the tests (`bench/soak.py` runs more); caches are warmed first, by searches."""


MORE = {
    "model": 250,
    "graph": 24,
    "interrupt": 4,
    "text": 120,
    "archive": 60,
    "fault": 6,
    "replaced": 80,
    "value": 120,
    "torch": 20,
}
"""The counts of the slow tests."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", MORE)
def test_nothing_goes_wrong_in_more_cases(kind: str) -> None:
    found = script("soak").soak({kind: MORE[kind]}, first=100_000, workers=1)
    assert found["wrong"] == []
    assert sum(found["ended"].values()) == MORE[kind]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", [*MORE, pytest.param("cache", marks=pytest.mark.slow)])
def test_nothing_goes_wrong(kind: str) -> None:
    found = script("soak").soak({kind: COUNTS[kind]}, first=100_000, workers=1)
    assert found["wrong"] == []
    assert sum(found["ended"].values()) == COUNTS[kind]


VALUES = (1018, 1096, 1900, 1960)
"""Models whose sequences went in double precision into bodies that declare another one."""


@pytest.mark.parametrize("seed", VALUES)
def test_sequences_of_unknown_types_stay_as_they_are(seed: int) -> None:
    content, inputs = random_values(seed)
    model = from_memory(onnx.load_from_string(content))
    assert all(each.passed for each in numbers(model, model, {}, [fitting(model, inputs, "inputs")]))


@pytest.mark.sampled(2)
def test_what_failed_before_does_not_again() -> None:
    found = script("soak").soak({"corpus": len(KEPT)}, first=0, workers=1)
    assert found["wrong"] == []
    assert sum(found["ended"].values()) == len(KEPT) > 25


def test_the_judge_sees_what_goes_wrong(tmp_path: Path) -> None:
    """A command that writes and reads elsewhere, starts a program, and steers the terminal."""
    code = """
import sys
from pathlib import Path
from fuzz import judge
import taso_mirage.cli
def bad(*args, check=None):
    Path("planted").write_text("")
    open(sys.argv[1] + "/elsewhere", "w").close()
    import subprocess; subprocess.run(["true"])
    return judge.Done(args, 1, "\\x1b[2J", "taso-mirage: internal error")
judge.run = bad
print(judge.judged({"kind": "model", "seed": 1, "folder": sys.argv[2]})["wrong"])
"""
    (tmp_path / "cases").mkdir()
    path = ":".join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "cases")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
    )
    for said in ("opened", "started 'true'", "control characters", "internal error", "wrote here/planted"):
        assert said in done.stdout, done.stderr
