"""The machine's C++ compiler, for kernels and their library."""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from importlib.util import find_spec

from taso_mirage.errors import RuntimeUnavailable


@cache
def compiler() -> tuple[str, ...]:
    """The command of a C++ compiler: $CXX, g++, clang++, or that of the package ziglang."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return (found,)
    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "c++")
    raise RuntimeUnavailable(
        "there is no C++ compiler, which kernels for the CPU and their library need; install g++ or clang++, `pip install ziglang`, "
        "or set CXX. The model runs without them too: load it without `register`, and its functions compute the same"
    )
