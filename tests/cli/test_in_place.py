"""The model as its own output: refused on every way to it, or replaced at once and whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from commandline import one_line, run
from onnxruntime import InferenceSession
from small_models import shortened

import taso_mirage
from taso_mirage.errors import InvalidOption

QUICK = ("--no-measure", "--kernels", "off", "--budget", "0")
X = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "m.onnx").write_bytes(shortened().SerializeToString())
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    (tmp_path / "linked").symlink_to(".")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def results(path: Path) -> np.ndarray:
    found: np.ndarray = InferenceSession(path).run(None, {"x": X})[0]
    return found


WAYS = ("m.onnx", "./m.onnx", "link.onnx", "below/../m.onnx", "linked/m.onnx", "{}/m.onnx")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["m.onnx", "link.onnx"])
def test_the_model_is_no_output(folder: Path, model: str, way: str) -> None:
    before, output = (folder / "m.onnx").read_bytes(), way.format(folder)
    said = "would overwrite the model; name another file, or pass "
    assert f"{said}--in-place" in one_line(run("optimize", model, *QUICK, "-o", output, check=2))
    for kind in (str, Path):
        with pytest.raises(InvalidOption, match=f"{said}in_place=True"):
            taso_mirage.optimize(kind(model), output=kind(output), measure=False, kernels="off", budget=0)
    assert (folder / "m.onnx").read_bytes() == before
    assert (folder / "link.onnx").is_symlink()


def test_nor_is_another_name_of_its_file(folder: Path) -> None:
    (folder / "other.onnx").hardlink_to(folder / "m.onnx")
    (folder / "m.optimized.onnx").symlink_to("m.onnx")
    for output in (("-o", "other.onnx"), ()):
        assert "would overwrite the model" in one_line(run("optimize", "m.onnx", *QUICK, *output, check=2))


def test_in_place_replaces_what_a_link_leads_to(folder: Path) -> None:
    before, wanted = (folder / "m.onnx").read_bytes(), results(folder / "m.onnx")
    run("optimize", "link.onnx", *QUICK, "--in-place")
    assert (folder / "link.onnx").is_symlink()
    assert (folder / "m.onnx").read_bytes() != before
    np.testing.assert_array_equal(results(folder / "m.onnx"), wanted)
    assert taso_mirage.optimize("m.onnx", in_place=True, measure=False, kernels="off", budget=0) == str(
        folder / "m.onnx"
    )
    assert {each.name for each in folder.iterdir()} == {"m.onnx", "below", "link.onnx", "linked"}


def test_in_place_is_of_one_model_in_a_file(folder: Path) -> None:
    assert "leave --output out" in one_line(run("optimize", "m.onnx", *QUICK, "--in-place", "-o", "x.onnx", check=2))
    run("optimize", "m.onnx", *QUICK, "--in-place", "-o", "./m.onnx")
    assert "is for one model" in one_line(run("optimize", folder, *QUICK, "--in-place", check=2))
    with pytest.raises(InvalidOption, match="in memory"):
        taso_mirage.optimize(shortened(), in_place=True)


def outside(path: Path) -> None:
    """The model with its weights in `NAME.data`, of which some stay."""
    model = shortened()
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.arange(512, dtype=np.float32).reshape(32, 4, 4), "v")
    )
    model.graph.output[0].type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=32))
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)


KILLED = """
import os, signal, sys
from pathlib import Path
from taso_mirage.onnx_io.files import load, save
model, at, seen = load("m.onnx"), int(sys.argv[1]), 0
def counted(name):
    original = getattr(os, name)
    def call(*args, **options):
        global seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **options)
    setattr(os, name, call)
for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync", "open"):
    counted(name)
save(model, Path("m.onnx"))
"""


@pytest.mark.sampled(5)
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_kill_at_any_moment_leaves_a_whole_model(folder: Path) -> None:
    """With its weights in a file beside it, which are another file afterwards."""
    outside(folder / "m.onnx")
    wanted, codes = results(folder / "m.onnx"), []
    whole = {name: (folder / name).read_bytes() for name in ("m.onnx", "m.onnx.data")}
    for at in range(1, 60):
        for each in folder.glob("*.data"):
            each.unlink()
        for name, content in whole.items():
            (folder / name).write_bytes(content)
        codes.append(subprocess.run([sys.executable, "-c", KILLED, str(at)], cwd=folder).returncode)
        onnx.checker.check_model(folder / "m.onnx")
        np.testing.assert_array_equal(results(folder / "m.onnx"), wanted)
        if codes[-1] == 0:
            break
    assert codes[-1] == 0
    assert len(codes) > 5
    assert len(list(folder.glob("*.data"))) == 1
    assert not (folder / "m.onnx.data").exists()


def test_weights_that_another_model_has_stay(folder: Path) -> None:
    outside(folder / "m.onnx")
    (folder / "second.onnx").write_bytes((folder / "m.onnx").read_bytes())
    wanted = results(folder / "m.onnx")
    for _ in range(2):
        run("optimize", "m.onnx", *QUICK, "--in-place")
        np.testing.assert_array_equal(results(folder / "second.onnx"), wanted)
        np.testing.assert_array_equal(results(folder / "m.onnx"), wanted)
    os.unlink(folder / "second.onnx")
