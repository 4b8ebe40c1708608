"""Plain values as TOML, and entries of files by the types of their fields."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

from taso_mirage.errors import SyntaxProblem


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


def checked_entry(label: str, entry: Any, kind: Any, schema: str) -> dict[str, Any]:
    """A table of a file that has the fields of a TypedDict, each of its type.

    SyntaxProblem begins with the label, and names the field and the schema that has all of them.
    """
    more = f"`taso-mirage schema {schema}` describes each"
    if not isinstance(entry, dict):
        raise SyntaxProblem(f"{label} is no table of fields; {more}")
    hints, required = _fields(kind)
    if unknown := sorted(entry.keys() - hints.keys()):
        fields = ", ".join(sorted(hints))
        raise SyntaxProblem(f"{label}: no field is called {unknown[0]}; the fields are {fields}, and {more}")
    if missing := [field for field in required if field not in entry]:
        raise SyntaxProblem(f"{label}: the field {missing[0]} is missing; add it, and {more}")
    for field, value in entry.items():
        _check_type(f"{label}, field {field}", value, hints[field], more)
    return entry


@cache
def _fields(kind: Any) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The types of a TypedDict's fields, and the names of those that it must have."""
    # `__required_keys__` does not know NotRequired keys where annotations are texts
    hints = get_type_hints(kind, include_extras=True)
    required = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]  # type: ignore[comparison-overlap]
    return get_type_hints(kind), required


def _check_type(label: str, value: Any, hint: Any, more: str) -> None:
    """The plain type of a value; the contents of tables and lists are checked by themselves."""
    kind: Any = get_origin(hint) or hint
    if kind is Literal:
        if value not in get_args(hint):
            raise SyntaxProblem(f"{label}: {value!r} is none of {', '.join(get_args(hint))}; {more}")
    elif type(value) is not kind and hint is not Any and not is_typeddict(hint):
        raise SyntaxProblem(f"{label}: {value!r} is no {kind.__name__}; {more}")


def read_text(path: Path) -> str:
    """The text of a regular file: a pipe would be waited for.

    Raises OSError, or UnicodeDecodeError.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file (a folder, a device, a pipe or a socket)", str(path))
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The value in a file.

    Raises OSError if the file cannot be read, and ValueError if it is not JSON, or if its brackets
    are nested too deeply.
    """
    try:
        return json.loads(read_text(path))
    except (RecursionError, MemoryError):
        raise ValueError("its brackets are too deep, or it is too large") from None
