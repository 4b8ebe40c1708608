"""The workers of a Dask scheduler (extra `distributed`): one kind of machine, one task a worker at
a time.

A task of a worker that dies is repeated on another worker by Dask, so a result never depends on the
worker that made it.
"""

from __future__ import annotations

import gc
import pickle
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, cast
from uuid import uuid4

from taso_mirage.errors import InvalidOption, RunFailed, RuntimeUnavailable, TasoMirageError
from taso_mirage.measure.target import Target
from taso_mirage.system.wording import for_command_line, option
from taso_mirage.version import __version__

RESOURCE = "device"
"""The resource that a worker declares (`dask worker --resources device=1`) so that it measures
alone though it has several threads; other workers are then left out."""
SECONDS = 10
"""Seconds to wait for a scheduler."""
LOST = 60.0
"""Seconds without any worker after which the work is given up: a worker that died takes seconds to
start again."""
LOOK = 0.1
"""Seconds between two looks at a task."""
TOPIC = "taso-mirage"
HERE = "inproc:"
"""The beginning of the addresses of workers that share one process, which does one task at a
time."""


class Asking(Protocol):
    """A flag that says whether the user interrupted the command."""

    asked: bool


class Line:
    """The line from a task on a worker to the command that waits for it: `tell` sends a message,
    and the functions in `stops` are called where the command is interrupted or gone."""

    def __init__(self, name: str, worker: Any) -> None:
        self.name, self.worker = name, worker
        self.stops: list[Callable[[], object]] = []
        self.ended = threading.Event()

    def tell(self, *message: Any) -> None:
        self.worker.log_event(TOPIC, (self.name, pickle.dumps(message)))

    def stop(self) -> None:
        for each in self.stops:
            each()

    def watch(self) -> None:
        """Stop once nobody waits for the task any more: the command cancelled it, or has ended."""
        while not self.ended.wait(1.0):
            task = self.worker.state.tasks.get(self.name)
            if task is None or task.state == "cancelled":
                return self.stop()


@dataclass(frozen=True, slots=True)
class _Pool:
    """The `kind` of all workers and the `target` that they measure; whether messages are for the
    `command` line; and the `resources` of a task."""

    kind: Mapping[str, str]
    target: Target | None
    command: bool
    resources: Mapping[str, int]

    def submit(
        self, client: Any, name: str, function: Any, args: tuple[Any, ...], spread: tuple[str, ...] = (), **where: Any
    ) -> Any:
        """The future of a task on one of the workers, `where` Dask shall run it."""
        only = {"resources": self.resources} if self.resources else {}
        return client.submit(_task, name, self, function, args, spread, key=name, pure=False, **only, **where)


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__name__}-{uuid4().hex}"


def others() -> Others | None:
    """The other workers, for a task that may give them work."""
    return _OTHERS[-1] if _OTHERS else None


@dataclass(frozen=True, slots=True)
class Others:
    """The other workers of a task: a call starts a function of a `Line` and arguments on one of
    them, and returns its future. Such a task is as one of the command."""

    client: Any
    pool: _Pool
    addresses: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.addresses)

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.pool.submit(self.client, _name(function), function, args, workers=self.addresses)


