"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FIXES = "Fix dynamic dims: an input and its sizes (x:1,128) or a dim (batch:4); repeatable."
ModelFile = Annotated[Path, typer.Argument(help="The ONNX model.", metavar="MODEL.onnx")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables and text.")]
TrustKernels = Annotated[
    bool,
    typer.Option(
        "--trust-kernels",
        help="Compile and run the fused kernels that the file carries. They are code: only for models that you trust. Else their "
        "ordinary operators run.",
    ),
]
ShapeOption = Annotated[list[str] | None, typer.Option("--shape", metavar="NAME:DIMS", help=FIXES)]
