"""Files of text that are none, and outputs of the commands beside `optimize`: what they read and write is checked as its files are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commandline import one_line, run

from taso_mirage.errors import InvalidOption, SyntaxProblem
from taso_mirage.generate.pipeline import Options, _Partial
from taso_mirage.kernels.checkpoint import Checkpoint
from taso_mirage.library import parse_rules
from taso_mirage.optimize.mutations import Store
from taso_mirage.toml import read_json

MINI = Path(__file__).parent.parent / "models" / "mini_transformer.onnx"
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
    monkeypatch.setattr(Store, "_path", lambda self, program, folder: folder / "tried.json")
    (tmp_path / "tried.json").write_text(DEEP)
    assert Store(tmp_path, "here").read(None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("line", [DEEP, "[]", '["a", {"no": "field"}]', '["a", 1]', "\udcff"])
def test_what_a_generation_kept_may_be_damaged(tmp_path: Path, line: str) -> None:
    partial = _Partial(Options(output=tmp_path, resume=True))
    (partial.folder / f"outcomes-{partial.key}.jsonl").write_bytes(line.encode(errors="surrogateescape") + b"\n")
    assert partial.outcomes() == {}


@pytest.mark.parametrize("command", [("substitutions", "verify"), ("verify", MINI, MINI)])
def test_a_pipe_is_not_waited_for(tmp_path: Path, command: tuple[object, ...]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in one_line(run(*command, tmp_path / "pipe", check=2))


def test_a_pipe_in_a_library_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rules.toml")
    assert "no regular file" in one_line(run("substitutions", "list", "--library", tmp_path, check=2))


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
