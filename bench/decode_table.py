"""The tables of `decode.py`."""

from __future__ import annotations

import re
from typing import Any


def decode(found: dict[str, Any]) -> list[str]:
    """A line for each model and runtime: microseconds, tokens a second of all sequences, the share
    of the floor, and the distance of its logits from those in single precision."""
    lines = [
        "| model | runtime | us a step | tokens a second | floor over time | divergence | likelihood | same tokens |"
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|")
    rows = [row for row in found["rows"] if "us" in row]
    for row in rows:
        for name, us in row["us"].items():
            worth, batch = row["quality"][name], row.get("batch", 1)
            same = f"{worth['same']} of {batch * row['tokens']}"
            distance = f"{worth['divergence']:.2g} | {worth['likelihood']:.4f} | {same}"
            lines.append(
                f"| {row['case']} | {name} | {us:.0f} | {1e6 * batch / us:.1f} | {row['floor_us'] / us:.2f} | {distance} |"
            )
    floors = ", ".join(f"{row['case']} {row['bytes'] / 1e9:.2f} GB in {row['floor_us']:.0f} us" for row in rows)
    where = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return [*lines, "", f"Weights and caches that a step reads: {floors}. {found['device']}; {where}."]


def pasts(found: dict[str, Any]) -> list[str]:
    """For each model and runtime the microseconds of a step at each position that was measured."""
    rows = [row for row in found["rows"] if any(row.get("pasts", {}).values())]
    places = sorted({int(each) for row in rows for times in row["pasts"].values() for each in times})
    lines = ["| model | runtime | " + " | ".join(map(str, places)) + " |", "|---|---|" + "---:|" * len(places)]
    for row in rows:
        for name, times in row["pasts"].items():
            told = [f"{times[str(each)]:.0f}" if str(each) in times else "" for each in places]
            lines.append(f"| {row['case']} | {name} | " + " | ".join(told) + " |")
    return lines


SHOWN = 3
"""The kinds of kernels of a step that a table lists."""


def steps(found: dict[str, Any]) -> list[str]:
    """For each model and runtime the kernels that take most of a step, and the whole step."""
    lines = ["| model | runtime | kernel | blocks | launches | us |", "|---|---|---|---|---:|---:|"]
    for row in found["rows"]:
        for name, told in row.get("timeline", {}).items():
            first, rest = told["kernels"][:SHOWN], told["kernels"][SHOWN:]
            for each in first:
                kernel = re.sub(r"^void |[<(].*$", "", each["name"]).rsplit("::", 1)[-1]
                lines.append(
                    f"| {row['case']} | {name} | {kernel} | {each['grid']} | {each['count']} | {each['us']:.0f} |"
                )
            others = sum(each["us"] for each in rest)
            lines.append(
                f"| {row['case']} | {name} | {len(rest)} others | | {sum(each['count'] for each in rest)} | {others:.0f} |"
            )
            lines.append(f"| {row['case']} | {name} | all | | {told['launches']} | {told['us']:.0f} |")
    return lines
