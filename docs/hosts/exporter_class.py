"""Ultralytics' style: an exporter with a step for each file, whose optional steps must not lose the
export if they fail."""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import torch

LOGGER = logging.getLogger("exporter")


@dataclass
class Exporter:
    """Exports a detector; `optimize` adds the quick effort between export and metadata."""

    module: torch.nn.Module
    example: torch.Tensor
    optimize: bool = True
    metadata: dict[str, Any] = field(default_factory=lambda: {"task": "detect", "stride": 32})

    def __call__(self, path: Path) -> Path:
        program = torch.onnx.export(self.module.eval(), (self.example,), dynamo=True, verbose=False)
        assert program is not None
        model = program.model_proto
        if self.optimize:
            model = self._optimized(model)
        for key, value in self.metadata.items():
            model.metadata_props.add(key=key, value=json.dumps(value))
        onnx.save(model, path)
        return path

    def _optimized(self, model: onnx.ModelProto) -> onnx.ModelProto:
        try:
            import taso_mirage

            made, result = taso_mirage.optimize(model, return_result=True, effort="quick")
            LOGGER.info(
                "taso_mirage %s: %d to %d nodes", taso_mirage.__version__, len(model.graph.node), len(made.graph.node)
            )
            for note in result.notes:
                LOGGER.info(note)
            return made
        except Exception as error:
            LOGGER.warning("taso_mirage failed, the export is as it was: %s", error)
            return model
