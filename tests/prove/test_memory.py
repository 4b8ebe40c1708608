"""The memory that a process keeps."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections import Counter

import onnx
import pytest
import z3
from fuzz.generated.model import random_model

import taso_mirage
from taso_mirage.ir.terms import Tensor, constant, variable
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules import proofs
from taso_mirage.prove.symbolic import Proved, prove_symbolic

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


ENDED = """
import gc, sys
from taso_mirage import cli
from taso_mirage.cli import commands
commands.main = lambda began: sys.exit(5)
try:
    cli.main()
finally:
    print(gc.get_freeze_count() > 0, gc.isenabled())
"""


def test_a_command_looks_for_no_garbage_at_its_end() -> None:
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "True False\n"), done.stderr


def test_the_state_of_z3_ends_with_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folds of a proof wait for the garbage collector; Z3's state, whose memory the next proof
    gets, does not."""
    made: list[weakref.ref[z3.Context]] = []

    class Noted(z3.Context):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr(z3, "Context", Noted)
    x = term("tanh", term("softmax", variable("x", Tensor("float32", (2, 3))), axis=1))
    clipped = term("clip", x, constant(-2.0, "float32"), constant(2.0, "float32"))
    gc.disable()
    try:
        assert isinstance(prove_symbolic([clipped], [x]), Proved)
        assert [each() for each in made] == [None]
    finally:
        gc.enable()


def objects() -> Counter[str]:
    """How many objects there are of each class that are not frozen, once garbage is gone. One
    collection may free objects that only then leave others as garbage."""
    while gc.collect():
        pass
    return Counter(type(each).__name__ for each in gc.get_objects())


ALL = 600.0
"""Seconds of which a search of a small model needs less than one."""


@pytest.mark.sampled(3)
def test_calls_of_the_api_leave_no_objects_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are of the same models and of others, and every search comes to its end. What
    earlier tests keep is not visited: that takes half a minute late in a run."""
    gc.freeze()
    models = [onnx.load_from_string(random_model(seed)) for seed in (7, 12)]
    monkeypatch.setattr(proofs, "_FOUND", {})
    monkeypatch.setattr(proofs, "MOST", 8)

    def calls(count: int) -> None:
        for i in range(count):
            taso_mirage.optimize(models[i % 2], measure=False, kernels="off", budget=ALL)

    def growth() -> Counter[str]:
        before = objects()
        calls(6)
        return objects() - before

    calls(4)
    rounds = [growth() for _ in range(3)]
    assert min(sum(each.values()) for each in rounds) < 50, [each.most_common(5) for each in rounds]
    known = objects()["Model"]
    for seed in range(2, 8):
        taso_mirage.optimize(onnx.load_from_string(random_model(seed)), measure=False, kernels="off", budget=ALL)
    assert 0 < len(proofs._FOUND) <= proofs.MOST
    assert objects()["Model"] <= known
