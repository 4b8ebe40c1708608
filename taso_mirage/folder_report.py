"""The rows of a folder's report: `index.json` has them all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

from typing_extensions import TypedDict

from taso_mirage.system.terminal import duration

ModelState = Literal["waiting", "faster", "kept", "check failed", "interrupted", "failed"]


class ModelRow(TypedDict):
    """The result of one model of a folder. Paths are from the folder, or from that of the
    results."""

    model: str
    state: ModelState
    """`check failed`: a rewrite was left out, the rest is written. `interrupted`: the best until
    then is written, and the next run does it again. `failed`: nothing is written, and the results
    of an earlier run stay where they are of the same files."""
    before: float | None
    """Seconds of a run of the original."""
    after: float | None
    ratio: float | None
    """How many times as fast the result is."""
    measured: bool
    """Whether these are measured, or predicted."""
    report: str | None
    notes: list[str]
    error: str | None
    exit_code: int
    seconds: float
    """The seconds spent on the model."""
    machine: str | None
    """The target, machine and runtime that measured; null where nothing was measured."""
    options: str
    """The digest of the options and of the version."""
    read: dict[str, str]
    """SHA-256 of the files that `written` was made from."""
    written: dict[str, str]
    """SHA-256 of the results that are there, of an earlier run where the state is `waiting` or
    `failed`."""


class FolderReport(TypedDict):
    """`index.json`: one report of all models below a folder."""

    taso_mirage: str
    """The version."""
    folder: str
    budget: float | None
    """Seconds that each model may take; null: without a limit."""
    models: list[ModelRow]


def row_text(row: ModelRow) -> str:
    """The result of a model, on one line."""
    if row["state"] == "failed":
        return f"{row['model']}: failed: {row['error']}"
    gained = "" if row["ratio"] is None else f", {shown_row(row)['ratio']} times as fast"
    return f"{row['model']}: {row['state']}{gained if row['state'] != 'kept' else ''}"


def shown_row(row: ModelRow) -> dict[str, str]:
    """How the page shows a row."""
    before, after = ("" if each is None else duration(each) for each in (row["before"], row["after"]))
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    said = [] if row["error"] is None else [row["error"]]
    return {
        "before": before,
        "after": after,
        "ratio": ratio if row["measured"] or not ratio else f"{ratio} (predicted)",
        "link": "" if row["report"] is None else quote(os.fsencode(row["report"])),
        "said": "; ".join([*said, *row["notes"]] if row["state"] != "check failed" else row["notes"]),
    }


def new_row(name: str, state: ModelState, options: str) -> ModelRow:
    return {
        "model": name,
        "state": state,
        "before": None,
        "after": None,
        "ratio": None,
        "measured": False,
        "report": None,
        "notes": [],
        "error": None,
        "exit_code": 0,
        "seconds": 0.0,
        "machine": None,
        "options": options,
        "read": {},
        "written": {},
    }


def earlier_digests(known: Mapping[str, Any] | None, field: str) -> dict[str, str]:
    """The digests of files in an earlier row, which are kept until the files are written anew."""
    found = (known or {}).get(field)
    return dict(found) if isinstance(found, dict) else {}
