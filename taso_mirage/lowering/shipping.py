"""The compilation of choices for all GPUs to which a model may come, beside other work."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import Future, wait
from typing import Any

from taso_mirage.devices.machine import cores
from taso_mirage.errors import OutOfTime
from taso_mirage.lowering.backend import Record
from taso_mirage.system.workers import Workers

DAY = 86_400.0
"""Seconds of the longest wait: the system takes no number that is much larger."""
LONGEST = 60.0
"""Seconds for compiling a region's kernels for one GPU."""


class Shipping:
    """Processes that compile choices by `function` ("module:name"), each choice once."""

    def __init__(self, function: str) -> None:
        self.function = function
        self._workers: Workers | None = None
        self._begun: dict[tuple[str, int], list[Future[Any]]] = {}

    def begin(self, record: Record, capabilities: Iterable[int]) -> list[Future[Any]]:
        """The answers about a choice for GPUs of these compute capabilities."""
        said, parts = json.dumps(record, sort_keys=True), (record, *record.get("before", ()))
        found: list[Future[Any]] = []
        for each in capabilities:
            if (said, each) not in self._begun:
                self._begun[said, each] = [self._ready()({"record": part, "capability": each}) for part in parts]
            found += self._begun[said, each]
        return found

    def join(self, record: Record, capability: int) -> None:
        """Wait until a choice is compiled for a GPU, if that was begun."""
        wait(self._begun.get((json.dumps(record, sort_keys=True), capability), ()), LONGEST)

    def start(self) -> None:
        """Start the processes, if they are not there: each imports Triton for some seconds."""
        if self._workers is None:
            self._ready().start()

    def wait(self, records: Iterable[Record], capabilities: Iterable[int], seconds: float) -> None:
        """Wait until these choices are compiled, for so many seconds at most.

        Raises OutOfTime.
        """
        wanted = [*capabilities]
        begun = [future for record in records for future in self.begin(record, wanted)]
        if wait(begun, min(seconds, DAY)).not_done:
            raise OutOfTime("kernels were compiled for all GPUs")

    def _ready(self) -> Workers:
        self._workers = self._workers or Workers(self.function, cores(), LONGEST, ("triton",))
        return self._workers

    def close(self) -> None:
        """End the processes; another choice starts new ones."""
        if self._workers is not None:
            self._workers.close()
        self._workers = None
        self._begun.clear()
