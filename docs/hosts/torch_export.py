"""torch.onnx: an export that ends with the quick effort.

`torch.onnx.export` returns a program, whose `model` is an `onnx_ir.Model`. `taso_mirage.optimize`
takes such a model and returns one, so nothing is written in between.
"""

from pathlib import Path
from typing import Any

import torch


def export(module: torch.nn.Module, example: tuple[Any, ...], path: Path, *, optimize: bool = False) -> None:
    """Write a module as ONNX; with `optimize`, after some seconds of rewrites."""
    program = torch.onnx.export(module.eval(), example, dynamo=True, verbose=False)
    assert program is not None
    if optimize:
        import taso_mirage

        program.model = taso_mirage.optimize(program.model, effort="quick")
    program.save(path)
