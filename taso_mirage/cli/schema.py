"""The command `taso-mirage schema`: JSON schemas of the files that it reads and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taso_mirage.errors import InvalidOption
from taso_mirage.system.terminal import say

FOLDER = Path(__file__).parent.parent / "schemas"
NAMES = "rules, rejected, family, log (`optimize --json`) or folder (index.json of a folder)"


def schema(name: Annotated[str, typer.Argument(metavar="NAME", help=f"{NAMES}.")]) -> None:
    """Print the JSON schema of a kind of file, for editors and other programs."""
    path = FOLDER / f"{name}.schema.json"
    if not path.is_file() or path.parent != FOLDER:
        raise InvalidOption(f"no schema is called {name!r}; there are {NAMES}")
    say(path.read_text().rstrip())
