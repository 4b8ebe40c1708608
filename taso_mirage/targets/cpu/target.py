"""ONNX Runtime's CPU provider, on this machine's cores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from taso_mirage.devices import machine
from taso_mirage.devices.cpu import device
from taso_mirage.devices.cpu.options import KNOWN, LEVELS, OPTIMIZATIONS, PROVIDER, RESTING, SERIAL, THREADS
from taso_mirage.devices.stamp import Stamp, TargetOptions
from taso_mirage.targets import onnx_runtime
from taso_mirage.targets.cpu.session import CpuSession
from taso_mirage.targets.protocol import Arrays, RuntimeSession, Source


@dataclass(frozen=True, slots=True)
class Cpu:
    """See `protocol.Target`."""

    options: TargetOptions = ()
    name = "cpu"
    provider = PROVIDER
    device = device.CPU_DEVICE
    on_cores = True
    mixes_layouts = False
    blocked = True
    profiles = True
    shares = True
    repeats = True
    domains = onnx_runtime.DOMAINS
    lowering = "taso_mirage.lowering.cpu"
    variants = ()

    @property
    def machine(self) -> str:
        return machine.processor_and_cores()

    @property
    def runtime(self) -> str:
        return f"onnxruntime {onnx_runtime.onnx_runtime_version()}"

    @property
    def plain(self) -> Cpu:
        return self

    @property
    def serial(self) -> Cpu:
        others = tuple(each for each in self.options if each[0] != THREADS)
        return replace(self, options=others)._with(SERIAL)

    @property
    def resting(self) -> Cpu:
        return self if SERIAL in self.options else self._with(RESTING)

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.name, tuple(each for each in self.options if each[0] in KNOWN))

    @property
    def lower(self) -> tuple[Cpu, ...]:
        """This target at lower levels of the runtime's own optimizations, the highest first."""
        others = tuple(each for each in self.options if each[0] != OPTIMIZATIONS)
        made = [replace(self, options=(*others, (OPTIMIZATIONS, level))) for level in LEVELS]
        return tuple(made[made.index(self) + 1 :] if self in made else made)

    @property
    def full(self) -> Cpu:
        """This target at the full level of these optimizations."""
        return replace(self, options=tuple(each for each in self.options if each[0] != OPTIMIZATIONS))

    def _with(self, option: tuple[str, str]) -> Cpu:
        return self if option in self.options else replace(self, options=(*self.options, option))

    def open(self, source: Source, alone: bool, apart: Arrays) -> RuntimeSession:
        return CpuSession(source, alone, apart, self.options)

    def nodes(self, source: Source, zeros: int = 0) -> int:
        return onnx_runtime.runtime_nodes(source, [PROVIDER], zeros)

    def opened(self, model: Source, stamp: Stamp, graph: bool, options: Any) -> Any:
        return onnx_runtime.opened_session(model, stamp.providers(), options, stamp.threads, stamp.level)


CPU = Cpu()
UNOPTIMIZED = CPU.lower[-1]
"""Without the runtime's own optimizations."""
