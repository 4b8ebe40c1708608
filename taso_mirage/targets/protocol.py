"""The protocol of targets, which `cpu/`, `cuda/` and `openvino/` implement."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from taso_mirage.devices.device import Device
from taso_mirage.devices.stamp import Stamp, TargetOptions
from taso_mirage.ir.terms import Tensor

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Trusted:
    """A model whose kernels may be compiled and run, because they were made in this process or the
    user trusts them.

    Kernels of other models never run (`onnx_runtime.opened_session`).
    """

    model: bytes | str


Source = bytes | str | Trusted
"""A model's bytes, or the path of its file."""


def plain(source: Source) -> bytes | str:
    """The bytes or the path, without the statement of trust."""
    return source.model if isinstance(source, Trusted) else source


ZEROS = "zeros"
"""The file of zeros in which a source has its large weights, where it only shows its graph."""
STANDARD = frozenset(("", "ai.onnx"))
"""The two names of ONNX's own domain."""


def timed(run: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def worked(run: Callable[[], object]) -> float:
    """CPU seconds of this process in one call: for a model on one thread, the seconds of its
    operators, independent of other processes. Waiting threads spin, which counts as CPU time, so
    there must be only one thread."""
    start = time.process_time()
    run()
    return time.process_time() - start


class RuntimeSession(Protocol):
    """A model loaded in the target's runtime; it lives in the child process
    (`measure/child.py`)."""

    @property
    def captures(self) -> bool:
        """Whether a run of the same inputs is captured, and replayed."""

    def run(self, inputs: Arrays) -> list[Any]:
        """The outputs, in the order of the model. Raises RunFailed."""

    def inputs(self) -> dict[str, Tensor]:
        """The types of the inputs; dims that are not fixed are refused with RunFailed."""

    def prepared(self, inputs: Arrays) -> Callable[[], float]:
        """A function that runs the model on these inputs, as its users would run it, and returns
        the wall seconds, or those of the processor on a target that is `serial`."""

    def bound(self, inputs: Arrays) -> Callable[[], float]:
        """A run with bound inputs and outputs. A plain run takes a microsecond for each of them and
        copies every output, which does not happen for a term inside a model; a small term would
        seem several times as expensive."""


class Target(Protocol):
    """Where a model runs, with the options of the runtime there.

    Targets are values: equal targets give equal measurements, and they are sent to other processes.
    """

    def __hash__(self) -> int:
        """The hash of the name and the options."""

    @property
    def name(self) -> str:
        """The name that `--target` takes."""

    @property
    def options(self) -> TargetOptions:
        """The options of the runtime, each with its value."""

    # ------------------------------------------------------------ hardware

    @property
    def device(self) -> Device:
        """The hardware's parameters for the analytic models."""

    @property
    def on_cores(self) -> bool:
        """Whether models run on the processor's cores, where other work slows them down. Otherwise
        cores are free while a model runs, and weights are copied to the memory of a device."""

    @property
    def machine(self) -> str:
        """The hardware of this process, as a key for measurements."""

    # ------------------------------------------------------------ runtime

    @property
    def runtime(self) -> str:
        """The runtime and its version.

        Raises RuntimeUnavailable, with the package to install, where it is missing.
        """

    @property
    def variants(self) -> tuple[Target, ...]:
        """Targets with other options, with which models that they suit are also searched."""

    @property
    def plain(self) -> Target:
        """A variant without the options that have no effect on other operators."""

    @property
    def serial(self) -> Target | None:
        """This target on one thread with CPU time as clock, which other processes do not affect;
        None unless models run `on_cores`."""

    @property
    def resting(self) -> Target:
        """This target with threads that stop waiting for work when a run ends, so that they do not
        use the cores of the next session."""

    @property
    def mixes_layouts(self) -> bool:
        """Whether parts of a model may have channels last. This is false if the runtime has no
        operators for it, or if the options select channels last for the whole model."""

    @property
    def blocked(self) -> bool:
        """Whether the runtime keeps a blocked layout from one convolution to the next, through
        operators that it implements in that layout."""

    def open(self, source: Source, alone: bool, apart: Arrays) -> RuntimeSession:
        """A session.

        With `alone` a model of which another device would run a part is refused; kernels that a
        model carries are compiled and run only where it is `Trusted`. `apart`: weights that the
        source leaves out. Raises RuntimeUnavailable where the runtime is missing, RunFailed where
        it does not load the model.
        """

    @property
    def shares(self) -> bool:
        """Whether sessions share large weights, which they take apart from the source."""

    @property
    def profiles(self) -> bool:
        """Whether `profile.profiled_seconds` is for its runtime: ONNX Runtime on a CPU. On a GPU
        its profiler knows when a kernel was launched, not how long it ran."""

    def nodes(self, source: Source, zeros: int = 0) -> int:
        """How many nodes the runtime makes of a model: fewer than its parts have where it fuses
        them or keeps a layout. `zeros`: on a target that `shares`, the bytes of the file of zeros
        in which the source has weights."""

    # ------------------------------------------------------------ support

    @property
    def domains(self) -> frozenset[str]:
        """The domains of operators that rewrites may use; a session decides which of them the
        runtime implements."""

    @property
    def repeats(self) -> bool:
        """Whether a weight may be a block that `Tile` repeats, since that is written out when the
        model is loaded."""

    # ------------------------------------------------------------ kernels and files

    @property
    def lowering(self) -> str | None:
        """The module whose function `here` gives the target's `lowering.backend.Backend`; None
        where models have no fused kernels."""

    @property
    def stamp(self) -> Stamp:
        """The stamp in a file that was measured here."""

    def opened(self, model: Source, stamp: Stamp, graph: bool, options: Any) -> Any:
        """The runtime's own session on a file, in this process, as it was measured; see
        `packaging.session`."""
