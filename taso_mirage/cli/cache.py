"""The commands `taso-mirage cache`: what was measured and searched, for other machines of the same
kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taso_mirage.cli.options import JsonOption
from taso_mirage.system.terminal import say

if TYPE_CHECKING:
    from taso_mirage.measure.cache_file import CacheContents

cache_app = typer.Typer(
    no_args_is_help=True, help="Measured costs, searched kernels and mutants: show, export, import."
)
_Archive = Annotated[Path, typer.Argument(metavar="FILE.zip", help="The archive.")]


@cache_app.command()
def show(as_json: JsonOption = False) -> None:
    """Show how many measurements the cache has of each device."""
    from taso_mirage.measure.cache_file import contents

    _say(contents(), as_json)


@cache_app.command("export")
def export_command(file: _Archive, as_json: JsonOption = False) -> None:
    """Write the cache to a file. The same device with the same versions reads its times from it."""
    from taso_mirage.measure.cache_file import export_cache

    _say(export_cache(file), as_json)


@cache_app.command("import")
def import_command(file: _Archive, as_json: JsonOption = False) -> None:
    """Add a file's measurements to the cache; what is there already stays. It is data, no code, and
    what is made with it is checked as ever; wrong times can make a model slower."""
    from taso_mirage.measure.cache_file import import_cache

    found = import_cache(file)
    _say(found, as_json)
    if not as_json:
        say(f"{found.new} of these are new")


def _say(found: CacheContents, as_json: bool) -> None:
    if as_json:
        say(json.dumps(found.as_dict(), indent=2))
        return
    for device, count in found.devices.items():
        say(f"{count} measurements: {device}")
    say(", ".join(f"{count} files of {kind}" for kind, count in found.files.items()))
