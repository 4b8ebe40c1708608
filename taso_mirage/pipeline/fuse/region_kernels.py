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
from taso_mirage.regions.batches import EqualRegions, region_members
from taso_mirage.regions.contained import ErrorReport
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.runtime.embed import EmbeddedRegion
from taso_mirage.runtime.plan import PlannedNode


@dataclass(frozen=True, slots=True)
class RegionKernel:
    """A kind of region with its kernel: the seconds that all its places save together, if nothing
    else changes, and the seconds of the kernel in all of them."""

    operators: tuple[str, ...]
    sites: tuple[RegionSite, ...]
    record: Record
    kernel: PlannedNode
    saved: float
    prepares: PreparedGoal | None = None
    """The region's goal, if its kernel is a form's (`forms.base.form`)."""
    seconds: float = 0.0

    @property
    def faster(self) -> bool:
        """Whether it is measurably faster alone than the operators; one that prepares weights may
        be slower, and gains by its neighbours."""
        return self.seconds < (self.saved + self.seconds) * (1.0 if self.prepares is None else self.prepares.slack)

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


def refused_parts(refused: Sequence[RegionKernel]) -> list[Sequence[RegionKernel]]:
    """The sets that are tried in the model once some kernels together are refused: those that
    prepare weights alike, because no layout is changed between two of them; else the halves that
    save more and less."""
    groups: dict[str, list[RegionKernel]] = {}
    for kernel in refused:
        groups.setdefault("" if kernel.prepares is None else kernel.prepares.together, []).append(kernel)
    if len(groups) > 1:
        return sorted(groups.values(), key=lambda kernels: -sum(each.saved for each in kernels))
    ordered = sorted(refused, key=lambda kernel: -kernel.saved)
    middle = (len(ordered) + 1) // 2
    return [ordered[:middle], ordered[middle:]] if len(ordered) > 1 else []


def without_places(kernels: Sequence[RegionKernel], others: Sequence[RegionKernel]) -> list[RegionKernel]:
    """The kernels whose places have no term of a place of others."""
    taken = {n for each in others for site in each.sites for n in region_members(site)}
    return [k for k in kernels if taken.isdisjoint([n for site in k.sites for n in region_members(site)])]


def kernel_savings(kernels: Sequence[RegionKernel]) -> float:
    """The seconds that kernels save alone; one that prepares weights may be slower alone."""
    return max(sum(each.saved for each in kernels), 0.0)


def pays(timing: Timing, saved: float) -> bool:
    """Whether a model is faster with kernels that alone save so many seconds: by the verdict, or,
    without one, if these seconds are enough, and the runs do not exclude it."""
    left = timing.original - saved
    gain = timing.original / left if left > 0 else math.inf
    return timing.faster or (timing.ratio >= 1 and min(gain, timing.high) >= GAIN)


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
