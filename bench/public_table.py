"""Tables of `public.py`: findings about each tool, by kind, and examples of them."""

from __future__ import annotations

from typing import Any

KINDS = ("right", "wrong", "interface", "not loaded", "refused", "crashed", "late", "larger")
EXAMPLES = 2
"""The number of examples of each kind of finding about a tool."""


def public(found: dict[str, Any]) -> list[str]:
    """The number of models by finding, for each tool."""
    lines = [f"| tool | {' | '.join(KINDS)} |", f"|---|{'---:|' * len(KINDS)}"]
    lines += [f"| {row['case']} | {' | '.join(str(row[kind]) for kind in KINDS)} |" for row in found["rows"]]
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    models = f"{found['rows'][0]['models']} models"
    if found["generated"]:
        models += f", {found['generated']} of them generated from seed {found['seed']} on"
    return [*lines, "", f"{models}. {versions}."]


def findings(found: dict[str, Any]) -> list[str]:
    """Examples of the findings about each tool."""
    lines = ["| tool | kind | model | what was found |", "|---|---|---|---|"]
    for row in found["rows"]:
        for kind in KINDS:
            for each in [each for each in row["findings"] if each["kind"] == kind][:EXAMPLES]:
                why = each["why"].replace("|", "\\|")
                lines.append(f"| {row['case']} | {kind} | `{each['model']}` | {why} |")
    return lines


def kinds(found: dict[str, Any]) -> list[str]:
    """The reports of each kind of finding, by tool."""
    lines = ["| finding | tool | reports |", "|---|---|---|"]
    for kind in KINDS:
        for row in found["rows"]:
            names = [each["model"].partition(":")[2] for each in row["findings"] if each["kind"] == kind]
            lines += [f"| {kind} | {row['case']} | {', '.join(names)} |"] if names else []
    return lines
