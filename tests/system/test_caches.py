"""Caches, whoever wrote to them and whenever they were cut off: their content is whole, one's own,
and never more than the lost entries are missing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import fused_models
import psutil
import pytest

from taso_mirage.devices.cpu import compiler as compilers
from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.pipeline.fuse import fused
from taso_mirage.prove.rules.proofs import _Kept
from taso_mirage.runtime.compilation import cache_folder
from taso_mirage.system import builds
from taso_mirage.system.builds import built, compile_files, private_folder
from taso_mirage.system.store import Store

ROOT = Path(__file__).parents[2]


def python(code: str, folder: Path, *, cwd: Path | None = None) -> subprocess.Popen[str]:
    """A process with a cache of its own that runs some Python."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "harness"), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=os.environ | {"TASO_MIRAGE_CACHE": str(folder), "PYTHONPATH": path},
    )


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    found = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), found
    return found


# ---------------------------------------------------------------- compiled files

COMPILE = """
import ctypes
from taso_mirage.runtime.compilation import compile_kernels
path = compile_kernels(['extern "C" int answer() { return 42; }'], ["-O1"])
print(ctypes.CDLL(str(path)).answer())
"""
REGISTER = """
import onnxruntime
from taso_mirage.runtime.compilation import library
onnxruntime.SessionOptions().register_custom_ops_library(str(library()))
"""


@pytest.mark.parametrize(("code", "count"), [(COMPILE, 8), pytest.param(REGISTER, 3, marks=pytest.mark.slow)])
def test_processes_that_start_at_once_on_an_empty_cache_all_get_a_whole_library(
    tmp_path: Path, code: str, count: int
) -> None:
    assert len(set(outputs([python(code, tmp_path) for _ in range(count)]))) == 1


def made(place: Path) -> Path:
    (place / "made").write_bytes(b"of this build")
    return place / "made"


@pytest.mark.parametrize(
    "damage", ["empty", "cut off", "changed", "gone", "a folder", "entry cut off", "entry elsewhere"]
)
def test_what_is_damaged_is_built_anew(tmp_path: Path, damage: str) -> None:
    first = built(tmp_path, "key", ".so", made)
    first.chmod(0o600)
    entry = tmp_path / "key.built"
    match damage:
        case "empty":
            first.write_bytes(b"")
        case "cut off":
            first.write_bytes(first.read_bytes()[:4])
        case "changed":
            first.write_bytes(b"of another build")
        case "gone":
            first.unlink()
        case "a folder":
            first.unlink()
            first.mkdir()
        case "entry cut off":
            entry.write_text(entry.read_text()[:10])
        case _:
            (tmp_path.parent / "planted.so").write_bytes(b"of a stranger")
            entry.write_text("../planted.so")
    if damage == "a folder":
        with pytest.raises(RuntimeUnavailable, match="nothing can be compiled into"):
            built(tmp_path, "key", ".so", made)
        return
    again = built(tmp_path, "key", ".so", made)
    assert again == first
    assert again.read_bytes() == b"of this build"


def test_a_library_that_is_cut_off_does_not_end_the_process(tmp_path: Path) -> None:
    """Mapped, it would: SIGBUS."""
    outputs([python(COMPILE, tmp_path)])
    for each in (tmp_path / "runtime").glob("*.so"):
        each.write_bytes(each.read_bytes()[:5000])
    assert outputs([python(COMPILE, tmp_path)]) == ["42\n"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can plant files of another user")
def test_files_of_another_user_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        builds.os, "getuid", lambda: 1234
    )  # the files here are root's, who is trusted; make them another's
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path))
    (tmp_path / "runtime").mkdir()
    os.chown(tmp_path / "runtime", 99, 99)
    (tmp_path / "runtime-1234").mkdir()
    os.chown(tmp_path / "runtime-1234", 1234, 1234)
    assert private_folder("runtime").name == "runtime-1234"
    os.chown(tmp_path / "runtime-1234", 99, 99)
    with pytest.raises(RuntimeUnavailable, match="runtime-1234 belongs to another user; set TASO_MIRAGE_CACHE"):
        private_folder("runtime")
    planted = built(tmp_path / "own", "key", ".so", made)
    os.chown(planted, 99, 99)
    built(tmp_path / "own", "key", ".so", made)
    assert planted.stat().st_uid == 0


