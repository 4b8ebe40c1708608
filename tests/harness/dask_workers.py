"""A Dask scheduler with worker processes on this machine, each with a home and a cache of its own,
as if they were other machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import distributed


@dataclass(frozen=True, slots=True)
class Pool:
    """A scheduler, and the processes of its workers."""

    address: str
    processes: list[subprocess.Popen[bytes]]

    def kill(self, i: int) -> None:
        """End a worker and all that it started, at once."""
        os.killpg(self.processes[i].pid, signal.SIGKILL)


@contextmanager
def pool(folder: Path, count: int, *options: str, pinned: bool = False) -> Iterator[Pool]:
    """`count` workers that are not restarted when they die; their files are below `folder`. If
    `pinned`, worker i has core i alone, as one of several equal machines."""
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as local:
        address = local.scheduler_address
        made = Pool(
            address, [_worker(folder / f"worker{i}", address, options, {i} if pinned else None) for i in range(count)]
        )
        try:
            with distributed.Client(address) as client:
                client.wait_for_workers(count, timeout=600)
            yield made
        finally:
            for i, process in enumerate(made.processes):
                if process.poll() is None:
                    made.kill(i)
                process.wait()
            time.sleep(0.1)


def _worker(home: Path, address: str, options: tuple[str, ...], on: set[int] | None) -> subprocess.Popen[bytes]:
    home.mkdir(parents=True)
    cores = os.sched_getaffinity(0)
    on = cores if on is None else {sorted(cores)[i] for i in on}
    return subprocess.Popen(
        [
            *("taskset", "-c", ",".join(map(str, sorted(on)))),
            *(sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"),
            *("--no-dashboard", "--local-directory", str(home), *options),
        ],
        env=os.environ | {"HOME": str(home), "TASO_MIRAGE_CACHE": str(home / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
