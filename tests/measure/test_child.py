"""ONNX Runtime in a process of its own: a crash, or an endless run, is an error of one line, and
the next call works."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from commandline import run
from onnx import TensorProto, helper

from taso_mirage.errors import RunFailed, RuntimeCrashed
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.measure import child as children
from taso_mirage.measure import native
from taso_mirage.measure.child import Child, child
from taso_mirage.measure.session import Session, interleaved
from taso_mirage.measure.target import CPU
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term

LEAST = np.iinfo(np.int64).min


def small() -> bytes:
    x = variable("x", Tensor("float32", (4,)))
    return serialize(standalone(Graph((x,), (term("relu", x),)), {"": 17}))


def division() -> onnx.ModelProto:
    """The runtime divides with the processor's instruction, which traps at the least integer by
    -1."""
    graph = helper.make_graph(
        [helper.make_node("Div", ["x", "y"], ["z"])],
        "division",
        [helper.make_tensor_value_info(n, TensorProto.INT64, [4]) for n in "xy"],
        [helper.make_tensor_value_info("z", TensorProto.INT64, [4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def endless() -> onnx.ModelProto:
    """A loop of 2^40 turns."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Add", ["a", "a"], ["b"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)],
        "endless",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [helper.make_tensor("turns", TensorProto.INT64, [], [2**40])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def own() -> Iterator[Child]:
    """A child of this test, with its own limit."""
    made, kept = Child(), children._CHILD.get(os.getpid())
    children._CHILD[os.getpid()] = made
    try:
        yield made
    finally:
        made.stop()
        if kept is None:
            del children._CHILD[os.getpid()]
        else:
            children._CHILD[os.getpid()] = kept


def test_a_number_of_an_ended_process_is_of_nothing_in_the_next() -> None:
    """A call of another thread may end the process between sending a weight and using it: then no
    other weight has its number, and the call says why it fails."""
    there = Child()
    (first,) = there.call(native.keep_weights, [np.zeros(4, np.float32)])
    there.stop()
    (second,) = there.call(native.keep_weights, [np.ones(4, np.float32)])
    try:
        assert first != second
        with pytest.raises(RuntimeCrashed, match="another one began"):
            there.call(native.open_session, small(), CPU, False, {"w": first})
        with pytest.raises(RuntimeCrashed, match="another one began"):
            there.call(native.run_prepared, first, {})
    finally:
        there.stop()


def test_a_crash_is_an_error_and_the_next_call_works() -> None:
    values = {"x": np.full(4, LEAST), "y": np.full(4, -1, np.int64)}
    session, other = Session(division().SerializeToString()), Session(small())
    timed = other.prepared({"x": np.ones(4, np.float32)})
    with pytest.raises(RuntimeCrashed, match="ONNX Runtime crashed with SIG"):
        session.run(values)
    assert session.run({**values, "y": np.full(4, 2, np.int64)})[0].tolist() == [LEAST // 2] * 4
    assert timed() > 0
    assert other.run({"x": np.array([-1, 0, 1, 2], np.float32)})[0].tolist() == [0, 0, 1, 2]


def test_a_call_that_does_not_arrive_is_an_error(own: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the process is well: nobody waits for its end."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    session, fed = Session(small()), {"x": np.ones(4, np.float32)}
    session.run(fed)
    with monkeypatch.context() as patched:
        patched.setattr(children, "send", full)
        with pytest.raises(RuntimeCrashed, match="cannot be reached: No space left on device"):
            session.run(fed)
    assert session.run(fed)[0].tolist() == [1.0] * 4


def test_what_takes_too_long_is_given_up(own: Child) -> None:
    session = Session(endless().SerializeToString())
    own.limit = 1.0
    with pytest.raises(RunFailed, match="longer than 1 s for one load or run; run_limit"):
        session.run({"x": np.ones(4, np.float32)})


def test_models_that_end_the_runtime_at_the_command_line(tmp_path: Path) -> None:
    onnx.save(endless(), tmp_path / "endless.onnx")
    options = ["--no-measure", "--budget", "60", "--run-limit", "1", "-o", str(tmp_path / "out.onnx")]
    done = run("optimize", tmp_path / "endless.onnx", *options, check=6)
    assert "ONNX Runtime took longer than 1 s" in done.stderr
    assert children.child().limit == children.LIMIT  # the next command has its own
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.sampled(3)
def test_an_interrupt_ends_a_run_at_once(tmp_path: Path) -> None:
    onnx.save(endless(), tmp_path / "endless.onnx")
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", "endless.onnx", "--no-measure"]
    limits = ["--run-limit", "6000", "--budget", "6000"]
    with subprocess.Popen([*command, *limits], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: _children(process.pid))
        time.sleep(2)  # the original runs
        (at_work,) = _children(process.pid)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in said
    wait_for(lambda: not Path(f"/proc/{at_work}").exists())


@pytest.mark.sampled(2)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    """However the parent ends, while the child is at work."""
    (tmp_path / "endless.onnx").write_bytes(endless().SerializeToString())
    script = textwrap.dedent(
        """
        import numpy as np
        from taso_mirage.measure.child import child
        from taso_mirage.measure.session import Session
        session = Session("endless.onnx")
        print(child()._process.pid, flush=True)
        session.run({"x": np.ones(4, np.float32)})
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        at_work = Path("/proc") / process.stdout.readline().strip()
        assert at_work.exists()
        time.sleep(0.5)
        process.kill()
    wait_for(lambda: not at_work.exists())


def test_the_current_folder_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Child) -> None:
    for name in ("numpy", "json", "onnxruntime"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    assert Session(small()).run({"x": np.ones(4, np.float32)})[0].tolist() == [1.0] * 4


def test_threads_take_turns() -> None:
    session, found = Session(small()), list[list[float]]()
    feeds = [np.full(4, i, np.float32) for i in range(8)]
    threads = [threading.Thread(target=lambda f=f: found.append(session.run({"x": f})[0].tolist())) for f in feeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f.tolist() for f in feeds]


def test_what_is_no_longer_used_is_let_go() -> None:
    session = Session(small())
    number = session.number()
    del session
    Session(small())  # the next call tells the child
    with pytest.raises(RuntimeCrashed):
        child().call(native.run_prepared, number, {})


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (TensorProto.FLOAT16, (np.arange(3_000_000) % 1000).astype(np.float16)),
        (TensorProto.STRING, np.array(["a", "\u00e9" * 1000, ""], object)),
        (TensorProto.BOOL, np.zeros(0, bool)),
    ],
)
def test_large_arrays_of_every_kind_go_there_and_back(kind: int, array: np.ndarray) -> None:
    x, y = (helper.make_tensor_value_info(n, kind, ["n"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (found,) = Session(made.SerializeToString()).run({"x": array})
    assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())


def test_peers_of_another_kind_are_timed_beside_a_session() -> None:
    class Peer:
        def prepared(self, inputs: object) -> object:
            return lambda: 1.0

    ours, peers = interleaved([Session(small()), Peer()], {"x": np.ones(4, np.float32)}, 0.1, least=2)  # type: ignore[list-item]
    assert set(peers) == {1.0}
    assert 1.0 not in ours


def wait_for(true: object, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
