"""The command line as users meet it: results, exit codes, one-line errors, interrupts, and nothing
half-written."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from commandline import one_line, result_of, run, run_apart
from onnx import TensorProto, helper

from taso_mirage.measure.session import working_providers

ROOT = Path(__file__).parents[2]
MINI = ROOT / "models" / "mini_transformer.onnx"


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    path = tmp_path / "dynamic.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_optimize_writes_an_equal_model_and_a_table(dynamic: Path, tmp_path: Path) -> None:
    done = run_apart("optimize", dynamic, "-o", tmp_path / "out.onnx", "--no-measure")
    assert re.search(r"relu +│ +2 │ +1 │", done.stdout)
    assert re.search(r"^equations: relu\.\d+ \(1\)$", done.stdout, re.MULTILINE)
    assert done.stderr == ""  # no progress when stderr is no terminal
    model = onnx.load(tmp_path / "out.onnx")
    assert [n.op_type for n in model.graph.node] == ["Relu"]
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    for batch in (1, 5):
        array = np.random.default_rng(0).normal(size=(batch, 8)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": array})[0], np.maximum(array, 0))


def test_json_and_default_output_name(dynamic: Path) -> None:
    found = result_of(run("optimize", dynamic, "--no-measure", "--json", "--shape", "batch:3"))
    assert found["changed"] is True
    assert found["nodes"] == {"before": 2, "after": 1}
    assert all(row["passed"] for row in found["check"])
    assert Path(found["written"][0]).name == "dynamic.optimized.onnx"


def test_several_sets_of_sizes(dynamic: Path) -> None:
    shapes = ["--shape", "batch:3@3", "--shape", "x:5,8@1"]
    found = result_of(run("optimize", dynamic, "--no-measure", "--json", *shapes))
    assert [(row["sizes"], row["share"]) for row in found["sizes"]] == [({"batch": 3}, 0.75), ({"batch": 5}, 0.25)]
    assert "random inputs at batch=5" in {row["case"] for row in found["check"]}
    assert "only `optimize` takes weights" in one_line(run("inspect", dynamic, "--shape", "batch:3@3", check=2))


def test_inputs_from_a_file(dynamic: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((4, 8), np.float32))
    found = result_of(run("optimize", dynamic, "--no-measure", "--json", "--inputs", tmp_path / "in.npz"))
    assert found["check"][0]["case"] == "the given inputs 1"


def test_inspect_says_what_is_opaque_and_why(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    done = run("inspect", tmp_path / "m.onnx")
    assert "NonZero" in done.stdout
    assert "no operator specification" in done.stdout
    assert json.loads(run("inspect", tmp_path / "m.onnx", "--json").stdout)["opaque"][0]["node"] == "NonZero"


def test_doctor() -> None:
    found = json.loads(run_apart("doctor", "--json").stdout)
    assert found["providers"]["CPUExecutionProvider"] is True
    assert found["laws"] > 50
    assert "execution providers" in run("doctor").stdout


def test_help_lists_the_commands_and_exit_codes() -> None:
    assert "Exit codes" in run("--help").stdout
    assert "--no-measure" in run("optimize", "--help").stdout
    assert run_apart("--version").stdout.startswith("taso-mirage ")


WRONG_OPTIONS = [
    (["--shape", "batch"], "write NAME:DIMS"),
    (["--shape", "nope:3"], "it has: x, batch"),
    (["--shape", "x:3"], "has 2 dimensions, 1 were given"),
    (["--shape", "x:3,9"], "dimension 1 of 'x' is 8 in the model, 9 was given"),
    (["--shape", "batch:0"], "at least 1"),
    (["--shape", "batch:2", "--shape", "x:3,8"], "two sizes, 2 and 3"),
    (["--shape", "batch:2@0"], "must be a positive number"),
    (["--target", "tpu"], "the targets are: cpu, cuda"),
    (["--strategy", "best"], "the strategies are: best-first, saturate, both"),
    (["--inputs", "missing.npz"], "not a readable .npz"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS, ids=[" ".join(o) for o, _ in WRONG_OPTIONS])
def test_wrong_options_exit_2(dynamic: Path, options: Sequence[str], message: str) -> None:
    assert message in one_line(run("optimize", dynamic, "--no-measure", *options, check=2))
    assert list(dynamic.parent.iterdir()) == [dynamic]


def test_wrong_inputs_exit_2(dynamic: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((4, 9), np.float32))
    assert "the model expects float32[batch, 8]" in one_line(
        run("optimize", dynamic, "--inputs", tmp_path / "in.npz", check=2)
    )


def test_odd_inputs_files_exit_2(dynamic: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    for name in ("one.npy", "bad.npz"):
        assert "not a readable .npz" in one_line(run_apart("optimize", dynamic, "--inputs", tmp_path / name, check=2))


def test_data_of_another_model_is_not_overwritten(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])
    k = onnx.numpy_helper.from_array(np.arange(4096, dtype=np.float32).reshape(64, 64), "k")
    nodes = [helper.make_node("MatMul", ["x", "k"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    nodes.append(helper.make_node("Relu", ["b"], ["y"]))
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [k]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    (tmp_path / "model.onnx").rename(tmp_path / "orig.onnx")
    data = (tmp_path / "model.onnx.data").read_bytes()
    done = run("optimize", tmp_path / "orig.onnx", "-o", tmp_path / "model.onnx", "--no-measure", check=4)
    assert "belongs to another model" in one_line(done)
    assert (tmp_path / "model.onnx.data").read_bytes() == data
    run("optimize", tmp_path / "orig.onnx", "-o", tmp_path / "other.onnx", "--no-measure")
    run("optimize", tmp_path / "orig.onnx", "--in-place", "--no-measure")
    onnxruntime.InferenceSession(tmp_path / "orig.onnx")


def test_bad_models_exit_3(dynamic: Path, tmp_path: Path) -> None:
    content = dynamic.read_bytes()
    (tmp_path / "text.onnx").write_text("this is no model\n" * 10)
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "short.onnx").write_bytes(content[: len(content) // 2])
    model = onnx.load(dynamic)
    model.opset_import[0].version = 999
    onnx.save(model, tmp_path / "opset.onnx")
    cases = {"text": "no ONNX model", "empty": "no ONNX model", "short": "short.onnx", "opset": "opset 999"}
    for name, message in cases.items():
        assert message in one_line(run("optimize", tmp_path / f"{name}.onnx", "-o", tmp_path / "out.onnx", check=3))
    assert "no such file" in one_line(run_apart("optimize", tmp_path / "missing.onnx", check=3))
    assert "folder" in one_line(run("inspect", tmp_path, check=3))
    assert not (tmp_path / "out.onnx").exists()


def test_external_data_missing_or_outside_exits_3(tmp_path: Path) -> None:
    for location, message in (
        ("gone.bin", "missing beside the model"),
        ("../escape.bin", "outside the model's folder"),
    ):
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        assert message in one_line(run("inspect", tmp_path / "m.onnx", check=3))


def test_unwritable_output_exits_4_before_the_work(dynamic: Path, tmp_path: Path) -> None:
    assert "does not exist" in one_line(run("optimize", dynamic, "-o", tmp_path / "no" / "out.onnx", check=4))
    (tmp_path / "folder.onnx").mkdir()
    assert "cannot write" in one_line(run("optimize", dynamic, "-o", tmp_path / "folder.onnx", "--no-measure", check=4))


@pytest.mark.sampled(2)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_exits_4_and_leaves_nothing(dynamic: Path, tmp_path: Path) -> None:
    code = (
        "import errno, onnx_ir, sys, taso_mirage.cli as c\n"
        "def full(*a, **k): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "from taso_mirage.onnx_io import files\n"
        "onnx_ir.save = files.save_inside = full\n"
        f"sys.argv = ['taso-mirage', 'optimize', {str(dynamic)!r}, '-o', {str(tmp_path / 'out.onnx')!r}, '--no-measure']\n"
        "c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 4, done.stderr
    assert "No space left" in one_line(done)
    assert [p.name for p in tmp_path.iterdir()] == ["dynamic.onnx"]


IMPORTED = "def start():\n    sys.press = press\n    import module_in_c\n"


def interrupted(start: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line where `start()` is called inside of `main`, once it takes signals."""
    code = (
        "import os, signal, sys, threading, time\n"
        "from taso_mirage.cli import commands as cli, interrupt\n"
        "def press():\n    os.kill(os.getpid(), signal.SIGINT)\n"
        f"{start}\n"
        "cli.app = lambda run=cli.app, **given: (start(), run(**given))\n"
        f"sys.argv = {['taso-mirage', *map(str, arguments)]!r}\n"
        "cli.main()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


@pytest.mark.sampled(2)
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("waits", [(0.1, 1.5), pytest.param((0.8, 2.5), marks=pytest.mark.slow)])
def test_interrupt_leaves_a_good_model_or_nothing(waits: Sequence[float], tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    for wait in waits:
        later = f"def start():\n    timer = threading.Timer({wait}, press)\n    timer.daemon = True\n    timer.start()"
        done = interrupted(later, "optimize", MINI, "-o", output, "--no-measure")
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 130), done.stderr
        if done.returncode == 0:
            onnxruntime.InferenceSession(output)
        else:
            assert not output.exists()
        output.unlink(missing_ok=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    "start",
    [
        # Python drops an exception that is raised in `__del__`
        pytest.param("class Dropped:\n    __del__ = lambda self: press()\ndef start():\n    Dropped()\n", id="dropped"),
        # an exception while a module in C++ is imported becomes an ImportError, or ends the process
        pytest.param(IMPORTED, id="import"),
    ],
)
def test_an_interrupt_is_neither_dropped_nor_an_error(start: str, tmp_path: Path) -> None:
    (tmp_path / "module_in_c.py").write_text("import os, sys\ntry: sys.press()\nexcept BaseException: os.abort()\n")
    done = interrupted(f"sys.path.append({str(tmp_path)!r})\n{start}    time.sleep(20)\n    os.abort()", "--version")
    assert done.returncode == 130, done.stderr


@pytest.mark.sampled(3)
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        pytest.param("    sys.exit(0)", 0, "", id="done"),
        pytest.param("    raise Slow", 2, "taso-mirage: slow\n", id="error"),
    ],
)
def test_an_interrupt_that_comes_too_late_changes_nothing(end: str, code: int, said: str, tmp_path: Path) -> None:
    """The interrupt was postponed to the end of an import, and the program ends before: threads are
    waited for, errors said in one line."""
    (tmp_path / "module_in_c.py").write_text("import os, sys\ntry: sys.press()\nexcept BaseException: os.abort()\n")
    slow = (
        f"sys.path.append({str(tmp_path)!r})\n"
        "from taso_mirage.errors import TasoMirageError\n"
        "class Slow(TasoMirageError):\n    exit_code = 2\n    __str__ = lambda self: late() or 'slow'\n"
        "def work():\n    threading.main_thread().join()\n    late()\n    print('ended', flush=True)\n"
        "ending, sent = threading.Event(), threading.Event()\n"
        "def late():\n    ending.set()\n    sent.wait()\n"
        "def again(call, arguments):\n    ending.wait()\n    call(*arguments)\n    sent.set()\n"
        "threading.Timer = lambda wait, *given: threading.Thread(target=again, args=given)\n"
    )
    done = interrupted(f"{slow}{IMPORTED}    threading.Thread(target=work).start()\n{end}", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (code, "ended\n", said)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_an_interrupt_before_the_search_gives_up(tmp_path: Path) -> None:
    """Though it was postponed, and the search has begun when it comes."""
    (tmp_path / "module_in_c.py").write_text("import os, sys\ntry: sys.press()\nexcept BaseException: os.abort()\n")
    begun = (
        f"sys.path.append({str(tmp_path)!r})\ndef start():\n    sys.press = press\n"
        "    with interrupt.interruptible() as stop:\n        import module_in_c\n"
        "        stop.began = True\n        time.sleep(20)\n        os.abort()"
    )
    done = interrupted(begun, "--version")
    assert (done.returncode, done.stderr) == (130, "taso-mirage: interrupted; nothing was written\n")
    assert one_line(done) == "taso-mirage: interrupted; nothing was written"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [60, pytest.param(120, marks=pytest.mark.slow)])
