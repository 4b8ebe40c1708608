"""Programs as the text that a certificate has."""

from __future__ import annotations


def text(returned: str, **leaves: str) -> str:
    """A program of one expression a line; the last one is the result."""
    lines = [f"    {name} = input({name!r}, {type_})" for name, type_ in leaves.items()]
    *before, last = returned.split("; ")
    return "\n".join(["def lhs():", *lines, *(f"    {line}" for line in before), f"    return {last}"])
