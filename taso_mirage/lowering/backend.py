"""The interface of a target to the kernel stage (`pipeline/fuse/stage.py`): how its muGraphs are
ranked, which of them is the fastest, and the kernel that runs in a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from taso_mirage.devices.device import Device
from taso_mirage.errors import InvalidOption
from taso_mirage.forms.base.form import PreparedKinds
from taso_mirage.ir.terms import Graph
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.horizontal import FusedGoal
from taso_mirage.runtime.plan import PlannedNode
from taso_mirage.system.wording import option
from taso_mirage.targets.protocol import Target

Record = Mapping[str, Any]
"""A choice as JSON has it: the record on disk, and all that `kernel` needs, with BATCH for a kernel
of any number of samples."""
BATCH = "batch"
MeasuredSizes = Mapping[str, int]


class Backend(Protocol):
    """Kernels for one target."""

    @property
    def device(self) -> Device:
        """The device by which the search ranks muGraphs."""

    @property
    def key(self) -> str:
        """The device and the versions that a choice holds for."""

    @property
    def batched(self) -> bool:
        """Whether a kernel runs for any number of samples (`regions.batches`); where not, a model
        asks its sizes which operators run."""

    @property
    def prepared(self) -> PreparedKinds | None:
        """The goals with kernels by hand, over weights that lie as these read them."""

    @property
    def arranged(self) -> bool:
        """Whether kernels may read weights along their sums, and those of bytes
        (`mugraph.arranged`)."""

    @property
    def searching(self) -> int:
        """How many processes may search while `fastest` measures; none where they would be in its
        way."""

    @property
    def lanes(self) -> int:
        """How many lanes a region may have, which run beside each other; 1 where they would run one
        after the other."""

    def predicted(
        self, goal: Graph, found: Sequence[FoundMuGraph], measured: Sequence[MeasuredSizes] = ()
    ) -> Callable[[], Record]:
        """Begin to compile the muGraph that is predicted to be the fastest, beside others. The
        returned function waits for the compiler and returns the choice, which is not tuned. Both
        raise TasoMirageError where none can be run."""

    def fastest(
        self, goal: Graph, found: Sequence[FoundMuGraph], end: float, measured: Sequence[MeasuredSizes] = ()
    ) -> Record:
        """The fastest of some muGraphs for a goal, measured here; from the monotonic time `end` on
        nothing more is tried. Of those with free sizes it is the fastest at each of the `measured`
        ones. Raises TasoMirageError where none can be run."""

    def joined(self, goal: Graph, parts: Sequence[FusedGoal], records: Sequence[Record]) -> Record:
        """The choices for a goal's lanes as one for the goal.

        Raises the errors of `kernel` for a damaged record.
        """

    def kernel(self, record: Record) -> PlannedNode:
        """The kernel that runs in a model on this machine.

        Raises TasoMirageError, or the errors of a damaged record: LookupError, TypeError,
        ValueError.
        """

    def begin_shipping(self, record: Record) -> None:
        """Begin the slow part of `shipped` for a choice, beside other work."""

    def shipped(self, records: Sequence[Record]) -> list[PlannedNode]:
        """The kernels for all machines to which a model may come.

        Raises OutOfTime after the last end of the command.
        """

    def end_shipping(self) -> None:
        """End the processes of `begin_shipping`."""

    def rounding(self) -> Backend:
        """The back end where the runtime rounds operands of products to TF32: kernels may, too."""

    def fine(self, record: Record) -> Record:
        """The choice of the same kernel that rounds no operands."""

    def start(self) -> None:
        """Begin the slow preparations before the first kernel can be measured."""

    def close(self) -> None:
        """End the processes that were started for measuring."""


def at_most(record: Record, most: int | None) -> Record:
    """The part of a record for runs up to a limit, or for those above all limits."""
    before = record.get("before", ()) if most is not None else ()
    return next((each for each in before if most is not None and most <= each["most"]), record)


def here(target: Target) -> Backend:
    """The back end of a target on this machine, for runs on its number of threads.

    Raises InvalidOption for a target without kernels, RuntimeUnavailable, with the package to
    install, where it cannot be.
    """
    if target.lowering is None:
        raise InvalidOption(f"there are no fused kernels for the target {target.name}; leave {option('kernels')} out")
    threads = target.stamp.threads
    made: Backend = import_module(target.lowering).here(*[threads] if threads else ())
    return made