def test_mutated_bytes_never_give_a_traceback(count: int, tmp_path: Path) -> None:
    """Bytes flipped, cut and repeated: `inspect` ends with a result or one clear line."""
    original = MINI.read_bytes()
    code = (
        "import sys, taso_mirage.cli as c\n"
        "from taso_mirage.errors import TasoMirageError\n"
        "from taso_mirage.onnx_io import load, serialize\n"
        "from taso_mirage.report.inspection import inspection\n"
        "from taso_mirage.search.config import Config, representative\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        model = load(path)\n"
        "        inspection(model, representative(model, Config()))\n"
        "    except TasoMirageError as error:\n"
        "        assert error.exit_code in (1, 3) and '\\n' not in str(error)\n"
        "print('survived', len(sys.argv) - 1)\n"
    )
    rng = random.Random(0)
    head = 20_000  # the graph; behind it are the weights' bytes
    files = []
    for i in range(count):
        content = bytearray(original)
        for _ in range(rng.randint(1, 6)):
            content[rng.randrange(min(head, len(content)))] = rng.randrange(256)
        if i % 5 == 0:
            content = content[: rng.randrange(len(content))]
        if i % 7 == 0:
            at = rng.randrange(head)
            content[at:at] = content[at : at + rng.randrange(200)]
        files.append(tmp_path / f"{i}.onnx")
        files[-1].write_bytes(bytes(content))
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"survived {count}" in done.stdout
    for file in rng.sample(files, 4):
        assert run("inspect", file, check=None).returncode in (0, 1, 3)


