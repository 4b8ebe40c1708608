"""ONNX Runtime's CUDA provider: its options for convolutions are tried, as variants, and runs are
captured as CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from taso_mirage.devices.cuda import device
from taso_mirage.devices.cuda.options import CHANNELS_LAST, CHOSEN, DEFAULT, GRAPH, PROVIDER, ROUNDED
from taso_mirage.devices.device import Device
from taso_mirage.devices.stamp import Stamp, TargetOptions
from taso_mirage.errors import RunFailed
from taso_mirage.targets import onnx_runtime
from taso_mirage.targets.cuda.libraries import load_libraries
from taso_mirage.targets.cuda.session import CudaSession
from taso_mirage.targets.protocol import Arrays, RuntimeSession, Source


@dataclass(frozen=True, slots=True)
class Cuda:
    """See `protocol.Target`."""

    options: TargetOptions = DEFAULT
    name = "cuda"
    provider = PROVIDER
    on_cores = False
    blocked = False
    profiles = False
    shares = True
    repeats = False
    """A GPU takes some kernels of convolutions as initializers only."""
    domains = onnx_runtime.DOMAINS
    lowering = "taso_mirage.lowering.cuda"

    @property
    def device(self) -> Device:
        return device.here()

    @property
    def machine(self) -> str:
        return device.gpu_name()

    @property
    def runtime(self) -> str:
        return f"onnxruntime {onnx_runtime.onnx_runtime_version()}"

    @property
    def variants(self) -> tuple[Cuda, ...]:
        """Options that change how convolutions and pools run: cuDNN's own choice of algorithm,
        alone and with channels last, which ONNX cannot express."""
        chosen = (*self.options, CHOSEN)
        return (replace(self, options=chosen), replace(self, options=(*chosen, CHANNELS_LAST)))

    @property
    def plain(self) -> Cuda:
        return next((each for each in (CUDA, CUDA_TF32) if self in each.variants), self)

    @property
    def serial(self) -> None:
        return None

    @property
    def resting(self) -> Cuda:
        return self

    @property
    def mixes_layouts(self) -> bool:
        return CHANNELS_LAST not in self.options

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.name, (*self.options, (GRAPH, "1")))

    def open(self, source: Source, alone: bool, apart: Arrays) -> RuntimeSession:
        return CudaSession(source, dict(self.options), alone, apart)

    def nodes(self, source: Source, zeros: int = 0) -> int:
        load_libraries()
        return onnx_runtime.runtime_nodes(source, [(PROVIDER, {**dict(self.options), GRAPH: "0"})], zeros)

    def opened(self, model: Source, stamp: Stamp, graph: bool, options: Any) -> Any:
        load_libraries()
        if graph and options is None:  # a user's options are registered once, so there is no second attempt
            try:
                return _on_the_gpu(model, stamp, True, None)
            except RunFailed:
                pass  # parts of the model run on the CPU, so no graph can be captured
        return _on_the_gpu(model, stamp, graph and options is not None, options)


def _on_the_gpu(model: Source, stamp: Stamp, graph: bool, options: Any) -> Any:
    session = onnx_runtime.opened_session(model, stamp.providers(graph), options)
    onnx_runtime.check_provider(session, PROVIDER)
    return session


CUDA = Cuda()
CUDA_TF32 = Cuda((ROUNDED,))
"""Times are measured with rounded operands. Models are compared without rounding, because it could
not be distinguished from a wrong rewrite."""
