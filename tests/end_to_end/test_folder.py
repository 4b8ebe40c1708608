"""A folder of models: one report, one failing model does not stop the others, and finished models
are not done again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from commandline import one_line, run
from small_models import relus

from taso_mirage import api, folder
from taso_mirage.errors import InvalidModel, InvalidOption, RuntimeUnavailable
from taso_mirage.folder import Folder
from taso_mirage.system.files import file_digests

pytestmark = pytest.mark.sampled(2)

MINI = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"
QUICK = ("--no-measure", "--budget", 5)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Three good models, one of them in a folder below and with a name of odd characters, and one
    that is none."""
    source = tmp_path / "models"
    relus(source / "a.onnx", 2)
    relus(source / "below" / "b <i>&?#.onnx", 3)
    relus(source / "one.onnx", 1)
    (source / "c.onnx").write_text("this is no model")
    return source


def rows(output: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((output / "index.json").read_text())
    return {row["model"]: row for row in found["models"]}


def test_every_model_is_done_though_one_fails(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("optimize", models, "-o", out, *QUICK, check=3)
    assert "4 models: 0 done before, 4 to do, at most 5 s each" in done.stderr
    found = rows(out)
    assert {name: row["state"] for name, row in found.items()} == {
        "a.onnx": "faster",
        "below/b <i>&?#.onnx": "faster",
        "c.onnx": "failed",
        "one.onnx": "kept",
    }
    assert "no ONNX model" in found["c.onnx"]["error"]
    assert not (out / "c.onnx").exists()
    for name, row in found.items():
        if row["state"] != "failed":
            assert len(onnx.load(out / name).graph.node) == 1
            assert (out / row["report"]).exists()
    assert found["a.onnx"]["ratio"] == pytest.approx(found["a.onnx"]["before"] / found["a.onnx"]["after"])
    assert found["one.onnx"]["ratio"] == 1.0
    assert "2/4 below/b <i>&?#.onnx: faster" in done.stdout
    assert "4 models: 1 failed, 2 faster, 1 kept" in done.stdout


def test_what_is_no_regular_file_is_one_that_fails(tmp_path: Path) -> None:
    """A device may have no end, and a pipe no beginning: neither is read for its digest."""
    source, out = tmp_path / "models", tmp_path / "out"
    relus(source / "a.onnx", 2)
    (source / "device.onnx").symlink_to("/dev/null")
    with pytest.raises(OSError, match="no regular file"):
        file_digests(source, [source / "device.onnx"])
    os.mkfifo(source / "pipe.onnx")
    run("optimize", source, "-o", out, *QUICK, check=3)
    found = rows(out)
    assert {name: row["state"] for name, row in found.items()} == {
        "a.onnx": "faster",
        "device.onnx": "failed",
        "pipe.onnx": "failed",
    }
    assert all("no regular file" in found[name]["error"] for name in ("device.onnx", "pipe.onnx"))


def test_the_page_leads_to_every_report_and_escapes_names(models: Path, tmp_path: Path) -> None:
    run("optimize", models, "-o", tmp_path / "out", *QUICK, check=3)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<i>" not in page
    assert "<script" not in page
    links = re.findall(r'href="([^"]+)"', page)
    assert links == ["a.onnx.html", "below/b%20%3Ci%3E%26%3F%23.onnx.html", "one.onnx.html"]
    assert page.count('<tr class="wrong">') == 1
    assert "(predicted)" in page  # nothing was measured


def test_names_that_are_addresses_or_no_text_are_quoted(models: Path, tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    for name in (b"javascript:1.onnx", b"\xff.onnx"):
        (zoo / os.fsdecode(name)).write_bytes((models / "one.onnx").read_bytes())
    run("optimize", zoo, "-o", tmp_path / "out", *QUICK)
    page = (tmp_path / "out" / "index.html").read_text()
    assert re.findall(r'href="([^"]+)"', page) == ["javascript%3A1.onnx.html", "%FF.onnx.html"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that were optimized, in their order."""
    real, heard = api.optimize, list[str]()

    def optimize(model: Path, **options: Any) -> Any:
        heard.append(model.name)
        return real(model, **options)

    monkeypatch.setattr(folder.api, "optimize", optimize)
    return heard


def test_what_is_done_and_unchanged_is_not_done_again(models: Path, tmp_path: Path, asked: list[str]) -> None:
    command = ("optimize", models, "-o", tmp_path / "out", *QUICK)
    run(*command, check=3)
    assert len(asked) == 4
    for change, again in (
        (lambda: None, []),
        (lambda: relus(models / "a.onnx", 4), ["a.onnx"]),  # another model
        (lambda: (tmp_path / "out" / "one.onnx").unlink(), ["one.onnx"]),  # its result is gone
        (lambda: relus(models / "new.onnx", 2), ["new.onnx"]),
    ):
        asked.clear()
        change()
        run(*command, check=3)
        assert sorted(asked) == sorted([*again, "c.onnx"])  # models that failed are tried again
    asked.clear()
    done = run(*command, "--portable", check=3)
    assert len(asked) == 5  # with other options nothing is done
    assert "5 models: 0 done before" in done.stderr


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder but the index."""
    files = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("index."))
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def test_the_result_of_a_model_that_fails_now_does_not_stay(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("optimize", models, "-o", out, *QUICK)
    run(*command, check=3)
    (tmp_path / "kept.onnx").write_bytes(b"of somebody")
    index = json.loads((out / "index.json").read_text())
    index["models"][0]["written"]["../kept.onnx"] = hashlib.sha256(b"of somebody").hexdigest()
    (out / "index.json").write_text(json.dumps(index))
    (models / "a.onnx").write_text("no model any more")
    run(*command, check=3)
    assert not (out / "a.onnx").exists()
    assert not (out / "a.onnx.html").exists()
    assert rows(out)["a.onnx"]["written"] == {}
    assert (out / "one.onnx").exists()
    assert (tmp_path / "kept.onnx").exists()


def test_a_wrong_option_removes_no_earlier_result(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("optimize", models, "-o", out, *QUICK)
    run(*command, check=3)
    before, index = content(out), (out / "index.json").read_text()
    for wrong in (("--strategy", "foo"), ("--target", "tpu"), ("--kernels", "search"), ("--allow-rounding", "x")):
        one_line(run(*command, *wrong, check=2))  # before any model
        assert (out / "index.json").read_text() == index
    relus(models / "a.onnx", 5)  # though the model is another now
    (models / "c.onnx").unlink()
    run(*command, "--shape", "bacth:1", check=2)
    assert {row["state"] for row in rows(out).values()} == {"failed"}
    assert content(out) == before
    (models / "a.onnx").write_text("no model any more")
    run(*command, check=3)
    assert not (out / "a.onnx").exists()
    assert (out / "one.onnx").exists()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeUnavailable("not here"),
        MemoryError(),
        ZeroDivisionError("a bug"),
        InvalidModel("what the file was before"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_of_a_changed_model_removes_no_result(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "models", tmp_path / "out"
    relus(source / "a.onnx", 2)
    Folder(source, out, {"measure": False, "budget": 3.0}).optimize("a.onnx")
    before = content(out)
    if not isinstance(error, InvalidModel):
        relus(source / "a.onnx", 3)

    def optimize(model: Path, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(folder.api, "optimize", optimize)
    row, _ = Folder(source, out).optimize("a.onnx")
    assert row["state"] == "failed"
    assert content(out) == before
    assert row["written"] == {name: hashlib.sha256(each).hexdigest() for name, each in before.items()}


def test_an_interruption_forgets_no_earlier_result(tmp_path: Path) -> None:
    source, out = tmp_path / "models", tmp_path / "out"
    relus(source / "a.onnx", 2)
    Folder(source, out, {"measure": False, "budget": 3.0}).optimize("a.onnx")
    known = rows(out)["a.onnx"]
    (source / "a.onnx").write_text("no model any more")
    Folder(source, out).write()  # all that a run leaves which ends before its first model is done
    waits = rows(out)["a.onnx"]
    assert waits["state"] == "waiting"
    assert (waits["read"], waits["written"]) == (known["read"], known["written"])
    Folder(source, out).optimize("a.onnx")
    assert not (out / "a.onnx").exists()


def test_what_no_earlier_run_wrote_is_not_written_over(tmp_path: Path, asked: list[str]) -> None:
    source = tmp_path / "models"
    relus(source / "a.onnx", 2)
    for name in ("a.onnx", "a.onnx.html", "a.onnx.data"):
        out = source / name.replace(".", "_")
        relus(out / name, 4)
        before = content(source)
        said = one_line(run("optimize", source, "-o", out, *QUICK, check=2))
        assert str(out / name) in said
        assert "name another folder with --output, or delete that file" in said
        assert content(source) == before
        (out / name).unlink()
    assert asked == []
    run("optimize", source, "-o", out, *QUICK)
    assert rows(out)["a.onnx"]["written"].keys() == {"a.onnx", "a.onnx.html"}
    run("optimize", source, "-o", out, *QUICK, "--portable")  # its own result it does write over
    (out / "a.onnx").write_bytes(b"changed since")
    assert "or was changed since" in one_line(run("optimize", source, "-o", out, *QUICK, check=2))
    assert (out / "a.onnx").read_bytes() == b"changed since"


def test_rules_and_inputs_are_part_of_what_is_done_by_their_content(models: Path, tmp_path: Path) -> None:
    rule = '[[rule]]\nname = "mine.twice"\noperators = 1\ngiven = "x: (m, n)"\nlhs = "add(x, x)"\nrhs = "mul(x, 2.0)"\n'
    (tmp_path / "mine.toml").write_text(rule)
    digests = set()
    for text in (rule, rule, rule.replace("twice", "two")):
        (tmp_path / "mine.toml").write_text(text)
        made = Folder(models, tmp_path / "out", {"rules": [tmp_path / "mine.toml"]})
        digests |= {row["options"] for row in made.rows.values()}
    assert len(digests) == 2


@pytest.mark.sampled(2)
def test_the_weights_beside_a_model_are_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "mini.onnx"
    onnx.save(onnx.load(MINI), path, save_as_external_data=True, location="mini.data", size_threshold=0)
    options = {"measure": False, "budget": 3.0}
    row, _ = Folder(path.parent, tmp_path / "out", options).optimize("mini.onnx")
    assert set(row["read"]) == {"mini.onnx", "mini.data"}
    assert Folder(path.parent, tmp_path / "out", options).waiting == []
    data = bytearray((tmp_path / "models" / "mini.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "models" / "mini.data").write_bytes(data)
    assert Folder(path.parent, tmp_path / "out", options).waiting == ["mini.onnx"]


def test_results_inside_of_the_folder_are_no_models(models: Path) -> None:
    run("optimize", models, "-o", models / "out", *QUICK, check=3)
    assert len(Folder(models, models / "out").rows) == 4


def test_where_the_results_go_if_it_is_not_said(models: Path) -> None:
    run("optimize", models, *QUICK, check=3)
    assert (models.parent / "models.optimized" / "below").is_dir()


@pytest.mark.parametrize("given", [".", "..", "../models/."])
def test_a_folder_without_a_name_of_its_own(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relus(tmp_path / "models" / "sub" / "a.onnx", 2)
    inside = tmp_path / "models" / ("sub" if given == ".." else "")
    monkeypatch.chdir(inside)
    run("optimize", given, *QUICK)
    assert (tmp_path / "models.optimized" / "sub" / "a.onnx").exists()
    with pytest.raises(InvalidOption, match="has no name"):
        Folder(Path("/"))


def test_wrong_folders_exit_2(models: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("somebody's page")
    for arguments, message in (
        ((tmp_path / "empty",), "has no .onnx files"),
        ((models, "-o", models), "would overwrite models"),
        ((models, "-o", tmp_path), "would overwrite models"),
        ((models, "-o", tmp_path / "site"), "an index that is not of an earlier run"),
        ((models, "--report", tmp_path / "r.html"), "--report is for one model"),
        ((models, "--certificate", tmp_path / "c.json"), "--certificate is for one model"),
        ((models, "--trace", tmp_path / "t"), "--trace is for one model"),
    ):
        assert message in one_line(run("optimize", *arguments, *QUICK, check=2))
    assert (tmp_path / "site" / "index.html").read_text() == "somebody's page"


def test_a_place_that_takes_no_results_exits_4(models: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot make" in one_line(run("optimize", models, "-o", tmp_path / "file" / "out", *QUICK, check=4))


def test_an_index_that_is_damaged_is_not_taken_for_none(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for content in ("", "[]", "{}", '{"models": [3]}', "\xff"):
        (out / "index.json").write_text(content, encoding="latin-1")
        with pytest.raises(InvalidOption, match="another folder"):
            Folder(models, out)
    rows = [{"model": "a.onnx", "state": "faster"}]  # one that lacks fields is not done
    (out / "index.json").write_text(json.dumps({"models": rows}))
    assert len(Folder(models, out).waiting) == 4


def test_an_error_inside_of_one_model_does_not_stop_the_others(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = api.optimize

    def optimize(model: Path, **options: Any) -> Any:
        if model.name == "a.onnx":
            raise ZeroDivisionError("a bug")
        return real(model, **options)

    monkeypatch.setattr(folder.api, "optimize", optimize)
    run("optimize", models, "-o", tmp_path / "out", *QUICK, check=1)  # codes 1 and 3
    found = rows(tmp_path / "out")
    assert "internal error: ZeroDivisionError: a bug" in found["a.onnx"]["error"]
    assert found["one.onnx"]["state"] == "kept"


@pytest.mark.sampled(2)
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_an_interrupted_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    source, out = tmp_path / "models", tmp_path / "out"
    for name in "abc":
        relus(source / f"{name}.onnx", 2)
    slow = (
        "import sys, time\n"
        "from taso_mirage import cli, folder\n"
        "real = folder.api.optimize\n"
        "def optimize(model, **options):\n"
        "    if model.name == 'b.onnx':\n"
        "        print('at b', file=sys.stderr, flush=True)\n        time.sleep(6000)\n"
        "    return real(model, **options)\n"
        "folder.api.optimize = optimize\n"
        f"sys.argv = ['taso-mirage', 'optimize', {str(source)!r}, '-o', {str(out)!r}, '--no-measure']\n"
        "cli.main()"
    )
    process = subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "at b" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert said == "taso-mirage: interrupted; finished models are kept, and the same command continues from there\n"
    assert {name: row["state"] for name, row in rows(out).items()} == {
        "a.onnx": "faster",
        "b.onnx": "waiting",
        "c.onnx": "waiting",
    }
    done = run("optimize", source, "-o", out, "--no-measure")
    assert "3 models: 1 done before, 2 to do" in done.stderr
    assert {row["state"] for row in rows(out).values()} == {"faster"}