@pytest.mark.skipif("CUDAExecutionProvider" in working_providers(), reason="there is a GPU here")
def test_a_provider_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = run("optimize", MINI, "--target", "cuda", "-o", tmp_path / "out.onnx", check=6)
    assert "CUDAExecutionProvider" in one_line(done)
    assert list(tmp_path.iterdir()) == []


def test_portable_keeps_to_standard_operators(layer: Path, tmp_path: Path) -> None:
    run("optimize", layer, "--portable", "--no-measure", "--budget", 3, "-o", tmp_path / "out.onnx")
    assert {n.domain for n in onnx.load(tmp_path / "out.onnx").graph.node} <= {"", "ai.onnx"}


@pytest.mark.sampled(2)
def test_saturation_is_a_strategy(layer: Path, tmp_path: Path) -> None:
    done = run(
        "optimize",
        layer,
        "--strategy",
        "saturate",
        "--no-measure",
        "--budget",
        5,
        "--json",
        "-o",
        tmp_path / "out.onnx",
    )
    found = result_of(done)
    assert found["changed"]
    assert all(c["passed"] for c in found["check"])


@pytest.mark.sampled(2)
def test_an_exit_code_is_kept_where_stderr_takes_nothing(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "taso_mirage.cli", "inspect", str(tmp_path / "none.onnx")]
        assert subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=600).returncode == 3


def test_the_text_of_an_unexpected_error_is_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path, **options: object) -> None:
        raise ZeroDivisionError("x" * 10_000 + "\nsecond")

    monkeypatch.setattr("taso_mirage.onnx_io.files.load_as_data", failing)
    said = one_line(run("inspect", "models/mini_transformer.onnx", check=1))
    assert "ZeroDivisionError: " + "x" * 300 + " (please report it" in said


def test_a_rounding_that_is_none_is_an_error_of_the_option(tmp_path: Path) -> None:
    done = run("optimize", MINI, "-o", tmp_path / "o.onnx", "--allow-rounding", "much", check=2)
    assert "--allow-rounding much is no number of quantization steps" in done.stderr
    done = run("optimize", MINI, "-o", tmp_path / "o.onnx", "--allow-rounding", "1:no.such", check=2)
    assert "no rule is named 'no.such'" in done.stderr
    assert "--allow-rounding" in run("optimize", "--help").stdout
