"""The dependencies of the package, from `pyproject.toml`, with one of its builds of ONNX Runtime.

The builds overwrite each other's files, so one environment has one of them, and an extra can only
add packages. TASO_MIRAGE_BUILD names the build: gpu (also without a GPU), or the smaller cpu.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "TASO_MIRAGE_BUILD"


class Dependencies(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dependencies. Raises ValueError for a build that there is not."""
        runtimes: dict[str, list[str]] = self.config["onnxruntime"]
        build = os.environ.get(VARIABLE) or "gpu"
        if build not in runtimes:
            raise ValueError(f"{VARIABLE}={build} is not known; it is one of {', '.join(runtimes)}")
        metadata["dependencies"] = [*self.config["dependencies"], *runtimes[build]]
