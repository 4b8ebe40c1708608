"""The compilation of choices for all GPUs to which a model may come, beside other work."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import Future, wait
from typing import Any

from taso_mirage.devices.machine import cores
from taso_mirage.lowering.backend import Record
from taso_mirage.system.workers import Workers

LONGEST = 60.0
"""Seconds for compiling a region's kernels for one GPU."""


class Shipping:
    """Processes that compile choices by `function` ("module:name"), each choice once."""

    def __init__(self, function: str) -> None:
        self.function = function
        self._workers: Workers | None = None
        self._begun: dict[str, list[Future[Any]]] = {}

    def begin(self, record: Record, capabilities: Iterable[int]) -> list[Future[Any]]:
        """The answers about a choice for GPUs of these compute capabilities."""
        said = json.dumps(record, sort_keys=True)
        if said not in self._begun:
            self._workers = self._workers or Workers(self.function, cores(), LONGEST, ("triton",))
            parts = (record, *record.get("before", ()))
            jobs = [{"record": part, "capability": c} for part in parts for c in capabilities]
            self._begun[said] = [self._workers(job) for job in jobs]
        return self._begun[said]

    def wait(self, records: Iterable[Record], capabilities: Iterable[int]) -> None:
        """Wait until these choices are compiled."""
        wanted = [*capabilities]
        wait([future for record in records for future in self.begin(record, wanted)])

    def close(self) -> None:
        """End the processes; another choice starts new ones."""
        if self._workers is not None:
            self._workers.close()
        self._workers = None
        self._begun.clear()
