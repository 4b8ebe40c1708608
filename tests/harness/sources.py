"""Python files, parsed once; the modules of the package, and their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "taso_mirage"


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, parents before what is in them: many checks walk all files."""
    return tuple(ast.walk(parsed(file)))


def imported(file: Path) -> Iterator[tuple[str, str]]:
    """Modules with the names taken from them, wherever the import stands: at the top, in a
    function, for types alone."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner, "") if inner in modules() else (node.module, alias.name)


def imports(file: Path) -> set[str]:
    return {name for name, _ in imported(file)}
