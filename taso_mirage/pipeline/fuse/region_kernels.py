"""Kinds of regions with their kernels, and the sets of them that are tried in the model
together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taso_mirage.devices.device import Device
from taso_mirage.errors import OutOfTime
from taso_mirage.forms.base.form import PreparedGoal
from taso_mirage.ir.terms import Node
from taso_mirage.lowering.backend import Backend, Record
from taso_mirage.measure.refusals import shown_sizes
from taso_mirage.measure.timing import GAIN, Timing
from taso_mirage.mugraph.arranged import is_turned
from taso_mirage.operators.work import size
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.contained import ErrorReport
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.runtime.embed import EmbeddedRegion
from taso_mirage.runtime.plan import PlannedNode


@dataclass(frozen=True, slots=True)
class RegionKernel:
    """A kind of region with its kernel: the seconds that all its places save together, if nothing
    else changes."""

    operators: tuple[str, ...]
    sites: tuple[RegionSite, ...]
    record: Record
    kernel: PlannedNode
    saved: float
    prepares: PreparedGoal | None = None
    """The region's goal, if its kernel is a form's (`forms.base.form`)."""

    @property
    def regions(self) -> list[EmbeddedRegion]:
        return [EmbeddedRegion(s.inputs, s.outputs, self.kernel) for s in self.sites]

    @property
    def turned(self) -> set[Node]:
        """The weights that the kernel reads in another order of axes than the model's."""
        return {x for site in self.sites for x in site.inputs if is_turned(x)}


def possible_seconds(kind: EqualRegions, places: int, made: PreparedGoal | None, device: Device) -> float:
    """The seconds of the starts of operators, of values that go through memory between them, and of
    the savings by prepared weights, for all places together."""
    inner = [n for n in kind.whole if n.args and n.op != "item"]
    moved = 2 * sum(size(n.type) for n in inner if n not in kind.whole.outputs)
    saved = 0.0 if made is None else made.saved(device)
    return places * (len(inner) * device.launch + moved / device.bandwidth + saved)


def trials(worth: Sequence[RegionKernel]) -> list[Sequence[RegionKernel]]:
    """The sets of kinds that are tried in the model. The first has those that prepare weights: no
    layout is changed between two convolutions, so all together gain more than each alone. Then come
    all kinds, as the gain of a product or two is small beside a CPU's noise; then each alone."""
    together: dict[str, list[RegionKernel]] = {}
    for kind in worth:
        if kind.prepares is not None:
            together.setdefault(kind.prepares.together, []).append(kind)
    several = [*together.values(), worth] if together else []
    return [*(kinds for kinds in several if len(kinds) > 1), *([kind] for kind in worth)]


def pays(timing: Timing, trial: Sequence[RegionKernel]) -> bool:
    """Whether a model is faster with some kinds: by the verdict, or, without one, by their savings
    alone, if the runs do not exclude that gain."""
    left = timing.original - sum(kind.saved for kind in trial)
    gain = timing.original / left if left > 0 else math.inf
    return timing.faster or (timing.ratio >= 1 and GAIN <= gain <= timing.high)


def rounding_nothing(kept: Sequence[RegionKernel], backend: Backend) -> list[RegionKernel] | None:
    """The kinds with kernels that round no operands of products, for the comparison of the check;
    None if no kernel rounds any."""
    records = [backend.fine(kind.record) for kind in kept]
    if all(record == kind.record for record, kind in zip(records, kept, strict=True)):
        return None
    return [
        replace(kind, record=record, kernel=backend.kernel(record)) for record, kind in zip(records, kept, strict=True)
    ]


def ship(kept: Sequence[RegionKernel], backend: Backend, report: ErrorReport) -> list[RegionKernel]:
    """The kinds with kernels for all machines, without those that have none."""
    try:
        made = backend.shipped([kind.record for kind in kept])
        return [replace(kind, kernel=each) for kind, each in zip(kept, made, strict=True)]
    except OutOfTime:
        raise
    except Exception as error:
        if len(kept) > 1:
            return [each for kind in kept for each in ship([kind], backend, report)]
        report(" ".join(kept[0].operators), error)
        return []


def where_they_run(kept: Sequence[RegionKernel], sizes: Mapping[str, int]) -> list[str]:
    """A sentence about the sizes of its free dims at which a model runs these kernels."""
    regions = [region for kind in kept for region in kind.regions]
    fixed = sum(region.free for region in regions)
    if not sizes or not fixed:
        return ["kernels run at every size"] if sizes else []
    own = "" if fixed == len(regions) else f"{len(regions) - fixed} kernels run at every size; {fixed} "
    return [f"{own or 'kernels '}run at {shown_sizes(sizes)}; at all other sizes the model runs its own operators"]
