"""Olive: a pass of its own protocol (`olive.passes.Pass`), which a package configuration names.

`olive.run(config, package_config=PACKAGE)` finds it; so does the file of `--package-config`.
"""

from pathlib import Path

from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

import taso_mirage

PACKAGE = {
    "passes": {
        "TasoMirageOptimization": {
            "module_path": f"{__name__}.TasoMirageOptimization",
            "supported_providers": ["CPUExecutionProvider", "CUDAExecutionProvider"],
            "supported_accelerators": ["cpu", "gpu"],
            "supported_precisions": ["*"],
        }
    }
}


class TasoMirageOptimization(Pass):
    """Optimizes one ONNX model for the provider of the run."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            "effort": PassConfigParam(type_=str, default_value="quick", description="quick, default or thorough"),
            "portable": PassConfigParam(type_=bool, default_value=False, description="only operators of ONNX"),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        output = resolve_onnx_path(output_model_path, Path(model.model_path).name)
        target = "cuda" if self.accelerator_spec.execution_provider == "CUDAExecutionProvider" else "cpu"
        options = {"effort": config.effort, "portable": config.portable, "target": target}
        taso_mirage.optimize(model.model_path, output=output, may_grow=True, **options)
        return ONNXModelHandler(model_path=str(output))
