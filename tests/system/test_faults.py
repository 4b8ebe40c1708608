"""Faults of the machine at every place: each call that changes a file fails once, and memory ends
at every size."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from small_models import shortened

from taso_mirage.devices.cpu.compiler import compiler
from taso_mirage.errors import RunFailed
from taso_mirage.measure import child as children
from taso_mirage.measure.child import Child
from taso_mirage.measure.session import Session

HERE = Path(__file__).parents[1] / "harness"
COMMAND = "optimize m.onnx --no-measure --kernels off --budget 0 -o out.onnx --certificate c.json --report r.html"
OUTPUTS = {"out.onnx", "c.json", "r.html"}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run([compiler()[0], "-shared", "-fPIC", "-O1", HERE / "faults.cpp", "-o", made, "-ldl"], check=True)
    return made


@pytest.mark.sampled(3)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD")
@pytest.mark.parametrize(
    ("number", "lasts", "step"),
    [
        (errno.ENOSPC, 0, 7),
        pytest.param(errno.ENOSPC, 0, 1, marks=pytest.mark.slow),
        pytest.param(errno.EIO, 0, 1, marks=pytest.mark.slow),
        pytest.param(errno.ENOSPC, 1, 1, marks=pytest.mark.slow),
    ],
)
def test_whatever_call_fails_files_are_whole(tmp_path: Path, shim: Path, number: int, lasts: int, step: int) -> None:
    """Each output is the old one, or the new one; nothing else is left; the exit code says whether
    all were written. Each `step`-th call fails."""
    (tmp_path / "given").mkdir()
    for name in ("m.onnx", *OUTPUTS):
        (tmp_path / "given" / name).write_bytes(shortened().SerializeToString())
    command = [
        sys.executable,
        str(HERE / "faults.py"),
        str(tmp_path),
        *map(str, (number, lasts, step)),
        *COMMAND.split(),
    ]
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    environment = os.environ | {"LD_PRELOAD": str(shim), "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    whole, *runs = map(json.loads, done.stdout.splitlines())
    assert (whole["code"], whole["said"]) == (0, "")
    old, new = whole["files"]["m.onnx"], whole["files"]
    assert len({old, *new.values()}) == 4
    for each in runs:
        assert set(each["files"]) == {"m.onnx", *OUTPUTS}, each
        assert each["files"]["m.onnx"] == old, each
        assert not each["left"], each
        written = {name for name in OUTPUTS if each["files"][name] != old}
        assert all(each["files"][name] == new[name] for name in written & {"out.onnx"}), each
        assert each["code"] in (0, 4), each
        assert len(each["said"].splitlines()) == (1 if each["code"] else 0), each
        assert "internal error" not in each["said"], each
        assert each["code"] or written == OUTPUTS, each
    assert sum(each["code"] == 4 for each in runs) > 15 / step
    assert runs[-1]["code"] == 0


# ---------------------------------------------------------------- memory of the runtime's process


def growing() -> bytes:
    """Values of 1 to 256 MB."""
    nodes = [helper.make_node("Concat", [f"t{i}", f"t{i}"], [f"t{i + 1}"], axis=0) for i in range(8)]
    x = helper.make_tensor_value_info("t0", TensorProto.FLOAT, [2**18])
    y = helper.make_tensor_value_info("t8", TensorProto.FLOAT, [2**26])
    graph = helper.make_graph(nodes, "g", [x], [y])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )


def held() -> int:
    """Bytes of data that this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData"))


def bounded(more: int) -> None:
    """Let this process take so many bytes more."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (min(held() + more, most), most))


@pytest.mark.sampled(5)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "steps", [(4000, 300, 20, 0), pytest.param((4000, 700, 500, 300, 100, 20, 3, 1, 0), marks=pytest.mark.slow)]
)
def test_wherever_memory_ends_it_is_an_error_of_one_line(steps: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process with the runtime has less and less: at the load, in the run, and where its answer
    is packed."""
    own, failed = Child(), []
    monkeypatch.setitem(children._CHILD, os.getpid(), own)
    feed = {"t0": np.ones(2**18, np.float32)}
    try:
        for more in steps:
            own.call(bounded, more * 2**20)
            said = ran(feed)
            assert "\n" not in said
            failed += [more] if said else []
            own.stop()
        assert {more for more in steps if more <= 20} <= set(failed)
        assert 4000 not in failed
        assert not ran(feed)
    finally:
        own.stop()


def ran(feed: dict[str, np.ndarray]) -> str:
    """The error message of a run; empty where it does not fail."""
    try:
        return "" if Session(growing()).run(feed)[0].shape == (2**26,) else "a wrong result"
    except RunFailed as error:
        return str(error)
