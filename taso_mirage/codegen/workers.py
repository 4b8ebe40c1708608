"""Processes that compile ahead for the tuner: Triton holds the interpreter's lock while it works, so threads would wait for each other.

    python -m taso_mirage.codegen.workers SECONDS

reads a job a line and answers each with `true` or `false`: whether it compiles; one that takes longer ends the process. They are
processes of our own, and not those of `multiprocessing`, which run the user's script again in every one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from taso_mirage.codegen.gpu.program import Program
from taso_mirage.codegen.tune import job, warmed

LIMIT = 15.0
"""Seconds for a program, which takes one or two: past that the compiler has lost its way, and the process ends."""


class Workers:
    """Up to `count` processes, each started when there is work for it; what takes longer than `limit` seconds does not compile."""

    def __init__(self, count: int, limit: float = LIMIT) -> None:
        self.limit = limit
        self._threads = ThreadPoolExecutor(count)
        self._own = threading.local()
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, program: Program) -> Future[bool]:
        """Compile a program into Triton's cache; the result is whether it can be done."""
        return self._threads.submit(self._asked, job(program))

    def close(self) -> None:
        """End all, those that are still at work too."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._started:
            _kill(process)
        self._threads.shutdown()
        for process in self._started:
            with suppress(OSError), process:  # which closes its pipes
                pass

    def _asked(self, job: Mapping[str, Any]) -> bool:
        process = self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:  # it has ended
            _kill(process)
            process.wait()
        return answer == "true\n"

    def _process(self) -> subprocess.Popen[str]:
        """This thread's process; another one where that has ended."""
        process: subprocess.Popen[str] | None = getattr(self._own, "process", None)
        if process is None or process.poll() is not None:
            path = os.pathsep.join(p for p in sys.path if p)
            process = subprocess.Popen(
                [sys.executable, "-m", "taso_mirage.codegen.workers", str(self.limit)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": path},
            )
            self._own.process = process
            self._started.append(process)
        return process


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process, and the assembler that it may be waiting for."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    import torch  # noqa: F401  # before the clock runs

    limit, answers, sys.stdout = float(sys.argv[1]), sys.stdout, sys.stderr  # what compilers print is no answer
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, limit)  # which ends the process, whatever holds the interpreter's lock
        print(json.dumps(warmed(json.loads(line))), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
