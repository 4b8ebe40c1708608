"""A user's wrong input gives one line that names the error and its remedy, and never a traceback;
the table has the cases that `test_cli.py` and `test_hostile_files.py` lack."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from commandline import one_line, run, run_apart
from onnx import parser
from scripts import ROOT

import taso_mirage
from taso_mirage.errors import InvalidModel, InvalidOption
from taso_mirage.measure.timing import Timing

MINI = ROOT / "models" / "mini_transformer.onnx"
QUICK = ("--no-measure", "--kernels", "off", "--budget", "1")
HEAD = '<ir_version: 8, opset_import: ["" : 17, "my.ops" : 1]>'
RELU = "agraph (float[batch, 8] x) => (float[batch, 8] y) { y = Relu (x) }"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a good model and many files that are none."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "good": RELU,
        "nothing": "agraph (float[2] x) => () { }",
        "custom": "agraph (float[2] x) => (float[2] y) { y = my.ops.Frob (x) }",
        "unknown": "agraph (float[2] x) => (float[2] y) { y = Frobnicate (x) }",
        "shapes": "agraph (float[2, 3] x, float[5, 4] w) => (float[2, 4] y) { y = MatMul (x, w) }",
        "run": "agraph (float[2, 3] x, int64[1] s) => (float[n] y) { y = Reshape (x, s) }",
    }
    for name, text in texts.items():
        onnx.save(parser.parse_model(f"{HEAD} {text}"), f"{name}.onnx")
    Path("text.onnx").write_text("this is text")
    Path("short.onnx").write_bytes(MINI.read_bytes()[:3000])
    Path("empty.onnx").write_bytes(b"")
    Path("text.npz").write_text("this is text")
    Path("file").write_text("")
    Path("c.json").write_text("{}")
    Path("broken.toml").write_text("[[rule]\nname=")
    np.savez("other.npz", foo=np.ones(3))
    return tmp_path


ALONE = "it has to run in the runtime alone before it can be made faster"
WRONG = [
    (("optimize", "missing.onnx"), 3, "missing.onnx: no such file; check the path"),
    (("optimize", "text.onnx"), 3, "download or export it again"),
    (("optimize", "short.onnx"), 3, "download or export it again"),
    (("optimize", "empty.onnx"), 3, "download or export it again"),
    (("optimize", "nothing.onnx"), 3, "it has no outputs, so there is nothing to compute; export it again"),
    (
        ("optimize", "custom.onnx", *QUICK),
        3,
        "my.ops:Frob(-1) is not a registered function/op; such an operator is in a library of custom operators, and none is loaded "
        "here: cut out the part of the model that has none (onnx.utils.extract_model) and optimize that",
    ),
    (("optimize", "unknown.onnx", *QUICK), 3, ALONE),
    (("optimize", "shapes.onnx", *QUICK), 3, ALONE),
    (
        ("optimize", "good.onnx", "-o", "no/out.onnx"),
        4,
        "the folder no does not exist; make it, or name another output",
    ),
    (("optimize", "good.onnx", "-o", "/proc/out.onnx"), 4, "name another output"),
    (("optimize", "good.onnx", "-o", "file/out.onnx"), 4, "make it, or name another output"),
    (("optimize", "good.onnx", "--report", "no/r.html"), 4, "make it, or name another output"),
    (("optimize", "good.onnx", "--shape", "seq:8"), 2, "no input or dynamic dim 'seq'; it has: x, batch"),
    (("optimize", "good.onnx", "--inputs", "none.npz"), 2, "(No such file or directory); numpy.savez writes one"),
    (("optimize", "good.onnx", "--inputs", "text.npz"), 2, "(it is no archive); numpy.savez writes one"),
    (("optimize", "good.onnx", "--inputs", "other.npz"), 2, "no array 'x'; it has foo"),
    (("optimize", "good.onnx", "--rules", "none.toml"), 2, "--rules: cannot read none.toml: No such file"),
    (("optimize", "good.onnx", "--rules", "broken.toml"), 2, "--rules: broken.toml: no TOML: Expected ']]'"),
    (
        ("optimize", "good.onnx", "--scheduler", "nonsense"),
        2,
        "missing port number in address 'nonsense'; write it as tcp://host",
    ),
    (("verify", "good.onnx", "good.onnx", "c.json"), 5, "write it anew by `optimize --certificate`"),
    (("verify", "good.onnx", "good.onnx", "none.json"), 2, "cannot read none.json: No such file"),
    (("diff", "good.onnx", "none.onnx"), 3, "check the path"),
    (("kernels", "good.onnx", "-o", "file"), 4, "file is no folder; name another one"),
    (("kernels", "good.onnx", "--checkpoint", "text.npz"), 2, "name another file, or remove it"),
    (("substitutions", "generate", "-o", "file/out"), 4, "cannot write into file/out: Not a directory; name a folder"),
    (("substitutions", "generate", "--scheduler", "x:y", "-o", "o"), 2, "write it as tcp://host:8786"),
    (("cache", "import", "none.zip"), 2, "no such file"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), WRONG, ids=[" ".join(a) for a, _, _ in WRONG])
def test_one_line_says_what_is_wrong_and_what_to_do(
    here: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    before = {p.name for p in here.iterdir()}
    assert said in one_line(run(*arguments, check=code))
    assert {p.name for p in here.iterdir()} - before <= {"o"}  # no half of a result


@pytest.mark.parametrize("arguments", [("optimize",), ("optimize", "good.onnx", "--budget", "-1"), ("optimise",)])
def test_what_the_shell_of_commands_refuses_names_the_help(here: Path, arguments: tuple[str, ...]) -> None:
    said = run_apart(*arguments, check=2).stderr
    assert "Error: " in said
    assert "-h' for help" in said


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"PK\x03\x04", "a PyTorch checkpoint"),
        (b"\x1c\0\0\0TFL3", "a TensorFlow Lite model"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"\x40\0\0\0\0\0\0\0{", "a file of safetensors"),
        (b"GGUF\3", "a GGUF file"),
        (b"\x80\x02\x8a", "a Python pickle"),
    ],
)
def test_another_format_is_named_with_the_way_to_onnx(here: Path, head: bytes, said: str) -> None:
    Path("model").write_bytes(head + b"\0" * 64)
    shown = one_line(run("optimize", "model", check=3))
    assert f"model is {said}" in shown
    assert "and no ONNX model; export it first: " in shown


def test_a_full_disk_is_found_before_the_search(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=500_000))
    run("optimize", "good.onnx", *QUICK)  # has no weights
    said = one_line(run("optimize", MINI, "-o", "out.onnx", *QUICK, check=4))
    size = re.fullmatch(
        r"taso-mirage: cannot write out\.onnx: it needs (\d+\.\d) MB, and 0\.5 MB are free there; .*", said
    )
    assert size is not None
    assert 0.5 < float(size[1]) <= MINI.stat().st_size / 1e6
    assert not Path("out.onnx").exists()


def test_a_producer_is_no_format(here: Path) -> None:
    model = onnx.load("good.onnx")
    model.producer_name = "TFL3"
    onnx.save(model, "named.onnx")
    assert Path("named.onnx").read_bytes()[4:8] == b"TFL3"
    run("optimize", "named.onnx", *QUICK)


def test_a_folder_with_a_broken_model_says_which(here: Path) -> None:
    Path("zoo").mkdir()
    for name in ("good", "text"):
        Path(f"{name}.onnx").rename(f"zoo/{name}.onnx")
    done = run("optimize", "zoo", *QUICK, check=3)
    assert "(2 s in total)" in done.stderr
    assert "2/2 text.onnx: failed: zoo/text.onnx is no ONNX model, or is truncated" in done.stdout


def test_a_budget_of_nothing_keeps_the_original(here: Path) -> None:
    done = run("optimize", "good.onnx", "--budget", "0")
    assert "The original's graph was kept." in done.stdout
    assert Path("good.optimized.onnx").exists()


# ---------------------------------------------------------------- from Python


ASKED: list[tuple[dict[str, Any], str]] = [
    ({"budgte": 3}, "no option is called 'budgte', did you mean 'budget'"),
    ({"budget": "many"}, 'budget="many": it is a number of at least 0'),
    ({"budget": -3}, "budget=-3: it is a number of at least 0"),
    ({"budget": float("nan")}, "budget=nan"),
    ({"alpha": 0.5}, "alpha=0.5: it is a number of at least 1"),
    ({"run_limit": -1.0}, "run_limit=-1.0"),
    ({"shape": {"batch": 3}}, "shape={'batch': 3}: give texts like 'batch:8'"),
    ({"shape": [3]}, "shape=3: give texts like 'batch:8'"),
    ({"inputs": [np.ones((3, 8), np.float32)]}, "give paths of .npz files, or mappings of arrays by input name"),
    ({"inputs": {"z": np.ones(3)}}, "no array 'x'; it has z"),
    ({"inputs": {"x": [[1.0] * 8]}}, "'x' is of type list and no array"),
    ({"rules": 3}, "rules=3: give a RuleSet, or paths of rule files"),
    ({"rules": "none.toml"}, "cannot read none.toml"),
    ({"kernels": True}, "kernels=True: give a text like 'off'"),
]


@pytest.mark.parametrize(("options", "said"), ASKED, ids=[str(options)[:40] for options, _ in ASKED])
def test_a_wrong_option_in_python_is_named(here: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        taso_mirage.optimize("good.onnx", **{"measure": False, "budget": 1, **options})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "options", [{"shape": "batch:3"}, {"inputs": {"x": np.ones((3, 8), np.float32)}}, {"inputs": "in.npz"}]
)
def test_one_stands_without_a_list_around_it(here: Path, options: dict[str, Any]) -> None:
    np.savez("in.npz", x=np.ones((3, 8), np.float32))
    _, result = taso_mirage.optimize("good.onnx", return_result=True, measure=False, budget=1, **options)
    assert result.workloads[0][0] == {"batch": 3}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: taso_mirage.session("none.onnx"), "none.onnx: no such file; check the path"),
        (lambda: taso_mirage.session("text.onnx"), "so it is no ONNX model, or is truncated"),
    ],
)
def test_a_file_that_cannot_be_opened_is_named(here: Path, call: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidModel) as raised:
        call()
    assert said in str(raised.value)


def test_times_are_printed_for_people() -> None:
    assert str(Timing(0.0004, 0.0003, 1.3333, 1.25, 1.4, 10)) == (
        "0.4 ms, then 0.3 ms: 1.33 times as fast (between 1.25 and 1.40)"
    )
