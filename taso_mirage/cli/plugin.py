"""The command `taso-mirage export-plugin`: an optimized model's fused kernels as TensorRT plugins.

Heavy modules are imported when the command runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from taso_mirage.cli.options import JsonOption, ShapeOption
from taso_mirage.system.terminal import plural, say


def export_plugin(
    model: Annotated[
        Path, typer.Argument(help="An optimized model with fused kernels for CUDA.", metavar="OPTIMIZED.onnx")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Output folder.")] = Path("plugin"),
    shape: ShapeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export the kernels of OPTIMIZED.onnx as the source of a TensorRT plugin library, with its
    model, samples and a README."""
    from taso_mirage.measure.shapes import parse_shape
    from taso_mirage.onnx_io import load
    from taso_mirage.runtime.tensorrt.plugin_export import export

    sizes = parse_shape(load(model), shape or [])
    made = export(model, output, sizes)
    if as_json:
        plugins = {name: {"digest": k.digest, "launches": len(k.launches)} for name, k in made.kernels.items()}
        said = {"folder": str(output), "plugins": plugins, "not_in_python": made.not_in_python, "foreign": made.foreign}
        said["operators"] = dict(made.refused)
        say(json.dumps(said, indent=2))
        return
    say(
        f"{output}: {plural(len(made.kernels), 'plugin')}, {', '.join(made.kernels)}; see README.md to build and run them"
    )
    if made.foreign:
        say(f"  TensorRT has no {', '.join(made.foreign)}: optimize the model with --portable", err=True)
    for reason in made.refused.values():
        say(f"  exported as ordinary operators: {reason}")
    for name, reason in made.not_in_python.items():
        say(f"  {name} is not in the Python module: {reason}")
