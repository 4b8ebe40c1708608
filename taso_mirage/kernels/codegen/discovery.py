"""Finds the forms: kernels written by hand, one in each file of a folder.

They are imported when the first one is asked for, and nothing lists them.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

FOLDER = "taso_mirage.kernels.forms"


@cache
def discovered() -> tuple[Any, ...]:
    """The value `FORM` of every file of the folder, by the names of the files."""
    names = sorted(module.name for module in pkgutil.iter_modules(import_module(FOLDER).__path__))
    return tuple([import_module(f"{FOLDER}.{name}").FORM for name in names])
