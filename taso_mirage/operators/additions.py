"""Operators and laws that plug-ins and the user's folders add."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from taso_mirage.errors import InvalidOption
from taso_mirage.plugins import OPERATOR_GROUP, plugins

ADDED = frozenset("law_texts law_typings law_plugins together last moving examples".split())
"""The fields of a foreign operator to which a plug-in may add: laws, which are proved, and
examples."""
FOLDERS = "TASO_MIRAGE_OPERATORS"
"""The environment variable with the user's folders of operator files, separated as in PATH."""


def operator_files() -> list[Path]:
    """The operator files of the user's folders. Raises InvalidOption for a folder that is none."""
    folders = [Path(each) for each in os.environ.get(FOLDERS, "").split(os.pathsep) if each]
    for folder in folders:
        if not folder.is_dir():
            raise InvalidOption(f"{FOLDERS} names {folder}, which is no folder; make it, or leave it out")
    return [file for folder in folders for file in sorted(folder.glob("*.py"))]


def add_from_folders(registry: Mapping[str, Any]) -> None:
    """Run the user's operator files, which register their operators and laws like those of
    `op_specs/`.

    Raises InvalidOption, with the file, if one fails, or changes the meaning of an existing
    operator.
    """
    for file in operator_files():
        known = {name: _meaning(each) for name, each in registry.items()}
        _run_file(file)
        for name, meant in known.items():
            if name not in registry or _meaning(registry[name]) != meant:
                raise InvalidOption(f"{file} changes the operator {name}, which is not its own; give it another name")


def _run_file(file: Path) -> None:
    name = f"op_specs.{file.stem}"
    if name in sys.modules:
        raise InvalidOption(f"{file}: there is another file {file.name} of operators; rename it")
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InvalidOption(f"{file} cannot be imported; rename it")
    sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except Exception as error:  # foreign code
        del sys.modules[name]
        raise InvalidOption(f"{file}: {type(error).__name__}: {error}") from error


def add_from_plugins(registry: Mapping[str, Any]) -> None:
    """Load the plug-ins, which register their operators, and record which laws they add.

    Raises InvalidOption, with the next step, if one cannot be loaded, or changes the meaning of an
    existing operator.
    """
    for plugin in plugins(OPERATOR_GROUP):
        stated = {name: len(each.law_texts) for name, each in registry.items()}
        known = {name: _meaning(each) for name, each in registry.items()}
        plugin.load()
        for name, meant in known.items():
            if name not in registry or _meaning(registry[name]) != meant:
                raise plugin.refused(f"changes the operator {name}, which is not its own; give it another name")
        for name, each in registry.items():
            each.law_plugins |= dict.fromkeys(range(stated.get(name, 0), len(each.law_texts)), plugin)


def _meaning(op: Any) -> dict[str, Any]:
    """The data that decide an operator's meaning and its form in ONNX."""
    said = {name: value for name, value in vars(op).items() if name not in ADDED}
    return {**said, "traits": dict(vars(op.traits)), "attributes": dict(op.attributes)}
