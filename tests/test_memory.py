"""What a process keeps of its memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
from taso_mirage.system.memory import reuse_memory
if {reused}:
    reuse_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytes(1) * (40 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_memory_of_large_arrays_is_used_again() -> None:
    seen = [
        int(
            subprocess.run([sys.executable, "-c", FAULTS.format(reused=reused)], capture_output=True, check=True).stdout
        )
        for reused in (False, True)
    ]
    assert seen[1] < 100 < seen[0]
