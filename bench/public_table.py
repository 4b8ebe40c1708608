"""Tables of `public.py`: findings about each tool, by corpus and kind, and examples of them."""

from __future__ import annotations

from typing import Any

KINDS = ("right", "wrong", "interface", "not loaded", "refused", "crashed", "late", "unverified", "larger")
EXAMPLES = 2
"""The number of examples of each kind of finding about a tool."""


def public(found: dict[str, Any]) -> list[str]:
    """The number of models by finding, for each corpus and tool; blank where none was judged so."""
    rows = [row for corpus in found["corpora"] for row in corpus["rows"]]
    shown = [kind for kind in KINDS if any(kind in row for row in rows)]
    lines = [f"| models | tool | {' | '.join(shown)} |", f"|---|---|{'---:|' * len(shown)}"]
    for corpus in found["corpora"]:
        for row in corpus["rows"]:
            counts = " | ".join(str(row.get(kind, "")) for kind in shown)
            lines.append(f"| {corpus['corpus']} | {row['case']} | {counts} |")
    models = ", ".join(f"{corpus['judged']} {corpus['corpus']}" for corpus in found["corpora"])
    others = sum(sum(corpus["not judged"].values()) for corpus in found["corpora"])
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    return [*lines, "", f"Models: {models}; {others} more cannot be judged. {versions}."]


def findings(found: dict[str, Any]) -> list[str]:
    """Examples of the findings about each tool."""
    lines = ["| tool | kind | model | what was found |", "|---|---|---|---|"]
    rows = [row for corpus in found["corpora"] for row in corpus["rows"]]
    for tool in dict.fromkeys(row["case"] for row in rows):
        there = [each for row in rows if row["case"] == tool for each in row["findings"]]
        for kind in KINDS:
            for each in [each for each in there if each["kind"] == kind][:EXAMPLES]:
                why = each["why"].replace("|", "\\|")
                lines.append(f"| {tool} | {kind} | `{each['model']}` | {why} |")
    return lines


def kinds(found: dict[str, Any]) -> list[str]:
    """The reports of each kind of finding, by tool."""
    lines = ["| finding | tool | reports |", "|---|---|---|"]
    rows = [row for corpus in found["corpora"] for row in corpus["rows"]]
    for kind in KINDS:
        for row in rows:
            names = [each["model"].partition(":")[2] for each in row["findings"] if each["kind"] == kind]
            lines += [f"| {kind} | {row['case']} | {', '.join(names)} |"] if names else []
    return lines
