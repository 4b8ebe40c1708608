"""Measuring on other machines: the workers of a Dask scheduler as an executor (extra
`distributed`)."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from typing import Any

from taso_mirage.errors import InvalidOption, OutOfTime, RunFailed, RuntimeUnavailable
from taso_mirage.measure import tasks
from taso_mirage.measure.child import LOOK, child
from taso_mirage.measure.target import Target
from taso_mirage.system.wording import option

RESOURCE = "device"
"""The resource that a worker declares (`dask worker --resources device=1`) so that several clients
take turns at its device."""
SECONDS = 10
"""Seconds to wait for a scheduler."""


@contextmanager
def executor(address: str, target: Target) -> Iterator[Executor]:
    """The scheduler's workers; they must all be on one kind of device, because a measurement holds
    for any of them.

    The optimizer asks for one measurement at a time. Where workers declare the resource `device`,
    only these measure, and one at a time for all clients. Raises InvalidOption where there is no
    such scheduler, RuntimeUnavailable where it goes away meanwhile.
    """
    found = scheduler_client(address)
    with found as client:
        declared = _declared(client, address, target)
        try:
            there = client.get_executor(**({"resources": {RESOURCE: 1}} if declared else {}))
            yield _Watched(there, lambda: _has_workers(client))
        except CancelledError as error:
            raise RuntimeUnavailable(f"{option('scheduler', address)}: lost while measuring ({error})") from None


def _has_workers(client: Any) -> bool:
    with suppress(OSError):
        return bool(client.scheduler_info()["workers"])
    return False


class _Watched(Executor):
    """An executor whose results are awaited while `there` reports that a worker may deliver
    them."""

    def __init__(self, executor: Executor, there: Callable[[], bool]) -> None:
        self._executor, self._there = executor, there

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        found: Future[Any] = Future()
        asked = self._executor.submit(function, *args, **options)
        try:
            found.set_result(answered(asked, self._there))
        except Exception as error:
            found.set_exception(error)
        return found


def answered(asked: Future[Any], there: Callable[[], bool] = lambda: True) -> Any:
    """The result of a worker's task, within the run limit and the command's time.

    Raises RunFailed where the worker fails, dies or takes too long, OutOfTime where the command's
    time is over, and CancelledError where for SECONDS nobody is `there`.
    """
    limit, deadline = child().limit, child().deadline
    begun = seen = time.monotonic()
    while True:
        with suppress(NotYet):
            error = asked.exception(LOOK)
            if error is None:
                return asked.result()
            raise RunFailed(f"a worker of the scheduler failed: {type(error).__name__}: {error}")
        now = time.monotonic()
        seen = now if there() else seen
        late = now > begun + limit
        if late or now > seen + SECONDS or deadline.last() <= 0:
            asked.cancel()
        if deadline.last() <= 0:
            raise OutOfTime("the time was over before a worker of the scheduler had measured")
        if late:
            raise RunFailed(
                f"a worker of the scheduler took longer than {limit:g} s; {option('run_limit')} allows more"
            )
        if now > seen + SECONDS:
            raise CancelledError(f"it has had no workers for {SECONDS} s")


def scheduler_client(address: str) -> Any:
    """A Dask client of the scheduler. Raises InvalidOption if there is no scheduler, or if Dask is
    not installed."""
    try:
        from distributed import comm
    except ImportError:
        raise InvalidOption(f"{option('scheduler')} needs Dask: pip install 'taso-mirage[distributed]'") from None
    try:
        comm.resolve_address(address)  # a client of a wrong address reports the error again when it is closed
    except (OSError, ValueError) as error:
        raise InvalidOption(f"{option('scheduler', address)}: {error}; write it as tcp://host:8786") from None
    try:
        return _connected(address)
    except (OSError, ValueError) as error:
        said = str(error)
    _end_lost_clients()
    raise InvalidOption(f"{option('scheduler', address)}: {said}; start one with `dask scheduler`")


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
    """Whether workers declare devices. Raises InvalidOption for workers on different kinds of
    machines."""
    try:
        workers: dict[str, tuple[str, bool]] = client.run(_described, target)
    except Exception as error:  # errors of the worker: missing packages, a provider that does not start
        raise InvalidOption(
            f"{option('scheduler', address)}: a worker cannot measure: {type(error).__name__}: {error}"
        ) from None
    declared = any(has for _, has in workers.values())
    devices = {device: worker for worker, (device, has) in workers.items() if has or not declared}
    if not devices:
        raise InvalidOption(
            f"{option('scheduler', address)}: it has no workers; start one with `dask worker {address}`"
        )
    if len(devices) > 1:
        (a, first), (b, second) = sorted(devices.items())[:2]
        raise InvalidOption(
            f"{option('scheduler', address)}: measurements would mix devices: {first} is {a!r}, {second} is {b!r}; use workers of one kind"
        )
    return declared


def _described(target: Target, dask_worker: Any) -> tuple[str, bool]:
    """The key of a worker's machine, and whether it declares a device. Dask gives the worker."""
    return tasks.device_key(target), RESOURCE in dask_worker.state.total_resources
