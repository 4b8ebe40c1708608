"""Files of text that are none, and outputs of the commands beside `optimize`: their files are
checked as its files are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import one_line, run

from taso_mirage.errors import InvalidOption, SyntaxProblem, TasoMirageError
from taso_mirage.generate.pipeline import GenerateOptions, _Partial
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.mugraph.checkpoint import Checkpoint, to_json
from taso_mirage.operators.ops import term
from taso_mirage.regions.kernel_regions import KernelRegion
from taso_mirage.regions.survey import _from_data
from taso_mirage.rewriting.library import parse_rules
from taso_mirage.search.mutations import MutationStore
from taso_mirage.system.toml import read_json

MINI = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"
DEEP = "[" * 100_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(MINI.read_bytes())
    return tmp_path / "m.onnx"


# ---------------------------------------------------------------- brackets without end, and pipes


def test_deep_brackets_are_no_value(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(DEEP)
    with pytest.raises(ValueError, match="too deep"):
        read_json(tmp_path / "deep.json")
    with pytest.raises(InvalidOption, match="no checkpoint of a kernel search"):
        Checkpoint(tmp_path / "deep.json", {})
    with pytest.raises(SyntaxProblem, match="too deep"):
        parse_rules(f"a = {DEEP}")


def test_a_checkpoint_that_is_damaged_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(DEEP)
    done = run("kernels", model, "--budget", "0", "--checkpoint", tmp_path / "c.json", check=2)
    assert "name another file, or remove it" in one_line(done)


def test_a_cache_that_is_damaged_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MutationStore, "_path", lambda self, program, folder: folder / "tried.json")
    (tmp_path / "tried.json").write_text(DEEP)
    assert MutationStore(tmp_path, "here").read(None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("line", [DEEP, "[]", '["a", {"no": "field"}]', '["a", 1]', "\udcff"])
def test_what_a_generation_kept_may_be_damaged(tmp_path: Path, line: str) -> None:
    partial = _Partial(GenerateOptions(output=tmp_path, resume=True))
    (partial.folder / f"outcomes-{partial.key}.jsonl").write_bytes(line.encode(errors="surrogateescape") + b"\n")
    assert partial.outcomes() == {}


@pytest.mark.parametrize("text", [DEEP, "{", "[1]", '{"counts": {}}', '{"candidates": [[1]], "counts": {}}', "\udcff"])
def test_proposals_that_are_damaged_are_named(tmp_path: Path, text: str) -> None:
    partial = _Partial(GenerateOptions(output=tmp_path, resume=True))
    (partial.folder / f"taso-{partial.key}.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TasoMirageError, match="run again without --resume"):
        partial.proposed("taso")


@pytest.mark.parametrize("command", [("substitutions", "verify"), ("verify", MINI, MINI)])
def test_a_pipe_is_not_waited_for(tmp_path: Path, command: tuple[object, ...]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in one_line(run(*command, tmp_path / "pipe", check=2))


def test_a_pipe_in_a_library_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rules.toml")
    assert "no regular file" in one_line(run("substitutions", "list", "--library", tmp_path, check=2))


@pytest.mark.parametrize("seconds", [[], None, "x", -1, 0, float("inf"), 10**400])
def test_seconds_of_a_checkpoint_are_numbers(seconds: object) -> None:
    x = variable("x", Tensor("float32", (4,)))
    graph = Graph((x,), (term("relu", x),))
    region = KernelRegion(graph, (), 0, 0, 0)
    row = {
        "mugraph": to_json(graph),
        "device": "H100",
        "seconds": {"fused": seconds, "apart": 1.0},
        "search": {"seconds": 1.0},
        "evidence": {"tests": 1, "undecided": 0, "bound": 0.0, "measured": []},
    }
    with pytest.raises(SyntaxProblem, match="a region of a survey"):
        _from_data(region, row)


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize("option", ["--report", "--checkpoint"])
def test_kernels_do_not_write_over_the_model(model: Path, option: str) -> None:
    assert "would overwrite the model" in one_line(run("kernels", model, "--budget", "0", option, model, check=2))
    assert model.read_bytes() == MINI.read_bytes()


def test_a_report_is_not_the_checkpoint(model: Path, tmp_path: Path) -> None:
    files = ["--report", tmp_path / "r", "--checkpoint", tmp_path / "r"]
    assert "the same file" in one_line(run("kernels", model, "--budget", "0", *files, check=2))


@pytest.mark.parametrize("command", ["kernels", "generate"])
def test_a_pipe_is_no_folder(model: Path, tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    words = {"kernels": ["kernels", model], "generate": ["substitutions", "generate", "--ops", "1"]}
    one_line(run(*words[command], "-o", tmp_path / "pipe", check=4))
    assert (tmp_path / "pipe").is_fifo()


# ---------------------------------------------------------------- interrupts at every line


@pytest.mark.sampled(3)
@pytest.mark.parametrize("write", ["probe", "file"])
def test_an_interrupt_at_any_line_leaves_nothing(tmp_path: Path, write: str) -> None:
    """In a small process, which forks fast."""
    script = [sys.executable, Path(__file__).parents[1] / "harness" / "interrupted.py", write, tmp_path]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
