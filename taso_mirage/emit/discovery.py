"""Finds the forms: kernels written by hand, one in each file of a folder, and those of plug-ins.

They are imported at the first request, and no code lists them.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from taso_mirage.operators.ops import load_specs
from taso_mirage.plugins import FORM_GROUP, Plugin, plugins

FOLDER = "taso_mirage.forms"


@cache
def discovered() -> tuple[Any, ...]:
    """The value `FORM` of every file of the folder, by the names of the files, then the forms of
    plug-ins, by their names.

    Raises InvalidOption if a plug-in has none, or has kernels for an operator that is missing or
    that belongs to another form.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(import_module(FOLDER).__path__) if not module.ispkg)
    found = [import_module(f"{FOLDER}.{name}").FORM for name in names]
    for each in plugins(FORM_GROUP):
        found.append(_of_plugin(each, {form.program.op for form in found}))
    return tuple(found)


def _of_plugin(plugin: Plugin, taken: set[str]) -> Any:
    form = plugin.load()
    if (op := _operator(form)) is None:
        raise plugin.refused("names no form; give a taso_mirage.forms.base.form.Form")
    if op not in load_specs():
        raise plugin.refused(f"has kernels for {op!r}, which is no operator")
    if op in taken:
        raise plugin.refused(f"has kernels for the operator {op}, which another form has")
    return form


def _operator(form: Any) -> str | None:
    """The operator whose terms a form writes; None for an object of any class that is no form."""
    try:
        op = form.program.op if callable(form.read) and callable(form.members) else None
    except Exception:
        return None
    return op if isinstance(op, str) else None
