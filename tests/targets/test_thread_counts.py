"""The number of threads: in measurements, kernels, the file's stamp, and the session on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import commandline
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper as h
from protos import F, V, proto

import taso_mirage
from taso_mirage.devices.stamp import Stamp, read_stamp
from taso_mirage.errors import InvalidOption
from taso_mirage.lowering import cpu
from taso_mirage.lowering.backend import here
from taso_mirage.measure.target import CPU, on_threads
from taso_mirage.report.html import headline
from taso_mirage.runtime.register import metadata


def twice_negated() -> onnx.ModelProto:
    nodes = [h.make_node("Neg", ["x"], ["m"]), h.make_node("Neg", ["m"], ["n"]), h.make_node("Tanh", ["n"], ["y"])]
    return proto(nodes, [V("x", F, [64])], [V("y", F, [64])])


def threads_of(session: Any) -> int:
    return int(session.get_session_options().intra_op_num_threads)


def test_a_file_keeps_the_number_and_its_session_has_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _, result = taso_mirage.optimize(
        twice_negated(), output=path, threads=1, kernels="off", budget=2, return_result=True
    )
    assert result.changed
    assert headline(result).endswith(", measured on cpu with 1 thread.")
    assert read_stamp(metadata(path)) == Stamp("cpu", (("threads", "1"),))
    assert threads_of(taso_mirage.session(path)) == 1
    own = onnxruntime.SessionOptions()
    own.intra_op_num_threads = 3
    assert threads_of(taso_mirage.session(path, options=own)) == 3
    assert threads_of(taso_mirage.session(path, "cpu")) == 0
    x = np.linspace(-2, 2, 64, dtype=np.float32)
    np.testing.assert_allclose(onnxruntime.InferenceSession(path).run(None, {"x": x})[0], np.tanh(x), rtol=1e-5)


def test_the_command_says_the_number(tmp_path: Path) -> None:
    onnx.save(twice_negated(), tmp_path / "m.onnx")
    done = commandline.run("optimize", tmp_path / "m.onnx", "--threads", "2", "--effort", "quick")
    assert "measured on cpu with threads=2" in done.stdout
    assert "; any ONNX Runtime opens it, too" in done.stdout


@pytest.mark.parametrize("threads", [1, 2])
def test_sessions_of_measurements_have_the_number(threads: int) -> None:
    target, content = on_threads(CPU, threads), twice_negated().SerializeToString()
    opened = [each.open(content, False, {}) for each in (target, target.resting, target.serial)]
    assert [threads_of(each._session) for each in opened] == [threads, threads, 1]
    assert target.serial == CPU.serial
    assert on_threads(target, 4) == on_threads(CPU, 4)


def test_kernels_are_tuned_on_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def tuned(graphs: Any, threads: int, seconds: float) -> Any:
        asked.append(threads)
        raise InterruptedError

    monkeypatch.setattr(cpu, "tuned_native", tuned)
    backends = [here(on_threads(CPU, 1)), here(on_threads(CPU, 7)), here(CPU)]
    assert len({each.key for each in backends}) == 3
    for backend in backends:
        with pytest.raises(InterruptedError):
            backend.fastest(None, [], 0.0)  # type: ignore[arg-type]
    assert asked == [1, 7, cpu.cores()]


def test_other_targets_take_no_number() -> None:
    with pytest.raises(InvalidOption, match="threads=2: cuda takes no number of threads"):
        taso_mirage.optimize(twice_negated(), target="cuda", threads=2)


@pytest.mark.parametrize("threads", [0, -1, 2.5, True, 1025, "2"])
def test_what_is_no_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(InvalidOption, match="it is a whole number from 1 to 1024"):
        taso_mirage.optimize(twice_negated(), threads=threads)
