"""The commands `taso-mirage cache`: measurements and search results, for other machines of the same
kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taso_mirage.cli.options import JsonOption
from taso_mirage.errors import InvalidOption
from taso_mirage.system.terminal import asking, one_line, say

if TYPE_CHECKING:
    from taso_mirage.measure.cache_clear import Cleared
    from taso_mirage.measure.cache_file import CacheContents

cache_app = typer.Typer(no_args_is_help=True, help="Show, export, import or clear measured costs, kernels and mutants.")
_Archive = Annotated[Path, typer.Argument(metavar="FILE.zip", help="The archive.")]


@cache_app.command()
def show(as_json: JsonOption = False) -> None:
    """Show the number of measurements of each device."""
    from taso_mirage.measure.cache_file import contents

    _say(contents(), as_json)


@cache_app.command("export")
def export_command(file: _Archive, as_json: JsonOption = False) -> None:
    """Export the cache to a file, for the same kind of device with the same versions."""
    from taso_mirage.measure.cache_file import export_cache

    _say(export_cache(file), as_json)


@cache_app.command("import")
def import_command(file: _Archive, as_json: JsonOption = False) -> None:
    """Import measurements from a file; existing entries are kept.

    The file is data, not code, and results are checked as usual. Wrong times can make a model
    slower.
    """
    from taso_mirage.measure.cache_file import import_cache

    found = import_cache(file)
    _say(found, as_json)
    if not as_json:
        say(f"{found.new} of these are new")


@cache_app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove measured costs, verdicts, kernels, mutants and compiled files.

    Other files in the cache's folder are kept, and so are compiled files that a running process
    uses.
    """
    from taso_mirage.measure.cache_clear import clear_cache
    from taso_mirage.measure.cost_cache import cache_path

    place = cache_path().parent
    found = clear_cache(place, dry=True)
    if found and not yes:
        if not asking():
            raise InvalidOption(f"this would empty {place}; pass --yes")
        _say_cleared(found)
        if not typer.confirm(f"Remove this from {one_line(str(place))}?", default=False, err=True):
            raise typer.Exit
    found = clear_cache(place)
    if as_json:
        say(json.dumps({"folder": str(place), "removed": [each.as_dict() for each in found]}, indent=2))
    elif found:
        _say_cleared(found)
    else:
        say(one_line(f"{place} has nothing to remove"))


def _say_cleared(found: Sequence[Cleared]) -> None:
    for each in found:
        left = f" (left: {each.left})" if each.left else ""
        say(f"{each.count} {each.kind}, {each.size / 1e6:.1f} MB{left}")


def _say(found: CacheContents, as_json: bool) -> None:
    if as_json:
        say(json.dumps(found.as_dict(), indent=2))
        return
    for device, count in found.devices.items():
        say(f"{count} measurements: {device}")
    say(", ".join(f"{count} files of {kind}" for kind, count in found.files.items()))
