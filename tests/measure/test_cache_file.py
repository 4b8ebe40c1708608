"""The cache as one file: exported entries are imported once; any other file changes nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from commandline import one_line, run

from taso_mirage.errors import InvalidOption, SyntaxProblem
from taso_mirage.measure.cache_clear import clear_cache
from taso_mirage.measure.cache_file import COSTS, FORMAT, MANIFEST, contents, export_cache, import_cache
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.mugraph.checkpoint import from_json
from taso_mirage.system.builds import USED

KERNEL = f"kernels/{'0a' * 16}.json"
ROWS = [("cpu | one", "relu", 1e-6), ("cpu | one", "add", 2e-6), ("cuda | two", "relu", 3e-6)]


def cache(folder: Path) -> Path:
    with closing(CostCache(folder / "costs.sqlite")) as costs:
        costs.add(ROWS)
    (folder / "kernels").mkdir()
    (folder / KERNEL).write_text('{"mugraph": 1}')
    (folder / "kernels/made.so").write_text("no data")
    return folder


def archive(path: Path, files: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
    return path


def test_what_is_exported_is_imported_once(tmp_path: Path) -> None:
    there, file = tmp_path / "there", tmp_path / "cache.zip"
    (tmp_path / "here").mkdir()
    found = export_cache(file, cache(tmp_path / "here"))
    assert found.devices == {"cpu | one": 2, "cuda | two": 1}
    assert found.files == {"kernels": 1, "mutants": 0}
    assert import_cache(file, there).new == 4
    assert (there / KERNEL).read_text() == '{"mugraph": 1}'
    assert not (there / "kernels/made.so").exists()
    with closing(CostCache(there / "costs.sqlite")) as costs:
        assert sorted(costs.measurements()) == sorted(ROWS)
    assert import_cache(file, there).new == 0
    assert contents(there) == found


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    there, file = tmp_path / "there", tmp_path / "cache.zip"
    (tmp_path / "here").mkdir()
    export_cache(file, cache(tmp_path / "here"))
    (there / "kernels").mkdir(parents=True)
    (there / KERNEL).write_text('{"mugraph": 2}')
    with closing(CostCache(there / "costs.sqlite")) as costs:
        costs.put("cpu | one", "relu", 5e-6)
    assert import_cache(file, there).new == 2
    assert (there / KERNEL).read_text() == '{"mugraph": 2}'
    with closing(CostCache(there / "costs.sqlite")) as costs:
        assert costs.get("cpu | one", "relu") == 5e-6


MADE = {MANIFEST: json.dumps({"format": FORMAT}), COSTS: json.dumps(ROWS[0]) + "\n"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"other.txt": "x"}, "manifest.json"),
        (MADE | {MANIFEST: json.dumps({"format": 99})}, "its format is 99, this version reads 1"),
        (MADE | {"kernels/../../outside.json": "{}"}, "which does not belong to a cache"),
        (MADE | {f"cpp/{'0a' * 16}.so": "code"}, "which does not belong to a cache"),
        (MADE | {KERNEL: "no json"}, "Expecting value"),
        (MADE | {COSTS: json.dumps(["cpu", "relu", -1.0])}, "a measurement .* is none"),
        (MADE | {COSTS: '["cpu", "relu", NaN]'}, "a measurement .* is none"),
        (MADE | {COSTS: json.dumps(["cpu", "relu"])}, "not enough values"),
    ],
    ids=["strange", "newer", "outside", "code", "damaged", "negative", "nan", "short"],
)
def test_what_is_no_cache_changes_nothing(tmp_path: Path, files: Mapping[str, str], said: str) -> None:
    there = tmp_path / "there"
    with pytest.raises(InvalidOption, match=f"is no cache that `taso-mirage cache export` wrote: .*{said}"):
        import_cache(archive(tmp_path / "strange.zip", files), there)
    assert not there.exists()


def test_other_files_and_empty_caches(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(InvalidOption, match="it is no archive"):
        import_cache(tmp_path / "text", tmp_path / "there")
    with pytest.raises(InvalidOption, match="missing: no such file"):
        import_cache(tmp_path / "missing", tmp_path / "there")
    with pytest.raises(InvalidOption, match="is empty; optimize a model first"):
        export_cache(tmp_path / "cache.zip", tmp_path / "nothing")
    assert not (tmp_path / "cache.zip").exists()


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(cache(tmp_path / "here")))
    file = str(tmp_path / "cache.zip")
    assert "2 measurements: cpu | one" in run("cache", "export", file).stdout
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path / "there"))
    assert "4 of these are new" in run("cache", "import", file).stdout
    assert json.loads(run("cache", "show", "--json").stdout)["kernels"] == 1


@pytest.mark.parametrize("name", ["n0\\nabort(); //", "n0; abort()", "system(1)", "n0 /* ", "n0 = 1"])
def test_a_kernel_of_an_archive_brings_no_code(name: str) -> None:
    """Names of dims are written into C++ and Triton as they are."""
    program = ["def graph(x0: input('x', float32['NAME', 4])):", "    v0 = exp(x0)", "    return v0"]
    plain = {"mugraph": 1, "program": [line.replace("NAME", "n0") for line in program]}
    assert from_json(plain).outputs[0].op == "exp"
    with pytest.raises(SyntaxProblem):
        from_json({"mugraph": 1, "program": [line.replace("NAME", name) for line in program]})


# ---------------------------------------------------------------- clearing it


def of_this_user(folder: Path) -> Path:
    """A cache with all that the program keeps, beside files of somebody else."""
    cache(folder)
    (folder / "runtime").mkdir(mode=0o700)
    for name in (f"{'0a' * 32}.so", f"kernels_{'0a' * 16}.built"):
        (folder / "runtime" / name).write_text("code")
    for name in ("mine.txt", "kernels/mine.json", "runtime/mine.so"):
        (folder / name).write_text("of the user")
    return folder


def test_clearing_removes_what_the_program_keeps_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / f"{'0a' * 16}.json").write_text("{}")
    (tmp_path / "here").mkdir()
    here = of_this_user(tmp_path / "here")
    (here / "mutants").symlink_to(tmp_path / "elsewhere")
    (here / "kernels" / f"{'0b' * 16}.json").symlink_to(tmp_path / "elsewhere" / f"{'0a' * 16}.json")
    listed = clear_cache(here, dry=True)
    assert {each.kind: each.count for each in listed} == {"measured costs": 3, "kernels": 1, "compiled files": 2}
    assert contents(here).devices
    assert clear_cache(here) == listed
    assert clear_cache(here) == []
    left = {str(each.relative_to(here)) for each in here.rglob("*") if each.name != USED}
    kept = {"mine.txt", "costs.sqlite", "kernels", "runtime", "mutants", "kernels/made.so"}
    assert left == kept | {"kernels/mine.json", "runtime/mine.so", f"kernels/{'0b' * 16}.json"}
    assert (tmp_path / "elsewhere" / f"{'0a' * 16}.json").exists()


def test_a_database_of_somebody_else_stays(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "costs.sqlite")) as database, database:
        database.execute("CREATE TABLE cost (target TEXT)")
        database.execute("CREATE TABLE accounts (name TEXT)")
        database.execute("INSERT INTO cost VALUES ('a')")
    (tmp_path / "proofs.sqlite").write_text("no database")
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert {each.left for each in clear_cache(tmp_path)} == {"it is no such table, or busy"}
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_an_optimizer_that_runs_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running optimizer keeps its compiled files, and its later measurements are kept, too."""
    of_this_user(tmp_path)
    code = (
        "from taso_mirage.system.builds import private_folder; private_folder('runtime'); print(1, flush=True); input()"
    )
    environment = os.environ | {"TASO_MIRAGE_CACHE": str(tmp_path)}
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with (
        closing(CostCache(tmp_path / "costs.sqlite")) as costs,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        assert {each.kind: each.left for each in clear_cache(tmp_path)}["compiled files"] == "another process uses them"
        costs.put("cpu", "relu", 1.0)
        assert costs.entries() == 1
        process.communicate(b"\n")
    assert len(list((tmp_path / "runtime").glob("*.built"))) == 1
    assert {each.kind: each.left for each in clear_cache(tmp_path)}["compiled files"] == ""
    assert not list((tmp_path / "runtime").glob("*.built"))


def test_clearing_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(cache(tmp_path)))
    assert "pass --yes" in one_line(run("cache", "clear", check=2))
    monkeypatch.setattr("taso_mirage.cli.cache.asking", lambda: True)
    for answer, count in ((False, 3), (True, 0)):
        monkeypatch.setattr("typer.confirm", lambda *args, answer=answer, **options: answer)
        assert "3 measured costs" in run("cache", "clear").stdout
        with closing(CostCache(tmp_path / "costs.sqlite")) as costs:
            assert costs.entries() == count
    found = json.loads(run("cache", "clear", "--yes", "--json").stdout)
    assert found == {"folder": str(tmp_path), "removed": []}
    assert "nothing to remove" in run("cache", "clear", "--yes").stdout


# ---------------------------------------------------------------- damaged ones, and large ones


def test_many_files_are_imported_without_waiting_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda number: pytest.fail("it waits for each file"))
    names = [f"kernels/{i:032x}.json" for i in range(300)]
    file = archive(tmp_path / "many.zip", MADE | dict.fromkeys(names, "{}"))
    assert import_cache(file, tmp_path / "there").new == 301
    assert all((tmp_path / "there" / name).read_text() == "{}" for name in names)