_OTHERS: list[Others] = []
"""The other workers of the task that runs in this process, if it may give them work."""
_RUNNING: dict[str, Line] = {}
"""The tasks that run in this process, which is a worker."""
_ALONE = threading.Lock()
"""The lock of the task that runs: terms are interned for a process, which measures alone."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The workers of the scheduler at `address`, all of one `kind` (its facts by name)."""

    address: str
    client: Any
    kind: Mapping[str, str]
    resources: Mapping[str, int]
    target: Target | None
    workers: tuple[str, ...] = ()
    """The addresses of the workers at the start."""
    _heard: dict[str, SimpleQueue[Any]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of workers now."""
        with suppress(OSError):
            return len(self.client.nthreads())
        return 0

    def executor(self) -> Executor:
        """The workers as an executor, for many small tasks."""
        only = {"resources": self.resources} if self.resources else {}
        return cast(Executor, self.client.get_executor(**only))

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        hear: Callable[..., object] = lambda *message: None,
        stop: Asking | None = None,
        spread: bool = False,
    ) -> Any:
        """The result of `function(line, *args)` on a worker; `hear` is called here with each
        message of its `Line`. Once `stop` is asked, a task that runs is told so, and awaited; one
        that waits is cancelled. With `spread`, it may give work to the `others()`.

        Raises what the function raises, RunFailed where several workers died at it, and
        RuntimeUnavailable where the scheduler or all workers are gone.
        """
        name, heard = _name(function), SimpleQueue[Any]()
        self._heard[name] = heard
        pool = _Pool(self.kind, self.target, option("scheduler") != "scheduler", self.resources)
        task = pool.submit(self.client, name, function, args, self.workers if spread else ())
        try:
            return self._awaited(name, task, heard, hear, stop)
        except CancelledError as error:
            raise RuntimeUnavailable(f"{option('scheduler', self.address)}: lost while it worked ({error})") from None
        finally:
            del self._heard[name]
            task.cancel()

    def _awaited(
        self, name: str, task: Any, heard: SimpleQueue[Any], hear: Callable[..., object], stop: Asking | None
    ) -> Any:
        seen, told = time.monotonic(), False
        while not task.done():
            with suppress(Empty):
                hear(*heard.get(timeout=LOOK))
            now = time.monotonic()
            seen = now if self.count else seen
            if now > seen + LOST:
                raise CancelledError(f"it has had no workers for {LOST:g} s")
            if stop is not None and stop.asked and not told:
                told = True
                if not any(self.client.run(_stop, name).values()):
                    raise NotBegun("interrupted before a worker had begun")
        while not heard.empty():
            hear(*heard.get())
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, TasoMirageError | CancelledError | MemoryError):
            raise error
        raise RunFailed(f"{option('scheduler', self.address)}: a worker failed: {type(error).__name__}: {error}")


class NotBegun(TasoMirageError):
    """An interrupt came before a worker had begun the task."""


def _task(name: str, pool: _Pool, function: Any, args: tuple[Any, ...], spread: tuple[str, ...]) -> Any:
    """On a worker: the result of a function, if the worker is of the kind of the others."""
    from distributed import get_client, get_worker

    worker = get_worker()
    if said := _difference("the worker", facts(pool.target), "the others", pool.kind):
        raise InvalidOption(f"{worker.address} came later, and {said}; start it at a scheduler of its own kind")
    line = _RUNNING[name] = Line(name, worker)
    threading.Thread(target=line.watch, daemon=True).start()
    addresses = tuple(each for each in spread if each != worker.address and not each.startswith(HERE))
    try:
        with _ALONE, for_command_line() if pool.command else nullcontext():
            _OTHERS[:] = [Others(get_client(), pool, addresses)] if addresses else []
            return function(line, *args)
    finally:
        line.ended.set()
        del _RUNNING[name]


def _stop(name: str) -> bool:
    """On a worker: tell a task to end; whether it runs here."""
    line = _RUNNING.get(name)
    if line is not None:
        line.stop()
    return line is not None


def facts(target: Target | None) -> dict[str, str]:
    """Versions, and for a target its runtime and the machine, by name: results depend on them."""
    known = {"taso-mirage": __version__, "Python": ".".join(platform.python_version_tuple()[:2])}
    return known if target is None else known | {"runtime": target.runtime, "machine": target.machine}


def _difference(one: str, here: Mapping[str, str], other: str, there: Mapping[str, str]) -> str:
    """The first fact in which two machines differ; empty if there is none."""
    for name, value in here.items():
        if there.get(name) != value:
            return f"{name} is {value!r} on {one} and {there.get(name)!r} on {other}"
    return ""


@contextmanager
def cluster(address: str, target: Target | None) -> Iterator[Cluster]:
    """The scheduler's workers. Where some declare the resource `device`, only these are used.

    Raises InvalidOption where there is no such scheduler, where workers are of different kinds (for
    a target: of other machines or runtimes), or where a worker would do several tasks at once; and
    RuntimeUnavailable where the scheduler is lost, or workers die, while an `executor` is used.
    """
    with scheduler_client(address) as client:
        kind, declared, workers = _kind(client, address, target)
        made = Cluster(address, client, kind, {RESOURCE: 1} if declared else {}, target, workers)

        def heard(event: tuple[float, Any]) -> None:
            name, message = event[1]
            if name in made._heard:
                made._heard[name].put(pickle.loads(message))

        client.subscribe_topic(TOPIC, heard)
        try:
            yield made
        except CancelledError as error:
            raise RuntimeUnavailable(f"{option('scheduler', address)}: lost while it worked ({error})") from None
        except Exception as error:
            if type(error).__name__ != "KilledWorker":
                raise
            said = "several workers died at one task (out of memory?); their logs say why"
            raise RuntimeUnavailable(f"{option('scheduler', address)}: {said}") from None


def _kind(client: Any, address: str, target: Target | None) -> tuple[Mapping[str, str], bool, tuple[str, ...]]:
    """The facts of all workers, whether some declare devices, and the addresses of those used."""
    try:
        known: dict[str, tuple[dict[str, str], bool, int]] = client.run(_described, target)
    except Exception as error:  # errors of the worker: missing packages, a provider that does not start
        said = f"{type(error).__name__}: {error}"
        raise InvalidOption(
            f"{option('scheduler', address)}: a worker cannot be used: {said}; install the same there"
        ) from None
    declared = any(has for _, has, _ in known.values())
    used = {worker: each for worker, each in known.items() if each[1] or not declared}
    if not used:
        raise InvalidOption(
            f"{option('scheduler', address)}: it has no workers; start one with `dask worker {address}`"
        )
    (first, (kind, *_)), *others = used.items()
    own = facts(None)
    if said := _difference("this machine", own, first, {name: kind.get(name, "") for name in own}):
        raise InvalidOption(f"{option('scheduler', address)}: {said}; install the same version on both")
    for worker, (there, *_) in others:
        if said := _difference(first, kind, worker, there):
            raise InvalidOption(
                f"{option('scheduler', address)}: its workers are of different kinds: {said}; "
                "start one scheduler for each kind of machine"
            )
    if busy := [worker for worker, (_, _, threads) in used.items() if threads > 1 and not declared]:
        raise InvalidOption(
            f"{option('scheduler', address)}: {busy[0]} would do several tasks at once; "
            "start workers with --nthreads 1, or with --resources device=1"
        )
    return kind, declared, tuple(used)


def _described(target: Target | None, dask_worker: Any) -> tuple[dict[str, str], bool, int]:
    """The facts of a worker, whether it declares a device, and its threads. Dask gives the
    worker."""
    return facts(target), RESOURCE in dask_worker.state.total_resources, dask_worker.state.nthreads


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
