"""Worker processes for work that holds the interpreter's lock: compilers and searches.

Processes of `multiprocessing` would run the user's script again.

    python -m taso_mirage.system.workers MODULE:FUNCTION SECONDS [MODULE ...]

imports the modules, reads a job a line (JSON), and answers each with the function's result. One
that takes longer ends the process.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from taso_mirage.errors import TasoMirageError

SAFE_PATH = "PYTHONSAFEPATH"
"""The variable that keeps the current folder off the path of modules."""


class Workers:
    """Up to `count` processes, each started when there is work for it (or by `start`), that call
    `function` ("module:name") with jobs; `first` names modules to import before the `limit` of
    seconds for a job counts."""

    def __init__(self, function: str, count: int, limit: float, first: Sequence[str] = ()) -> None:
        self.arguments = [function, str(limit), *first]
        self._count, self._threads = count, ThreadPoolExecutor(count)
        self._own = threading.local()
        self._started: list[subprocess.Popen[str]] = []
        self._ahead: list[subprocess.Popen[str]] = []

    def __call__(self, job: Mapping[str, Any]) -> Future[Any]:
        """The answer to a job; None if it took too long, or the process ended."""
        return self._threads.submit(self._asked, job)

    def start(self, job: Mapping[str, Any] | None = None) -> None:
        """Start all processes now, each with this job, if any: the first one of a process takes
        long, also because of its imports."""
        for _ in range(self._count):
            self._ahead.append(self._new())
        for _ in range(self._count if job is not None else 0):  # a thread is busy until its process answers
            self(job or {})

    def close(self) -> None:
        """End all processes, also busy ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._started:
            _kill(process)
        self._threads.shutdown()
        ended, self._started = self._started, []
        for process in ended:
            with suppress(OSError), process:  # which closes its pipes
                pass

    def _asked(self, job: Mapping[str, Any]) -> Any:
        process = self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if answer.endswith("\n"):
            return json.loads(answer)
        _kill(process)
        process.wait()
        return None

    def _process(self) -> subprocess.Popen[str]:
        """This thread's worker process; another one where that has ended."""
        process: subprocess.Popen[str] | None = getattr(self._own, "process", None)
        if process is None or process.poll() is not None:
            try:
                process = self._ahead.pop()
            except IndexError:
                process = self._new()
            self._own.process = process
        return process

    def _new(self) -> subprocess.Popen[str]:
        path = os.pathsep.join(p for p in sys.path if p)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "taso_mirage.system.workers", *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        self._started.append(process)
        return process


def end_with_parent(descriptor: int) -> None:
    """End this process and all processes that it started when the other end of a pipe from its
    parent is closed."""

    def wait() -> None:
        poll = select.poll()
        poll.register(descriptor, getattr(select, "POLLRDHUP", 0))  # a pipe with a closed other end is always readable
        poll.poll()
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def process_pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of `multiprocessing` for functions of modules.

    They import nothing from the current folder, not even Python's own start-up modules, and end
    with this process and with errors here. Raises TasoMirageError where the system has no room for
    their shared memory (a full /dev/shm).
    """
    kept = os.environ.get(SAFE_PATH)
    try:
        made = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), follow_parent)
    except OSError as error:
        raise TasoMirageError(
            f"worker processes cannot share memory ({error.strerror or error}); make room in /dev/shm"
        ) from None
    os.environ[SAFE_PATH] = "1"  # as -P; a process is started when there is work for it
    try:
        yield made
    except BaseException:
        for process in list(made._processes.values()):
            process.terminate()
        raise
    finally:
        made.shutdown(wait=False, cancel_futures=True)
        if kept is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = kept


def follow_parent() -> None:
    """In a worker of `multiprocessing`: an interrupt is for the process that the user started, and
    the worker ends with it, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process, and the assembler that it may be waiting for."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main(function: str, limit: str, *first: str) -> None:
    end_with_parent(sys.stdin.fileno())
    for name in first:
        import_module(name)
    module, _, name = function.partition(":")
    call = getattr(import_module(module), name)
    answers, sys.stdout = sys.stdout, sys.stderr  # output of other code is no answer
    for line in sys.stdin:
        signal.setitimer(
            signal.ITIMER_REAL, float(limit)
        )  # ends the process even if other code holds the interpreter's lock
        print(json.dumps(call(json.loads(line))), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
