"""ONNX Runtime in a child process: a crash, full memory or an endless run ends that process, not
this one.

One process lives as long as this one and answers calls of functions in turn; after a crash or a
time limit the next call starts another. Its objects (`native.py`) have numbers that hold for one
life of it.

    python -P -m taso_mirage.measure.child FD
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from taso_mirage.errors import OutOfTime, RunFailed, RuntimeCrashed
from taso_mirage.measure.messages import receive, send
from taso_mirage.system.deadline import UNBOUNDED, Deadline
from taso_mirage.system.spending import Purpose, spent
from taso_mirage.system.wording import option

R = TypeVar("R")
LIMIT = 300.0
"""Seconds that a call may take: loading a model, a run, or one measurement."""
LOOK = 0.2
"""Seconds between two tests whether the command's time is over; an interrupt ends it early."""
PARENT_GONE = 3
CONFIGURED = "ORT_LOAD_CONFIG_FROM_MODEL"
"""The variable that makes ONNX Runtime read options of a session from the model, which could make
it write files."""


class Child:
    """The child process and calls to it; threads take turns. `life` counts how often it has ended.

    No call lasts longer than `limit`, or beyond the last end of the `deadline`.
    """

    def __init__(self) -> None:
        self.life = 0
        self.limit = LIMIT
        self.deadline: Deadline = UNBOUNDED
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._owed = 0
        self._dropped: deque[tuple[int, int]] = deque()

    @contextmanager
    def within(self, deadline: Deadline | None = None, limit: float | None = None) -> Iterator[None]:
        """Set the deadline, the limit, or both for the calls inside."""
        around = self.deadline, self.limit
        self.deadline = self.deadline if deadline is None else deadline
        self.limit = self.limit if limit is None else limit
        try:
            yield
        finally:
            self.deadline, self.limit = around

    @spent(Purpose.RUNS, usual=True)
    def call(self, function: Callable[..., R], *args: Any) -> R:
        """Call a module's function in the child process and return its result.

        Raises the function's errors, RuntimeCrashed if the process ended, RunFailed if the call
        took longer than `limit`, and OutOfTime if the command's time is over.
        """
        with self._lock:
            connection = self._started()
            done = [number for life, number in self._taken() if life == self.life]
            try:
                self._await_owed(connection)
                send(connection, (f"{function.__module__}:{function.__qualname__}", args, done))
                self._wait(connection)
                raised, answer = receive(connection)
            except (EOFError, ConnectionError):
                raise RuntimeCrashed(self._ending()) from None
            except OSError as error:  # the process is still valid, and may have received a part of a message
                self.stop()
                raise RuntimeCrashed(f"ONNX Runtime's process cannot be reached: {error.strerror or error}") from None
            except BaseException:  # after an interrupt, the process would continue its work
                self.stop()
                raise
        if raised:
            raise answer
        result: R = answer
        return result

    def begin(self, function: Callable[..., object], *args: Any) -> None:
        """Make the child process, which is started if necessary, call a function while this process
        continues.

        The next call waits until that call is done; its result or error is discarded. The arguments
        must be small, because they wait in the connection.
        """
        with self._lock, suppress(OSError):  # if the process ended, the next call reports it
            send(self._started(), (f"{function.__module__}:{function.__qualname__}", args, []))
            self._owed += 1

    def _await_owed(self, connection: Connection[Any, Any]) -> None:
        """Wait until a new process reports that it has imported the runtime's modules, and the
        calls of `begin` are done."""
        while self._owed:
            with spent(Purpose.STARTING):
                self._wait(connection)
                receive(connection)
                self._owed -= 1

    def _wait(self, connection: Connection[Any, Any]) -> None:
        """Wait for an answer, which may never come."""
        end = time.monotonic() + self.limit
        while not connection.poll(max(min(LOOK, end - time.monotonic()), 0.0)):
            late = time.monotonic() >= end
            if late or self.deadline.last() <= 0:
                self.stop()
                if late:
                    raise RunFailed(
                        f"ONNX Runtime took longer than {self.limit:g} s for one load or run; {option('run_limit')} allows more"
                    )
                raise OutOfTime("the time was over before ONNX Runtime had loaded or run a model")

    def drop(self, life: int, number: int) -> None:
        """Release the object with this number before the next call.

        Any thread and any finalizer may call this.
        """
        self._dropped.append((life, number))

    def stop(self) -> None:
        """End the process; the next call starts another."""
        process, connection, self._process, self._connection = self._process, self._connection, None, None
        if connection is not None:
            connection.close()
        if process is not None:
            self.life += 1
            process.kill()
            process.wait()

    def _taken(self) -> list[tuple[int, int]]:
        return [self._dropped.popleft() for _ in range(len(self._dropped))]

    def _started(self) -> Connection[Any, Any]:
        if self._connection is None:
            ours, theirs = Pipe()
            path = os.pathsep.join(p for p in sys.path if p)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "taso_mirage.measure.child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is handled by this process only
                env=os.environ | {"PYTHONPATH": path, CONFIGURED: "0"},
            )
            theirs.close()
            self._connection, self._owed = ours, 1
        return self._connection

    def _ending(self) -> str:
        """How the process ended, in words."""
        process = self._process
        with suppress(subprocess.TimeoutExpired):
            if process is not None:
                process.wait(10)
        code = process.returncode if process is not None else None
        self.stop()
        if code == -signal.SIGKILL:
            return "ONNX Runtime was killed, most likely because the machine's memory was full"
        if code is not None and code < 0:
            return f"ONNX Runtime crashed with {signal.Signals(-code).name}"
        return f"ONNX Runtime's process ended with code {code}"


_CHILD: dict[int, Child] = {}


def child() -> Child:
    """The child process of this process; a forked process gets another one."""
    found = _CHILD.get(os.getpid())
    if found is None:
        found = _CHILD[os.getpid()] = Child()
        atexit.register(found.stop)
    return found


def in_child(function: Callable[..., R], *args: Any) -> R:
    """`function(*args)` in the child; see `Child.call`."""
    return child().call(function, *args)


# ---------------------------------------------------------------- in the child


def main(descriptor: int) -> None:
    """Answer calls until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(descriptor)
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    _limit_memory()
    from taso_mirage.measure import native

    send(connection, True)
    while True:
        try:
            name, args, dropped = receive(connection)
        except EOFError:
            return
        native.let_go(dropped)
        send(connection, _answer(name, args))
        del args


def _answer(name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
    module, _, function = name.partition(":")
    try:
        return False, getattr(importlib.import_module(module), function)(*args)
    except MemoryError:
        return True, RunFailed("ONNX Runtime needs more memory than there is")
    except ImportError as error:  # as a module in C++ reports it when it is loaded
        return True, RunFailed(f"ONNX Runtime cannot be loaded: {(str(error).splitlines() or ['no reason'])[0][:400]}")
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error of another package that cannot be pickled
            return True, RunFailed(f"{type(error).__name__}: {error}")
        return True, error


def _end_with_parent(descriptor: int) -> None:
    """End this process when the parent ends in any way, also during a call."""
    poll = select.poll()
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0))
    poll.poll()
    os._exit(PARENT_GONE)


def _limit_memory() -> None:
    """Limit the memory, so that a model that needs too much gets an error, and make this process
    the first that the system ends when memory is short."""
    import resource

    with suppress(OSError, ValueError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        resource.setrlimit(resource.RLIMIT_DATA, (total, total))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


if __name__ == "__main__":
    main(int(sys.argv[1]))
