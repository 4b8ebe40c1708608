"""`--scheduler`: the workers of a Dask scheduler optimize models, and give the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from dask_workers import pool
from onnx import helper, numpy_helper
from small_models import relus
from typer.testing import CliRunner

import taso_mirage
from taso_mirage import api
from taso_mirage.cli.commands import app
from taso_mirage.errors import InvalidModel, InvalidOption
from taso_mirage.folder import Folder
from taso_mirage.measure.cluster import Line, NotBegun
from taso_mirage.operators.ops import term
from taso_mirage.report.result import OperatorTimes
from taso_mirage.report.sent import packed, unpacked
from taso_mirage.search.config import Stop

ADDRESS = "tcp://host:8786"


class Here:
    """A cluster whose only worker is this process."""

    count = 1

    def __init__(self) -> None:
        self.names: list[str] = []
        self.alone = Lock()

    def run(self, function: Any, *args: Any, hear: Any, stop: Any = None, spread: bool = False) -> Any:
        if stop is not None and stop.asked:
            raise NotBegun("interrupted")
        self.names.append(function.__name__)
        line = Line("task", SimpleNamespace())
        line.tell = hear  # type: ignore[method-assign]
        with self.alone:  # as a worker
            return function(line, *args)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    made = Here()

    @contextmanager
    def cluster(address: str, target: Any) -> Iterator[Here]:
        assert address == ADDRESS
        yield made

    monkeypatch.setattr(api, "cluster", cluster)
    monkeypatch.setattr("taso_mirage.measure.cluster.cluster", cluster)
    return made


def _scaled(path: Path) -> None:
    """A model with weights in a file beside it, and an elementwise chain."""
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 64]) for name in "xy")
    w = numpy_helper.from_array(np.random.default_rng(1).normal(size=(64, 64)).astype("float32"), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        *[helper.make_node("Relu", [a], [b]) for a, b in ("ab", "by")],
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def test_a_worker_gives_the_same_files_and_the_same_result(here: Here, tmp_path: Path) -> None:
    _scaled(tmp_path / "m.onnx")
    heard: list[str] = []
    results = []
    for name, asked in (("local", None), ("there", ADDRESS)):
        (tmp_path / name).mkdir()
        _, result = taso_mirage.optimize(
            str(tmp_path / "m.onnx"),
            effort="quick",
            output=tmp_path / name / "o.onnx",
            certificate=tmp_path / name / "c.json",
            report=tmp_path / name / "r.html",
            trace=tmp_path / name / "trace",
            shape="n:3",
            scheduler=asked,
            progress=lambda stage, done, total: heard.append(stage) if here.names else None,
            return_result=True,
        )
        results.append(result)
    assert here.names == ["_on_worker"]
    assert {"passes", "check", "write"} <= set(heard)
    local, there = results
    assert there.changed
    assert there.written == tuple(tmp_path / "there" / path.name for path in local.written)
    assert there.model.graph == local.model.graph
    assert (there.changes, there.notes) == (local.changes, local.notes)
    assert [(step.old, step.new) for step in there.steps] == [(step.old, step.new) for step in local.steps]
    assert there.spending.seconds > 0
    same = [p.relative_to(tmp_path / "local") for p in (tmp_path / "local").rglob("*") if p.is_file()]
    assert {p.name for p in same} > {"o.onnx", "c.json", "r.html", "index.tsv", "weights.tsv"}
    for each in same:
        if each.name not in ("index.tsv", "r.html"):  # which contain seconds
            assert (tmp_path / "there" / each).read_bytes() == (tmp_path / "local" / each).read_bytes(), each
    page = (tmp_path / "there" / "r.html").read_text()
    assert str(tmp_path / "there" / "o.onnx") in page
    assert "m.onnx" in page


def test_kernels_are_made_where_the_model_is_measured(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relus(tmp_path / "m.onnx", 2)
    made: list[Any] = []
    monkeypatch.setattr(api, "_on_worker", lambda line, contents, asked, shown: made.append(asked) or _stop_here())
    for asked in ({}, {"kernels": "search"}):
        with pytest.raises(InvalidModel, match="seen"):
            taso_mirage.optimize(str(tmp_path / "m.onnx"), scheduler=ADDRESS, target="cuda", **asked)  # type: ignore[call-overload]
    assert [each.config().kernels for each in map(_on_cpu, made)] == ["search", "search"]


def _stop_here() -> None:
    raise InvalidModel("seen")


def _on_cpu(asked: Any) -> Any:
    """The options that a worker got, for the target that every machine has."""
    return replace(asked, target="cpu")


def test_a_model_in_memory_and_the_words_of_a_worker(here: Here) -> None:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in (("x", "v"), ("v", "y"))]
    given = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    local, there = (taso_mirage.optimize(given, effort="quick", scheduler=each) for each in (None, ADDRESS))
    assert there.SerializeToString() == local.SerializeToString()
    assert len(there.graph.node) == 1
    with pytest.raises(InvalidOption, match="may_grow: a worker of scheduler cannot call a function"):
        taso_mirage.optimize(given, scheduler=ADDRESS, may_grow=lambda said: True)


def test_a_folder_goes_to_workers_and_an_interrupt_leaves_the_rest(here: Here, tmp_path: Path) -> None:
    for name in ("a", "b"):
        relus(tmp_path / "zoo" / f"{name}.onnx", 2)
    (tmp_path / "zoo" / "c.onnx").write_bytes(b"no model")
    stopped = Stop()
    stopped()
    folder = Folder(tmp_path / "zoo", tmp_path / "out", {"effort": "quick", "scheduler": ADDRESS})
    assert "on the workers of tcp://host:8786" in folder.plan
    with folder.locked():
        assert list(folder.optimize_on(here, stopped)) != []  # type: ignore[arg-type]
    assert {row["state"] for row in folder.rows.values()} == {"waiting", "failed"}
    found = CliRunner().invoke(
        app,
        ["optimize", str(tmp_path / "zoo"), "-o", str(tmp_path / "out"), "--effort", "quick", "--scheduler", ADDRESS],
    )
    assert found.exit_code == 3, found.output
    assert found.stdout.count("faster") == 3  # two rows, and the sum
    rows = json.loads((tmp_path / "out" / "index.json").read_text())["models"]
    assert [row["state"] for row in rows] == ["faster", "faster", "failed"]
    again = CliRunner().invoke(
        app, ["optimize", str(tmp_path / "zoo"), "-o", str(tmp_path / "out"), "--effort", "quick"]
    )
    assert "2 done before, 1 to do" in again.stderr  # the result does not depend on the place


def test_results_are_sent_however_deep_the_terms_are(here: Here, tmp_path: Path) -> None:
    relus(tmp_path / "m.onnx", 2)
    _, result = taso_mirage.optimize(
        tmp_path / "m.onnx", effort="quick", output=tmp_path / "o.onnx", return_result=True
    )
    deep = result.original.graph.outputs[0]
    for _ in range(3_000):
        deep = term("tanh", deep)
    given = replace(result, times=OperatorTimes({deep: 1.0}, {}))
    assert unpacked(packed(given), result.original, result.model).times == given.times


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    for i in range(4):
        relus(tmp_path / "zoo" / f"{i}.onnx", 200 + i, (64, 64))
    asked = ["--effort", "quick"]
    local = CliRunner().invoke(app, ["optimize", str(tmp_path / "zoo"), "-o", str(tmp_path / "local"), *asked])
    assert local.exit_code == 0
    with pool(tmp_path / "pool", 2) as there:
        folder = Folder(tmp_path / "zoo", tmp_path / "there", {"effort": "quick", "scheduler": there.address})
        begun = Event()
        Thread(target=lambda: (begun.wait(600), there.kill(0))).start()
        with folder.locked(), taso_mirage.measure.cluster.cluster(there.address, folder.target) as workers:
            usual = workers._heard
            for row, _ in folder.optimize_on(workers):
                begun.set()  # the first model is done, and others are being worked at
                assert row["state"] == "faster", row["error"]
            assert not usual
        assert there.processes[0].wait(600) != 0
    for i in range(4):
        assert (tmp_path / "there" / f"{i}.onnx").read_bytes() == (tmp_path / "local" / f"{i}.onnx").read_bytes()


@pytest.mark.slow
def test_another_worker_tunes_kernels_of_a_model(tmp_path: Path) -> None:
    """Two workers with homes and caches of their own: one measures the model and has all kernels
    then."""
    shapes = ("64,256", "128,256", "96,384", "64,512", "32,1024", "160,160")
    inputs, outputs = (", ".join(f"float[{shape}] {name}{i}" for i, shape in enumerate(shapes)) for name in "xy")
    body = "".join(
        f"a{i} = Sigmoid(x{i}) b{i} = Mul(a{i}, x{i}) c{i} = Tanh(b{i}) d{i} = Add(c{i}, x{i}) y{i} = Mul(d{i}, b{i})"
        for i in range(len(shapes))
    )
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    onnx.save(onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {body} }}"), tmp_path / "m.onnx")
    with pool(tmp_path / "pool", 2, pinned=True) as there:
        _, result = taso_mirage.optimize(
            tmp_path / "m.onnx", budget=120.0, kernels="search", scheduler=there.address, return_result=True
        )
    assert any(note.startswith("other workers tuned ") for note in result.notes), result.notes
    kept = [len([*(tmp_path / "pool").glob(f"worker{i}/cache/kernels/*.json")]) for i in (0, 1)]
    assert sorted(kept) == [0, len(shapes)]


@pytest.mark.slow
def test_a_measured_model_is_measured_on_a_worker_with_its_own_cache(tmp_path: Path) -> None:
    _scaled(tmp_path / "m.onnx")
    with pool(tmp_path / "pool", 1) as there:
        _, result = taso_mirage.optimize(
            str(tmp_path / "m.onnx"), budget=10.0, scheduler=there.address, return_result=True
        )
    assert result.machine is not None
    assert "onnxruntime" in result.machine
    assert (tmp_path / "pool" / "worker0" / "cache" / "costs.sqlite").exists()
    assert not any("--scheduler" in note for note in result.notes)
