"""The command `taso-mirage verify`: a certificate followed from one model to the other.

What is heavy is imported by the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from taso_mirage.cli.options import JsonOption
from taso_mirage.errors import CheckFailed, InvalidOption
from taso_mirage.system.terminal import say


def verify(
    original: Annotated[Path, typer.Argument(help="The model that was optimized.", metavar="ORIGINAL.onnx")],
    optimized: Annotated[Path, typer.Argument(help="What `optimize` wrote.", metavar="OPTIMIZED.onnx")],
    certificate: Annotated[
        Path, typer.Argument(help="What `optimize --certificate` wrote.", metavar="CERTIFICATE.json")
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what the small checker does not accept by itself.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Follow a certificate from ORIGINAL.onnx to OPTIMIZED.onnx and check every step of it.

    Exit code 5 where one does not hold.
    """
    from taso_mirage.onnx_io import load
    from taso_mirage.report.follow import CaseJudge, follow

    first, last = load(original), load(optimized)
    found = follow(first, last, _read(certificate), CaseJudge(strict))
    said = {"places": found.places, "computed": found.computed, "terms": found.terms}
    if as_json:
        say(json.dumps({**said, "equalities": dict(found.equalities), "alone": found.alone}, indent=2))
        return
    for ground, count in found.equalities.most_common():
        say(f"{count} equalities: {ground}")
    for name, why in sorted(found.alone.items()):
        say(f"  without the checker: {name} ({why})")
    say(f"used at {found.places} places; {found.computed} weights and constants computed again; {found.terms} terms")
    say(f"the certificate leads from {original} to {optimized}")


def _read(path: Path) -> dict[str, Any]:
    from taso_mirage.system.toml import read_json

    try:
        found = read_json(path)
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckFailed(f"{path} is no certificate: {error}") from None
    if not isinstance(found, dict):
        raise CheckFailed(f"{path} is no certificate: it holds no object")
    return found
