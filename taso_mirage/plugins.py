"""Plug-ins: other packages that add operators, rules, targets or forms by Python's entry points
(docs/plugins.md). They are imported when they are first needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from taso_mirage.errors import InvalidOption

OPERATOR_GROUP, RULE_GROUP, TARGET_GROUP, FORM_GROUP = GROUPS = (
    "taso_mirage.operators",
    "taso_mirage.rules",
    "taso_mirage.targets",
    "taso_mirage.forms",
)
CHOSEN = "TASO_MIRAGE_PLUGINS"
"""The environment variable with the names of the selected plug-ins, separated by commas; without it
all are used."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point; `package` is the distribution that has it, with its version."""

    group: str
    name: str
    package: str
    point: EntryPoint = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"the plug-in {self.name!r} of {self.package}"

    def load(self) -> Any:
        """Import the object that the entry point names: a module, or an object of one.

        Raises InvalidOption if the import fails with any error, because the code is foreign.
        """
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:  # code that ends the process would end it without a message
            raise self.refused(f"cannot be imported: {type(error).__name__}: {error}") from error

    def folder(self) -> Path:
        """The folder of the package that the entry point names."""
        return self._file().parent

    def _file(self) -> Path:
        found = getattr(self.load(), "__file__", None)
        if not isinstance(found, str):
            raise self.refused("names no module in a file")
        return Path(found)

    def files(self) -> list[Path]:
        """The Python files of the plug-in: one of a module, all of a package."""
        file = self._file()
        return sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]

    def refused(self, why: str) -> InvalidOption:
        """The error for this plug-in with a reason and the next step."""
        return InvalidOption(
            f"{self} {why}\nFix it, uninstall {self.package.partition(' ')[0]}, or name the plug-ins to use in {CHOSEN} "
            "(an empty value selects none)"
        )


@cache
def plugins(group: str) -> tuple[Plugin, ...]:
    """The installed and chosen plug-ins of a group, by name."""
    return tuple(sorted(_found(group), key=lambda each: (each.name, each.package)))


def plugin_named(group: str, name: str) -> Plugin | None:
    """The plug-in of that name; None if there is none.

    Raises InvalidOption if several have it.
    """
    found = [each for each in plugins(group) if each.name == name]
    if len(found) > 1:
        raise found[0].refused(f"has the name of {found[1]}")
    return found[0] if found else None


def _found(group: str) -> Iterator[Plugin]:
    chosen = os.environ.get(CHOSEN)
    names = None if chosen is None else {name.strip() for name in chosen.split(",")}
    for point in entry_points(group=group):
        if names is None or point.name in names:
            package = "an unnamed package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
            yield Plugin(group, point.name, package, point)
