"""A muGraph in full: its text, the generated program, and for a GPU the schedule and an estimate of
each kernel.

The estimate is that of the tuner (`emit/estimates.py`), which compares schedules of one kernel. The
search compares muGraphs by another model (`mugraph/kernel_seconds.py`), so the two do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.estimates import Estimate, estimated
from taso_mirage.emit.gpu.program import TritonLaunch, TritonProgram
from taso_mirage.ir.dims import show_shape
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.rewriting.text import show_graph


@dataclass(frozen=True, slots=True)
class KernelDetails:
    """One kernel of a program: its launch, and its estimate by the tuner."""

    launch: TritonLaunch
    estimate: Estimate

    @property
    def data(self) -> dict[str, Any]:
        """A value for `json.dump`; seconds of one launch."""
        launch = self.launch
        return {
            "name": launch.name,
            "grid": list(launch.grid),
            "loop": launch.loop,
            "cluster": launch.cluster,
            "schedule": asdict(launch.schedule),
            "tuner_seconds": self.estimate.seconds,
            "resident": self.estimate.resident,
            "waves": self.estimate.waves,
        }

    @property
    def lines(self) -> Iterator[str]:
        """The launch, the schedule and the estimate, a line each."""
        launch, found = self.launch, self.estimate
        loop = f", loop of {launch.loop}" if launch.loop != 1 else ""
        cluster = f", clusters of {launch.cluster}" if launch.cluster > 1 else ""
        yield f"{launch.name}: grid {show_shape(launch.grid)}{loop}{cluster}"
        yield f"    schedule: {', '.join(f'{name}={value}' for name, value in asdict(launch.schedule).items())}"
        blocks = f"{found.resident} blocks on a processor, {found.waves} waves"
        yield f"    tuner's estimate: {found.seconds * 1e6:.1f} us; {blocks}"


def kernel_details(program: TritonProgram) -> list[KernelDetails]:
    """The kernels of a program in the order of their launches."""
    return [KernelDetails(launch, estimated(program, launch)) for launch in program.launches]


def program_source(found: FoundMuGraph) -> str:
    """The program of a muGraph: C++ for a CPU, Triton for a GPU.

    Raises TasoMirageError where it has none.
    """
    return generate_cpp(found.graph) if found.device == CPU_DEVICE.name else found.program().source


def details_data(found: FoundMuGraph) -> dict[str, Any]:
    """The kernels and the program of a muGraph, for `json.dump`.

    Raises TasoMirageError where it has no program.
    """
    return {"launches": [each.data for each in _launches(found)], "source": program_source(found)}


def details_lines(found: FoundMuGraph) -> Iterator[str]:
    """The text of a muGraph, its kernels and the program, as lines.

    Raises TasoMirageError where it has no program.
    """
    yield from show_graph(found.graph, "mugraph").splitlines()
    yield ""
    for each in _launches(found):
        yield from each.lines
    yield ""
    yield from program_source(found).splitlines()


def _launches(found: FoundMuGraph) -> list[KernelDetails]:
    """The launches of a program for a GPU; none for a CPU, where the program is one function."""
    return [] if found.device == CPU_DEVICE.name else kernel_details(found.program())