def test_a_folder_for_code_is_no_one_elses_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path))
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime").chmod(0o777)
    assert cache_folder().stat().st_mode & 0o777 == 0o700


def test_what_killed_builds_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / "tmpold", tmp_path / "tmpnew"
    for folder in (old, new):
        folder.mkdir()
        (folder / "part").write_text("")
    os.utime(old, (time.time() - 2 * builds.DAY,) * 2)
    built(tmp_path, "key", ".so", made)
    assert not old.exists()
    assert new.exists()


def test_a_build_outlasts_a_jump_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process builds at the same time, for which this build's folder is days old."""

    def slow(place: Path) -> Path:
        monkeypatch.setattr(builds.time, "time", lambda: os.stat(place).st_mtime + 3 * builds.DAY)
        built(tmp_path, "other", ".so", made)
        return made(place)

    assert built(tmp_path, "key", ".so", slow).is_file()


def test_a_compiler_that_hangs_is_ended_with_all_that_it_started() -> None:
    command = ["sh", "-c", "sleep 4711 & sleep 4711"]
    with pytest.raises(RuntimeUnavailable, match=r"sh took longer than 0.3 s for one file; \$CXX chooses another"):
        compile_files(command, limit=0.3)
    eventually(lambda: not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4711"]])


def test_a_compiler_that_says_nothing_is_named() -> None:
    with pytest.raises(RuntimeUnavailable, match="false failed: exit code 1 without a message"):
        compile_files(["false"])


# ---------------------------------------------------------------- databases


def poisoned(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statement)


POISON = {
    "trigger": """CREATE TABLE cost (target TEXT, signature TEXT, seconds REAL, PRIMARY KEY (target, signature));
        CREATE TRIGGER t AFTER INSERT ON cost BEGIN DELETE FROM cost; END;""",
    "view": "CREATE VIEW cost AS SELECT 'cpu' AS target, 'MatMul' AS signature, 1e-9 AS seconds;",
    "another schema": "CREATE TABLE cost (target TEXT);",
    "default": "CREATE TABLE cost (target TEXT, signature TEXT, seconds REAL CHECK (load_extension('x')));",
}


@pytest.mark.parametrize("kind", POISON)
def test_statements_in_a_database_do_not_run(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "costs.sqlite"
    poisoned(path, POISON[kind])
    with closing(CostCache(path)) as cache:
        assert cache.get("cpu", "MatMul") is None
        cache.put("cpu", "MatMul", 0.5)
    with closing(CostCache(path)) as cache:
        assert cache.get("cpu", "MatMul") == 0.5
    assert (tmp_path / "costs.sqlite.damaged").exists()


@pytest.mark.parametrize("damage", [b"", b"no database", "cut", "page"])
def test_a_damaged_database_costs_what_it_held(tmp_path: Path, damage: bytes | str) -> None:
    path = tmp_path / "costs.sqlite"
    with closing(CostCache(path)) as cache:
        for i in range(300):
            cache.put("cpu", f"MatMul {i} " + "x" * 100, 0.5)
    content = path.read_bytes()
    broken = {"cut": content[:5000], "page": content[:4096] + b"\xa5" * 4096 + content[8192:]}
    path.write_bytes(damage if isinstance(damage, bytes) else broken[damage])
    for _ in range(3):  # a page that is damaged is found when it is read
        with closing(CostCache(path)) as cache:
            cache.get("cpu", "MatMul 0")
            cache.put("cpu", "MatMul", 0.25)
    with closing(CostCache(path)) as cache:
        assert cache.get("cpu", "MatMul") == 0.25


@pytest.mark.parametrize("seconds", [b"\x00", "fast", float("inf"), -1.0, None, 2**62])
def test_a_cost_is_a_finite_number(tmp_path: Path, seconds: object) -> None:
    with closing(CostCache(tmp_path / "costs.sqlite")) as cache:
        cache._store.put("cpu", "MatMul", seconds)
        assert cache.get("cpu", "MatMul") in (None, float(2**62))


def test_a_database_that_another_process_holds_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, connect = tmp_path / "proofs.sqlite", sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout=0.0: connect(path, timeout=min(timeout, 0.1)))
    with closing(_Kept(path)) as kept:
        kept.put("key", True)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(_Kept(path)) as kept:
            assert kept.get("key") is None
    assert not (tmp_path / "proofs.sqlite.damaged").exists()
    with closing(_Kept(path)) as kept:
        assert kept.get("key") is True


PUT = """
from pathlib import Path
from taso_mirage.measure.cost_cache import CostCache
cache = CostCache(Path("costs.sqlite"))
for i in range(50): cache.put("cpu", f"%d {i}", 0.5)
"""


def test_eight_processes_share_a_database(tmp_path: Path) -> None:
    outputs([python(PUT % i, tmp_path, cwd=tmp_path) for i in range(8)])
    with closing(CostCache(tmp_path / "costs.sqlite")) as cache:
        assert cache.entries() == 400


# ---------------------------------------------------------------- processes of our own


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def eventually(condition: Callable[[], bool], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


GENERATE = "from taso_mirage.cli import main; import sys; sys.argv[1:] = {!r}; main()"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_what_started_them(tmp_path: Path, number: int) -> None:
    arguments = ["substitutions", "generate", "--ops", "3", "--workers", "2", "-o", str(tmp_path / "library")]
    with python(GENERATE.format(arguments), tmp_path) as process:
        eventually(lambda: len(descendants(process)) >= 2)
        started = descendants(process)
        process.send_signal(number)
    psutil.wait_procs(started, 600)
    assert not [p for p in started if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_workers_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("json", "triton", "numpy", "onnxruntime"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(9)")
    code = """
from taso_mirage.system.workers import Workers
workers = Workers("os:fspath", 1, 60.0, ("json", "numpy"))
print(workers("a path").result(600)); workers.close()
"""
    assert outputs([python(code, tmp_path, cwd=tmp_path)]) == ["a path\n"]


def test_pools_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """Not even Python's own start-up of a pool's process imports from there."""
    for name in ("multiprocessing", "pickle", "signal", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()")
    code = """
from taso_mirage.system.workers import process_pool
with process_pool(2) as processes:
    print(processes.submit(len, "four").result(600))
"""
    assert outputs([python(code, tmp_path, cwd=tmp_path)]) == ["4\n"]
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("/bin/false", "failed: exit code 1"), ("/bin/true", "makes no file"), ("cat", "cat failed: ")],
)
def test_a_compiler_that_does_not_work_is_why_there_are_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, said: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path))
    compilers.compiler.cache_clear()
    try:
        result = fused(fused_models.plain(), fused_models.CONFIG, "search")
    finally:
        compilers.compiler.cache_clear()
    (note,) = [note for note in result.notes if "no kernels" in note]
    assert said in note
    assert "$CXX chooses another" in note


def test_a_damaged_schema_whose_name_is_no_text_is_set_aside(tmp_path: Path) -> None:
    """SQLite quotes the name in its message, which Python cannot decode then."""
    path = tmp_path / "costs.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE cost (a TEXT)")
        database.execute("PRAGMA writable_schema=ON")
        database.execute("UPDATE sqlite_master SET name=CAST(x'61cc62' AS TEXT), sql='CREATE nonsense'")
        database.commit()
    with closing(Store(path, "cost", ("key TEXT", "seconds REAL"), 1)) as store:
        store.put("a", 1.0)
        assert store.rows("a") == [("a", 1.0)]
    assert path.with_name("costs.db.damaged").exists()
