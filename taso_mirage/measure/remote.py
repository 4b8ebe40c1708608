"""Measuring on other machines: the workers of a Dask scheduler as an executor (extra
`distributed`)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager, suppress
from typing import Any

from taso_mirage.errors import InvalidOption, RuntimeUnavailable
from taso_mirage.measure import tasks
from taso_mirage.measure.target import Target

RESOURCE = "device"
"""What a worker declares (`dask worker --resources device=1`) so that several clients take turns at
its device."""
SECONDS = 10
"""How long to wait for a scheduler."""


@contextmanager
def executor(address: str, target: Target) -> Iterator[Executor]:
    """The scheduler's workers; they must all be on one kind of device, because a measurement holds
    for any of them.

    The optimizer asks for one measurement at a time. Where workers declare the resource `device`,
    only these measure, and one at a time for all clients. Raises InvalidOption where there is no
    such scheduler, RuntimeUnavailable where it goes away meanwhile.
    """
    found = scheduler_client(address)
    from distributed import KilledWorker

    with found as client:
        declared = _declared(client, address, target)
        try:
            yield client.get_executor(**({"resources": {RESOURCE: 1}} if declared else {}))
        except (CancelledError, KilledWorker) as error:
            raise RuntimeUnavailable(f"--scheduler {address}: lost while measuring ({error})") from None


def scheduler_client(address: str) -> Any:
    """A Dask client of the scheduler there; InvalidOption where there is none, or no Dask."""
    try:
        from distributed import comm
    except ImportError:
        raise InvalidOption("--scheduler needs Dask: pip install 'taso-mirage[distributed]'") from None
    try:
        comm.resolve_address(address)  # a client of what is no address complains a second time, at its end
    except (OSError, ValueError) as error:
        raise InvalidOption(f"--scheduler {address}: {error}; write it as tcp://host:8786") from None
    try:
        return _connected(address)
    except (OSError, ValueError) as error:
        said = str(error)
    _end_lost_clients()
    raise InvalidOption(f"--scheduler {address}: {said}; start one with `dask scheduler`")


def _connected(address: str) -> Any:
    from distributed import Client

    with suppress(AssertionError):
        # Dask waits ten seconds for its own thread to start, which a machine under load may take;
        # it is tried again
        return Client(address, timeout=SECONDS, set_as_default=False)
    _end_lost_clients()
    return Client(address, timeout=SECONDS, set_as_default=False)


def _end_lost_clients() -> None:
    """A client that did not start is closed where it is collected. Within the start of another that
    would be for ever: Dask holds a lock there that closing waits for."""
    gc.collect()


def _declared(client: Any, address: str, target: Target) -> bool:
    """Whether workers declare devices; refuses those that could not measure alike."""
    try:
        workers: dict[str, tuple[str, bool]] = client.run(_described, target)
    except Exception as error:  # the worker's own: packages that it lacks, a provider that does not start
        raise InvalidOption(
            f"--scheduler {address}: a worker cannot measure: {type(error).__name__}: {error}"
        ) from None
    declared = any(has for _, has in workers.values())
    devices = {device: worker for worker, (device, has) in workers.items() if has or not declared}
    if not devices:
        raise InvalidOption(f"--scheduler {address}: it has no workers; start one with `dask worker {address}`")
    if len(devices) > 1:
        (a, first), (b, second) = sorted(devices.items())[:2]
        raise InvalidOption(
            f"--scheduler {address}: measurements would mix devices: {first} is {a!r}, {second} is {b!r}; use workers of one kind"
        )
    return declared


def _described(target: Target, dask_worker: Any) -> tuple[str, bool]:
    """What the machine of a worker is, and whether it declares a device. Dask gives the worker."""
    return tasks.device_key(target), RESOURCE in dask_worker.state.total_resources
