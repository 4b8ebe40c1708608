"""The load of other processes on the processor's cores, and the clock that times models under
it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from taso_mirage.errors import OutOfTime
from taso_mirage.measure import native
from taso_mirage.measure.child import in_child
from taso_mirage.measure.target import Target

FREE = 0.9
"""The smallest share of the cores that a process gets on a quiet machine."""
LOOK, LOOKS = 0.05, 3
"""Seconds of one measurement of the load, and the number of measurements on a busy machine."""


@dataclass(frozen=True, slots=True)
class Load:
    """The part of its cores that this process gets, and how many it has."""

    got: float = 1.0
    cores: int = 1

    @property
    def busy(self) -> bool:
        """Whether other processes use the cores."""
        return self.got < FREE

    @property
    def others(self) -> int:
        """The number of busy threads of other processes, assuming fair scheduling; at least one."""
        return max(round(self.cores * (1 / max(self.got, 1e-3) - 1)), 1)

    def clock(self, target: Target) -> Target:
        """The target with the clock for timing now: on a quiet machine wall time with all threads,
        as for users; beside other processes CPU time on one thread, which they do not affect, if
        such a clock exists."""
        return (target.serial or target) if self.busy else target

    def said(self, target: Target) -> str:
        """The line for the user."""
        who = "1 other process" if self.others == 1 else f"{self.others} other processes"
        if target.serial is None:
            return f"{who} used the cores: times vary more"
        return f"{who} used the cores: CPU time decided"


def observed_load(fresh: float = 0.0) -> Load:
    """The load that the child process sees once the threads of its sessions sleep; the last
    observation holds for `fresh` seconds. It is the least of up to LOOKS, because a short command
    is no load. If no time is left for a measurement, the load is that of a quiet machine."""
    if not _LAST or time.monotonic() > _LAST[0][0] + fresh:
        try:
            found = _looked()
            for _ in range(1, LOOKS):
                found = max(found, _looked(), key=lambda load: load.got) if found.busy else found
        except OutOfTime:
            return Load()
        _LAST[:] = [(time.monotonic(), found)]
    return _LAST[0][1]


def _looked() -> Load:
    time.sleep(native.SPINNING)
    return Load(*in_child(native.cores_got, LOOK))


_LAST: list[tuple[float, Load]] = []
