"""onnxscript and onnx_ir: a pass of theirs, for any list of passes that runs after an export.

`onnx_ir.passes.Sequential(CommonSubexpressionEliminationPass(), TasoMirage())(model)` runs it after
one of their own.
"""

import onnx_ir as ir

import taso_mirage
from taso_mirage.option_types import OptimizeOptions


class TasoMirage(ir.passes.FunctionalPass):
    """Returns another model, as `taso_mirage.optimize` with these options does."""

    def __init__(self, **options: OptimizeOptions) -> None:
        self._options = {"effort": "quick", **options}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        made, result = taso_mirage.optimize(model, return_result=True, **self._options)
        return ir.passes.PassResult(made, modified=result.changed)
