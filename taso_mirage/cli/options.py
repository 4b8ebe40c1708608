"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taso_mirage.devices.stamp import KNOWN_OPTIONS

TARGET_NAMES = "|".join(KNOWN_OPTIONS)
"""The targets of this package, as a help text names them."""
LARGEST_COUNT = 1_000_000_000
"""The largest integer of an option. Counts and numbers of processes must be machine integers."""
FIXES = "Fix dynamic dimensions, by input (x:1,128) or by name (batch:4); repeatable."
ModelFile = Annotated[Path, typer.Argument(help="The ONNX model.", metavar="MODEL.onnx")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
TrustKernels = Annotated[
    bool,
    typer.Option(
        "--trust-kernels",
        help="Compile and run the fused kernels in the file. They are code: use this only for models that you trust. Otherwise "
        "the equivalent ordinary operators run.",
    ),
]
ShapeOption = Annotated[list[str] | None, typer.Option("--shape", metavar="NAME:DIMS", help=FIXES)]
