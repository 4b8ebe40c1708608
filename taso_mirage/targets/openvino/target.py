"""OpenVINO on this machine's cores.

Models for it keep to standard ONNX, and have no fused kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from taso_mirage.devices import machine
from taso_mirage.devices.cpu import device
from taso_mirage.devices.openvino.options import DEFAULT, SERIAL
from taso_mirage.devices.stamp import Stamp, TargetOptions
from taso_mirage.errors import InvalidOption
from taso_mirage.targets.openvino import session
from taso_mirage.targets.protocol import STANDARD, Arrays, RuntimeSession, Source


@dataclass(frozen=True, slots=True)
class OpenVino:
    """See `protocol.Target`."""

    options: TargetOptions = DEFAULT
    name = "openvino"
    device = device.CPU_DEVICE
    on_cores = True
    mixes_layouts = False
    blocked = False
    profiles = False
    shares = False
    repeats = False
    domains = STANDARD
    lowering = None
    variants = ()

    @property
    def machine(self) -> str:
        return machine.processor_and_cores()

    @property
    def runtime(self) -> str:
        return f"openvino {session.openvino_version()}"

    @property
    def plain(self) -> OpenVino:
        return self

    @property
    def serial(self) -> OpenVino:
        return self if SERIAL in self.options else replace(self, options=(*self.options, SERIAL))

    @property
    def resting(self) -> OpenVino:
        return self

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.name, self.options)

    def open(self, source: Source, alone: bool, apart: Arrays) -> RuntimeSession:
        return session.OpenVinoSession(source, dict(self.options))

    def nodes(self, source: Source, zeros: int = 0) -> int:
        return session.openvino_nodes(source, dict(self.options))

    def opened(self, model: Source, stamp: Stamp, graph: bool, options: Any) -> Any:
        if options is not None:
            raise InvalidOption(
                "options are onnxruntime.SessionOptions; a model for openvino runs without ONNX Runtime"
            )
        return session.compiled_model(model, dict(stamp.options))


OPENVINO = OpenVino()
