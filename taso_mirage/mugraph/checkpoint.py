"""muGraphs as JSON, for checkpoints: the printed program, line by line, which is read as text and
never executed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taso_mirage.errors import InvalidOption, SyntaxProblem
from taso_mirage.ir.terms import Graph
from taso_mirage.rewriting.text import parse_graph, show_graph
from taso_mirage.system.files import write_file
from taso_mirage.system.toml import read_json

VERSION = 1
_TEXT, _CALL = re.compile(r"[A-Za-z0-9_' .,>()*+/-]*"), re.compile(r"\w\s*\(|/\*")


def to_json(graph: Graph) -> dict[str, Any]:
    """A value for `json.dump` from which `from_json` makes the same graph (the same terms, as they
    are interned)."""
    return {"mugraph": VERSION, "program": show_graph(graph).splitlines()}


def from_json(value: Any) -> Graph:
    """The graph of `to_json`.

    Raises SyntaxProblem, or IllTyped, for any other content of a file.
    """
    lines = value.get("program") if isinstance(value, dict) else None
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise SyntaxProblem("a checkpoint of a muGraph has its program as a list of lines")
    if value.get("mugraph") != VERSION:
        raise SyntaxProblem(f"a muGraph of version {value.get('mugraph')!r}; this program reads version {VERSION}")
    try:
        graph = parse_graph("\n".join(lines))
        _refuse_code(ast.parse("\n".join(lines)))
        if any(node.op == "opaque" for node in graph):
            raise SyntaxProblem("the program of a checkpoint has a node without a definition")
        return graph
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        raise SyntaxProblem(f"the program of a checkpoint: {error}") from None


def _refuse_code(program: ast.Module) -> None:
    """Check the names of dims. They become part of generated code that is compiled, and a file may
    be from anybody, so only names and sums of products are accepted, and no calls."""
    texts = (n.value for n in ast.walk(program) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    if wrong := next((t for t in texts if not _TEXT.fullmatch(t) or _CALL.search(t)), None):
        raise SyntaxProblem(f"the program of a checkpoint has the text {wrong[:80]!r}, which is no name of a dim")


class Checkpoint:
    """The progress of a search: `next` is the next candidate, `found` holds the accepted ones, as
    JSON values.

    `key` says which search it is. Raises InvalidOption where the file is of another one; the file
    is then left as it is.
    """

    def __init__(self, path: Path | None, key: Mapping[str, Any]) -> None:
        self.path, self.key = path, json.loads(json.dumps(key))
        self.next = 0
        self.found: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            value = read_json(path)
            key, self.next, self.found = value["search"], int(value["next"]), list(value["found"])
        except (OSError, ValueError, TypeError, LookupError, OverflowError):
            raise InvalidOption(f"{path} is no checkpoint of a kernel search; name another file") from None
        if key != self.key:
            raise InvalidOption(f"{path} is the checkpoint of another search; name another file, or delete it")

    def save(self) -> None:
        """Write the file completely or not at all."""
        if self.path is not None:
            value = {"search": self.key, "next": self.next, "found": self.found}
            write_file(self.path, json.dumps(value, indent=1) + "\n")
