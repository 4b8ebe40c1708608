"""The command `taso-mirage verify`, which follows a certificate from one model to the other.

Heavy modules are imported when the command runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taso_mirage.cli.options import JsonOption
from taso_mirage.errors import CheckFailed, InvalidOption
from taso_mirage.system.terminal import plural, say

if TYPE_CHECKING:
    from taso_mirage.certificates.follow import Followed

WIDTH = 100
"""The most characters of a line about the comparison, which lists sizes and inputs."""


def verify(
    original: Annotated[Path, typer.Argument(help="The original model.", metavar="ORIGINAL.onnx")],
    optimized: Annotated[Path, typer.Argument(help="The model written by `optimize`.", metavar="OPTIMIZED.onnx")],
    certificate: Annotated[
        Path, typer.Argument(help="The certificate written by `optimize --certificate`.", metavar="CERTIFICATE.json")
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse equalities that the small checker does not accept by itself.")
    ] = False,
    float_checks: Annotated[
        bool,
        typer.Option(
            "--float-checks", help="Accept unproved equalities that rest on the float check of the whole model."
        ),
    ] = False,
    fix_defaults: Annotated[
        bool,
        typer.Option(
            "--fix-defaults", help="Treat inputs that have a default as weights, as `optimize --fix-defaults` does."
        ),
    ] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run", help="Compare both models in ONNX Runtime as well, since proofs do not model rounding."
        ),
    ] = True,
    budget: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Time limit of the float64 references of that comparison; inputs beyond it are left out, and named.",
        ),
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Follow a certificate from ORIGINAL.onnx to OPTIMIZED.onnx and check each of its steps.

    Exit code 5 if a step does not hold.
    """
    if run and not budget:
        raise InvalidOption("--budget 0 leaves no time to compare the models: give more, or pass --no-run")
    from taso_mirage.certificates.follow import follow
    from taso_mirage.certificates.judge import CaseJudge
    from taso_mirage.onnx_io import load
    from taso_mirage.onnx_io.defaults import with_fixed_defaults
    from taso_mirage.onnx_io.inlining import without_functions
    from taso_mirage.onnx_io.kernels import dropped
    from taso_mirage.report.run_alike import run_alike

    models = [load(path) for path in (original, optimized)]
    first, last = (without_functions(with_fixed_defaults(m) if fix_defaults else m) for m in models)
    found = follow(first, last, _read(certificate), CaseJudge(strict, float_checks))
    compared = run_alike(first, last, budget) if run else "not compared in the runtime: --no-run"
    said = {"places": found.places, "computed": found.computed, "terms": found.terms, "runtime": compared}
    kernels = dropped(last.header)
    if as_json:
        said |= {"equalities": dict(found.equalities), "alone": found.alone, "kernels": kernels}
        say(json.dumps(said, indent=2))
        return
    for line in _lines(found, compared):
        say(line)
    if kernels is not None:
        say("the code of fused kernels is not verified; their equivalent operators are")
    say(f"the certificate leads from {original} to {optimized}")


def _lines(found: Followed, compared: str) -> Iterator[str]:
    """The lines about a certificate that was followed, and about the comparison of the models."""
    for ground, count in found.equalities.most_common():
        yield f"{count} equalities: {ground}"
    for name, why in sorted(found.alone.items()):
        yield f"  without the checker: {name} ({why})"
    computed = f"{found.computed} weights and constants recomputed"
    yield f"applied at {plural(found.places, 'place')}; {computed}; {found.terms} terms"
    yield from wrap(compared, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


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
