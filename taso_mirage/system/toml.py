"""Plain values as TOML."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def table(head: str, fields: Mapping[str, Any]) -> str:
    """A table with its head (`[name]` or `[[name]]`), one field a line; fields that are None are
    left out."""
    return "".join(["\n", head, "\n", *(f"{_key(k)} = {toml(v)}\n" for k, v in fields.items() if v is not None)])


def comment(text: str) -> str:
    """Lines of text as comments."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def toml(value: Any) -> str:
    """A plain value as TOML on one line: text, numbers, booleans, sequences, and mappings as inline
    tables."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_escaped(c) for c in value) + '"'
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml, value))}]"
    raise TypeError(f"{value!r} of type {type(value).__name__} has no form in TOML")


def _key(key: str) -> str:
    plain = key != "" and all(c.isascii() and (c.isalnum() or c in "_-") for c in key)
    return key if plain else toml(key)


def _escaped(c: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return short.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c)


def read_text(path: Path) -> str:
    """The text of a regular file: a pipe would be waited for.

    Raises OSError, or UnicodeDecodeError.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file (a folder, a device, a pipe or a socket)", str(path))
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The value in a file.

    Raises OSError where it cannot be read, and ValueError for whatever is no JSON, too deep
    brackets among it.
    """
    try:
        return json.loads(read_text(path))
    except (RecursionError, MemoryError):
        raise ValueError("its brackets are too deep, or it is too large") from None
