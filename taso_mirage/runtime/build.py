"""Compiling: the custom-operator library, once for a version of this package, and the C++ of kernels, once for a machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path

from taso_mirage.cpu import compiler
from taso_mirage.errors import RuntimeUnavailable

LIBRARY = tuple(f"{name}.cpp" for name in "plan cpu cuda shapes library".split())
HEADERS = tuple(f"{name}.h" for name in "plan cpu cuda ort api".split())
SHARED = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden")
NATIVE = ("-march=native",)


def library() -> Path:
    """The custom-operator library for `register_custom_ops_library`: built on first use, then kept in the user's cache folder.

    It is the same for every model and processor. Raises RuntimeUnavailable without a C++ compiler.
    """
    sources = {name: _source(name) for name in (*LIBRARY, *HEADERS)}
    command = [*compiler(), *SHARED, *_linking()]
    made = cache_folder() / f"taso_mirage_{_key(*command, *sources.values())}{_suffix()}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as place:
            for name, text in sources.items():
                (Path(place) / name).write_text(text)
            files = [f"{place}/{name}" for name in LIBRARY]
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                list(threads.map(lambda file: _run([*compiler(), *SHARED, "-c", "-o", f"{file}.o", file]), files))
            _run([*command, "-shared", "-o", f"{place}/made", *(f"{file}.o" for file in files), *_libraries()])
            (Path(place) / "made").replace(made)
    return made


def compile_kernels(sources: Sequence[str], flags: Sequence[str], folder: Path | None = None) -> Path:
    """A library of compiled kernels for this machine: every source is compiled once, then they are linked.

    Raises RuntimeUnavailable with the compiler's first message.
    """
    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    texts = [_source("features.cpp"), *dict.fromkeys(sources)]
    command = [*compiler(), *flags, *NATIVE, "-fPIC"]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(lambda text: _object(text, command, folder), texts))
    made = folder / f"kernels_{_key(*(each.name for each in objects))}{_suffix()}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            _run([*compiler(), "-shared", "-o", f"{place}/made", *map(str, objects)])
            (Path(place) / "made").replace(made)
    return made


def _object(text: str, command: Sequence[str], folder: Path) -> Path:
    made = folder / f"{_key(text, machine(), *command)}.o"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            source = Path(place) / "kernel.cpp"
            source.write_text(text)
            _run([*command, "-c", "-o", f"{place}/made", str(source)])
            (Path(place) / "made").replace(made)
    return made


@cache
def machine() -> str:
    """What `-march=native` stands for: a cache folder may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return platform.machine() + next((x for x in lines if x.startswith(("flags", "Features"))), "")


def cache_folder() -> Path:
    """Where compiled libraries lie: $TASO_MIRAGE_CACHE, or the user's cache folder. Raises RuntimeUnavailable where it cannot be."""
    import platformdirs

    folder = Path(os.environ.get("TASO_MIRAGE_CACHE") or platformdirs.user_cache_dir("taso-mirage")) / "runtime"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeUnavailable(
            f"{folder} cannot be made ({error.strerror}); set TASO_MIRAGE_CACHE to a folder that can"
        ) from None
    return folder


def _source(name: str) -> str:
    return files("taso_mirage.runtime").joinpath("cpp", name).read_text()


def _linking() -> tuple[str, ...]:
    return ("-Wl,-z,nodelete",) if sys.platform == "linux" else ()


def _libraries() -> tuple[str, ...]:
    return ("-ldl", "-pthread") if sys.platform == "linux" else ()


def _suffix() -> str:
    if sys.platform == "win32":
        raise RuntimeUnavailable("kernels inside models run on Linux and macOS; load the model without `register`")
    return ".dylib" if sys.platform == "darwin" else ".so"


def _key(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def _run(command: Iterable[str]) -> None:
    given = list(command)
    done = subprocess.run(given, capture_output=True, text=True)
    if done.returncode:
        said = (
            [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
        )
        raise RuntimeUnavailable(f"{given[0]} failed: {said[0][:400]}; $CXX chooses another compiler")
