"""The README's tables are those of the committed results, and the benchmark of the optimizer counts
only right results."""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from scripts import ROOT, script
from sources import nodes

from models.real import KNOWN
from taso_mirage.emit import tune
from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.measure.check import check_cases
from taso_mirage.onnx_io import load


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("optimize")


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    return script("peers")


@pytest.mark.lint
def test_readme_tables_are_generated_from_the_results() -> None:
    done = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, "run `python bench/tables.py`"


@pytest.mark.lint
def test_the_shipped_library_is_that_of_the_measured_run() -> None:
    """The shipped library is the one of the measured `generate --ops 4`, or the one with guards
    that were written since, as its row says."""
    rows = json.loads((ROOT / "bench" / "results" / "generate-cpu2.json").read_text())["rows"]
    known = [said.get("sha256") for row in rows for said in (row, row.get("guarded", {}))]
    assert script("generate").digest(ROOT / "substitutions") in known


def module_file(name: str) -> Path | None:
    """The file of a module of the package; None where it has none."""
    place = ROOT.joinpath(*name.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def defined(file: Path) -> set[str]:
    """The names that a module defines or imports, at any depth."""
    found = nodes(file)
    names = {n.name for n in found if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    names |= {n.id for n in found if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {(n.asname or n.name).partition(".")[0] for n in found if isinstance(n, ast.alias)}


def missing(source: str) -> Iterator[str]:
    """The names that a script imports from the package and that are not there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "taso_mirage":
            file = module_file(str(node.module))
            there = {"__getattr__"} if file is None else defined(file)
            for each in node.names:
                name = f"{node.module}.{each.name}"
                if file is None or not (each.name in there or "__getattr__" in there or module_file(name)):
                    yield name


@pytest.mark.lint("bench", "taso_mirage")
def test_names_that_benchmarks_import_exist() -> None:
    found = {file.name: [*missing(file.read_text())] for file in sorted((ROOT / "bench").glob("*.py"))}
    assert {name: each for name, each in found.items() if each} == {}


def test_a_name_that_was_moved_is_missing() -> None:
    source = "from taso_mirage.ir.mugraph import Lowering, moved\nfrom taso_mirage.gone import f\n"
    assert [*missing(source)] == ["taso_mirage.ir.mugraph.moved", "taso_mirage.gone.f"]


@pytest.mark.parametrize("name", ["kernels_h100", "end_to_end_h100"])
def test_without_a_gpu_its_benchmarks_say_so(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def absent() -> str:
        raise RuntimeUnavailable("there is no CUDA device to measure on")

    monkeypatch.setattr(tune, "gpu_and_versions", absent)
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit) as ended:
        script(name).main()
    assert ended.value.code == 2
    assert "error: there is no CUDA device to measure on" in capsys.readouterr().err


def doubled(source: Path, target: Path) -> None:
    """The model with all its matrices doubled."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        if len(tensor.dims) == 2:
            tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, target)


def cut_off(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes()[:100])


TOOLS: dict[str, Callable[[Path, Path], Any]] = {"same": shutil.copy, "wrong": doubled, "damaged": cut_off}


@pytest.mark.sampled(3)
def test_a_peer_that_fails_or_is_wrong_has_a_note_and_no_file(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(tool: str, source: Path, target: Path, kind: str, limit: float) -> str | None:
        if tool == "failing":
            return "ValueError: no such operator"
        TOOLS[tool](source, target)
        return None

    source = ROOT / "models" / "mini_transformer.onnx"
    model = load(source)
    cases = list(check_cases(model, peers.runtime.Session(str(source)), {}))
    monkeypatch.setattr(peers, "put", put)
    notes: list[str] = []
    names = {name: name for name in (*TOOLS, "failing")}
    assert peers.right(names, source, model, cases, tmp_path, notes) == {"same": tmp_path / "same.onnx"}
    assert notes[0].startswith("wrong is wrong: output 'last_hidden_state' on random inputs 1: error ")
    assert notes[1].startswith("damaged does not run: ONNX Runtime cannot load the model")
    assert str(tmp_path) not in notes[1]
    assert notes[2] == "failing failed: ValueError: no such operator"


@pytest.mark.sampled(5)
def test_a_tool_runs_in_a_process_of_its_own_and_says_why_it_fails(peers: ModuleType, tmp_path: Path) -> None:
    source, target = ROOT / "models" / "mini_transformer.onnx", tmp_path / "made.onnx"
    assert peers.put("onnxruntime.transformers", source, target, "bert", 100.0) is None
    assert len(onnx.load(target).graph.node) < len(onnx.load(source).graph.node)
    target.unlink()
    why = peers.put("onnxruntime.transformers", tmp_path / "absent.onnx", target, "bert", 100.0)
    assert "absent.onnx" in why
    assert peers.put("onnxruntime.transformers", source, target, "bert", 0.01) == "over 0 s"
    assert not target.exists()


def test_times_beside_the_peers_are_at_the_sizes_that_the_run_settled_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = script("real")
    file = tmp_path / "gated.onnx"
    gate, x = (
        onnx.helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (("gate", onnx.TensorProto.INT64, []), ("x", onnx.TensorProto.FLOAT, ["n", 4]))
    )
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])
    nodes = [onnx.helper.make_node("Cast", ["gate"], ["g"], to=1), onnx.helper.make_node("Mul", ["x", "g"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "gated", [gate, x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    seen: list[Any] = []

    def timed(opening: Any, inputs: Any, seconds: float, sessions: int) -> dict[str, list[float]]:
        seen.append(inputs)
        return {name: [1.0, 1.0] for name in opening}

    monkeypatch.setattr(bench, "timed", timed)
    monkeypatch.setattr(bench, "right", lambda *_: {"onnxsim": file})
    options = argparse.Namespace(limit=10.0, seconds=1.0, sessions=1, kernels="off")
    said = {"sizes": [{"sizes": {"n": 6}}], "integers": {"gate": 3}, "changed": False}
    row = bench.beside(KNOWN["gru"], file, tmp_path / "out.onnx", said, options)
    assert (seen[0]["gate"], seen[0]["x"].shape) == (3, (6, 4))
    assert (row["times"]["best_peer"], row["times"]["ratio_best_peer"]) == ("onnxruntime", 1.0)


def test_the_table_of_real_models_has_rows_with_and_without_times() -> None:
    tables = script("real_table")
    row = {"budget": 10, "seconds": 9.0, "peak_mb": 100.0, "model_mb": 1.0, "checked": "3 of 3", "ratio": 1.25}
    times = {"ours": 1e3, "baselines": {"onnxruntime": 2e3, "onnxsim": 1500.0}, "quartiles": [1.9, 2.1]}
    times |= {"ratio": 2.0, "best_peer": "onnxsim", "ratio_best_peer": 1.5}
    cases = ("ppocr_a", "ppocr_b", "magika", "nudenet", "gru", "gru_torchscript")
    rows = [{"case": cases[0], "ended": "changed", **row, "times": times}]
    rows += [{"case": cases[1], "ended": "changed", **row}]
    rows += [{"case": cases[2], "ended": "kept", **row}, {"case": cases[3], "ended": "exit 5", **row, "checked": None}]
    found = {"rows": rows, "kernels": "off", "device": "a CPU", "versions": {"onnxruntime": "1"}}
    lines = tables.real(found)
    exported = {"rows": [{"case": case, "ended": "kept", **row} for case in cases[3:]]}
    assert [line.split()[1] for line in tables.exports(exported)[2:]] == ["gru"]
    assert [line.split()[1] for line in tables.torchscript(exported)[2:]] == ["gru_torchscript"]
    assert lines[2] == (
        "| ppocr_a | changed | 3 of 3 | 9 of 10 | 100 of 1.0 | 1 | 2 | none | 1.5 | none | none "
        "| 2.00 (1.90 to 2.10) | onnxsim | 1.50 |"
    )
    assert [line.count("|") for line in lines[:6]] == [lines[0].count("|")] * 6
    assert "3 of 4 ended without an error, 1 of them kept" in lines[-1]
    assert "geometric mean 1.357, least 1.000" in lines[-1]


def test_ratios_are_those_of_lower_quartiles_and_of_medians(peers: ModuleType) -> None:
    found = peers.figures({"onnxruntime": [4.0, 4.0, 8.0], "onnxslim": [3.0, 3.0, 9.0], "ours": [2.0, 4.0, 4.0]})
    assert (found["ratio"], found["median_ratio"]) == (round(4 / 3, 4), 1.0)
    assert (found["best_peer"], found["ratio_best_peer"], found["median_ratio_best_peer"]) == ("onnxslim", 1.0, 0.75)
    assert found["quartiles"] == [1.5, 2.0]
    assert found["ours"] == 3e6


def test_a_model_that_was_kept_has_ratio_one_to_itself(peers: ModuleType) -> None:
    found = peers.figures({"onnxruntime": [4.0, 5.0], "onnxsim": [2.0, 2.0]})
    assert (found["ratio"], found["spread"], found["ratio_best_peer"]) == (1.0, 0.0, round(2 / 4.25, 4))


def test_shares_of_the_profile_name_the_operators(bench: ModuleType) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "x"], ["y"])], "product", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    assert bench.shares(model.SerializeToString(), {"x": np.ones((2, 2), np.float32)}) == {"MatMul": 1.0}
