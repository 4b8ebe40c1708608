"""Compiling: the custom-operator library, once for a version of this package, and the C++ of
kernels, once for a machine."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.system.builds import built, compile_files, private_folder

LIBRARY = tuple(f"{name}.cpp" for name in "plan cpu driver tensor_maps cuda shapes library".split())
HEADERS = tuple(f"{name}.h" for name in "plan cpu driver tensor_maps cuda ort api".split())
SHARED = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden")
NATIVE = ("-march=native",)
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def library() -> Path:
    """Return the custom-operator library for `register_custom_ops_library`.

    It is built on first use, stored in the user's cache folder, and the same for every model and
    processor. Raises RuntimeUnavailable without a C++ compiler.
    """
    sources, headers = ({name: _source(name) for name in names} for names in (LIBRARY, HEADERS))
    command, folder = [*compiler(), *SHARED], cache_folder()

    def make(place: Path) -> Path:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects = list(threads.map(lambda text: _object(text, command, folder, headers), sources.values()))
        compile_files([*command, *_linking(), "-shared", "-o", f"{place}/made", *map(str, objects), *_libraries()])
        return place / "made"

    key = _key(*command, *_linking(), *sources.values(), *headers.values())
    return built(folder, f"taso_mirage_{key}", _suffix(), make)


def compile_kernels(sources: Sequence[str], flags: Sequence[str], folder: Path | None = None) -> Path:
    """A library of compiled kernels for this machine: every source is compiled once, then they are
    linked.

    Raises RuntimeUnavailable with the compiler's first message.
    """
    folder = folder or cache_folder()
    texts = [_source("features.cpp"), *dict.fromkeys(sources)]
    command = [*compiler(), *flags, *NATIVE, "-fPIC"]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(lambda text: _object(text, command, folder), texts))

    def make(place: Path) -> Path:
        compile_files([*compiler(), "-shared", "-o", f"{place}/made", *map(str, objects)])
        return place / "made"

    return built(folder, f"kernels_{_key(*(each.name for each in objects))}", _suffix(), make)


def _object(text: str, command: Sequence[str], folder: Path, headers: Mapping[str, str] = NO_HEADERS) -> Path:
    """A compiled source, which is kept even if the whole build is interrupted."""

    def make(place: Path) -> Path:
        for name, content in {**headers, "source.cpp": text}.items():
            (place / name).write_text(content)
        compile_files([*command, "-c", "-o", f"{place}/made", f"{place}/source.cpp"])
        return place / "made"

    return built(folder, _key(text, machine(), *headers.values(), *command), ".o", make)


@cache
def machine() -> str:
    """A text that identifies the processor of `-march=native`, because machines may share a cache
    folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return platform.machine() + next((x for x in lines if x.startswith(("flags", "Features"))), "")


def cache_folder() -> Path:
    """The folder of compiled libraries; see `builds.private_folder`."""
    return private_folder("runtime")


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
