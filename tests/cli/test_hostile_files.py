"""Files that are none, or that are other people's: outputs, weights, reports, and the values of
guards."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from commandline import one_line, run, run_apart
from onnx import helper, numpy_helper
from small_models import relus

from taso_mirage.errors import InvalidModel, SyntaxProblem
from taso_mirage.ir.dims import parse_dim
from taso_mirage.onnx_io import load
from taso_mirage.operators.expressions import Expr
from taso_mirage.system.terminal import one_line as escaped

MINI = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"
QUICK = ("--no-measure", "--kernels", "off", "--budget", "0")


# ---------------------------------------------------------------- outputs


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # a null device of one's own


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def a_link(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize("kind", [a_pipe, a_device, a_socket, a_link, Path.mkdir])
@pytest.mark.parametrize("option", ["-o", "--report", "--certificate"])
def test_an_output_is_a_regular_file_or_a_new_one(tmp_path: Path, kind: Callable[[Path], None], option: str) -> None:
    node = tmp_path / "node"
    try:
        kind(node)
    except PermissionError:
        pytest.skip("only root makes devices")
    before = node.lstat()
    arguments = [] if option == "-o" else ["-o", tmp_path / "out.onnx"]
    run("optimize", MINI, *QUICK, option, node, *arguments, check=4)
    after = node.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("other", ["m.onnx", "out.onnx", "c.json", "in.npz"])
def test_the_report_is_no_other_file_of_the_command(tmp_path: Path, other: str) -> None:
    (tmp_path / "m.onnx").write_bytes(MINI.read_bytes())
    np.savez(tmp_path / "in.npz", x=np.zeros(1))
    files = ["-o", tmp_path / "out.onnx", "--certificate", tmp_path / "c.json", "--inputs", tmp_path / "in.npz"]
    done = run("optimize", tmp_path / "m.onnx", *QUICK, *files, "--report", tmp_path / other, check=2)
    assert "--report" in one_line(done)
    assert (tmp_path / "m.onnx").read_bytes() == MINI.read_bytes()


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644)])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    relus(tmp_path / "m.onnx", 2)
    before = os.umask(umask)
    try:
        run("optimize", tmp_path / "m.onnx", *QUICK, "-o", tmp_path / "out.onnx")
    finally:
        os.umask(before)
    assert (tmp_path / "out.onnx").stat().st_mode & 0o777 == mode


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize("kind", [a_pipe, a_device, a_socket, Path.mkdir])
def test_a_model_is_a_regular_file(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    try:
        kind(tmp_path / "m.onnx")
    except PermissionError:
        pytest.skip("only root makes devices")
    code = 2 if (tmp_path / "m.onnx").is_dir() else 3  # a folder is one of models; this has none
    one_line(run("optimize", tmp_path / "m.onnx", *QUICK, check=code))


def nested(location: str) -> onnx.ModelProto:
    """A model with a function, in whose body a branch has a constant that lies in a file."""
    tensor = onnx.TensorProto(name="far", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    constant = helper.make_node("Constant", [], ["k"], value=tensor)
    branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("k", onnx.TensorProto.FLOAT, [4])])
    opset = [helper.make_opsetid("", 18)]
    both = helper.make_node("If", ["c"], ["r"], then_branch=branch, else_branch=branch)
    function = helper.make_function("local", "F", ["c"], ["r"], [both], opset)
    graph = helper.make_graph(
        [helper.make_node("F", ["c"], ["y"], domain="local")],
        "g",
        [helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])],
    )
    imports = [*opset, helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)


@pytest.mark.parametrize("location", ["../secret.bin", "{folder}/secret.bin", "sub/../../secret.bin"])
def test_a_constant_in_a_function_is_not_read_from_elsewhere(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(b"s" * 16)
    (tmp_path / "in").mkdir()
    onnx.save(nested(location.format(folder=tmp_path)), tmp_path / "in" / "m.onnx")
    with pytest.raises(InvalidModel, match="points outside the model's folder"):
        load(tmp_path / "in" / "m.onnx")


def test_a_constant_in_a_function_is_read_from_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    onnx.save(nested("w.bin"), tmp_path / "in" / "m.onnx")
    monkeypatch.chdir(tmp_path)
    run("optimize", "in/m.onnx", *QUICK, "-o", "out.onnx")
    body = onnx.load("out.onnx").functions[0].node[0].attribute[0].g
    np.testing.assert_array_equal(numpy_helper.to_array(body.node[0].attribute[0].t), np.arange(4))


# ---------------------------------------------------------------- broken models are invalid models


def small() -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
            [numpy_helper.from_array(np.ones(2, np.float32), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )


def undefined(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 0


def untyped(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="alpha", i=1)


def wrong_field(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].int32_data[:] = [1, 2]


def enormous(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [2**62]


def large(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**62


def deep(model: onnx.ModelProto) -> None:
    for _ in range(70):
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)


def nowhere(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = "nothing"


def far(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="a" * 5000)


def refused(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


@pytest.mark.parametrize(
    "broken", [undefined, untyped, wrong_field, enormous, large, deep, nowhere, far, refused], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("command", ["optimize", "diff"])
def test_a_broken_model_is_one_line(tmp_path: Path, broken: Callable[[onnx.ModelProto], None], command: str) -> None:
    model = small()
    broken(model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    more = [tmp_path / "m.onnx"] if command == "diff" else [*QUICK, "-o", tmp_path / "out.onnx"]
    done = run(command, tmp_path / "m.onnx", *more, check=3)
    assert len([line for line in done.stderr.splitlines() if line.startswith("taso-mirage: ")]) == 1
    assert not (tmp_path / "out.onnx").exists()


def test_flags_and_axes_that_the_runtime_reads_in_its_own_way_stay_as_they_are(tmp_path: Path) -> None:
    """An axis of 2^62 is 0 in 32 bits, and keepdims=2 is not 1."""
    for op, attributes in (("Softmax", {"axis": 2**62}), ("ReduceMax", {"keepdims": 2, "axes": [0]})):
        model = small()
        model.graph.node[0].CopyFrom(helper.make_node(op, ["x"], ["y"], **attributes))
        model.opset_import[0].version = 13
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        assert [n.op for n in load(tmp_path / "m.onnx").nodes()][-1] == "opaque"


# ---------------------------------------------------------------- arithmetic and printed text


@pytest.mark.parametrize("source", ["9**9**9**9", "(1, 2) * 10**12", "'a' * 10**12", "iota(10**12)", "'%1000000d' % 1"])
def test_an_expression_ends(source: str) -> None:
    with pytest.raises((OverflowError, TypeError)):
        Expr(source)({})


@pytest.mark.parametrize("source", ["(" * 5000, "x is y", "1 if", "a\x00b", "-" * 100000 + "1"])
def test_an_expression_that_cannot_be_read_is_named(source: str) -> None:
    with pytest.raises(SyntaxProblem):
        Expr(source)({"x": 1, "y": 1})


def test_a_size_of_too_many_products_is_a_name() -> None:
    text = "*".join(f"(a{i}+b{i})" for i in range(40))
    assert str(parse_dim(text)) == text


def test_a_size_that_computes_for_ever_does_not_hang_shape_inference(tmp_path: Path) -> None:
    model = small()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "9**9**9**9"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "9**9**9**9"
    model.graph.node.add(op_type="Unknown", domain="other", input=["y"], output=["z"])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    load(tmp_path / "m.onnx")


EVIL = "a\x1b[2Jb\nc\u202ed"


@pytest.mark.parametrize("command", ["optimize", "inspect", "diff", "kernels", "mutants"])
def test_names_do_not_steer_the_terminal(tmp_path: Path, command: str) -> None:
    model = small()
    for place in (model.graph.node[0].input, model.graph.node[0].output):
        place[:] = [f"{name}{EVIL}" for name in place]
    for each in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        each.name += EVIL
    model.graph.node[0].name = model.graph.name = model.producer_name = EVIL
    model.graph.node.add(op_type=f"Odd{EVIL}", domain="", input=[f"y{EVIL}"], output=["z"])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    more = {"optimize": QUICK, "diff": (tmp_path / "m.onnx",)}.get(command, ())
    done = run(command, tmp_path / "m.onnx", *more, check=None)
    assert (done.stdout + done.stderr).replace("\n", "").isprintable()


def test_a_text_is_one_line() -> None:
    assert escaped(EVIL) == "a\\x1b[2Jb\\nc\\u202ed"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_what_cannot_be_printed_is_not_called_unwritten(tmp_path: Path) -> None:
    import subprocess
    import sys

    model, output = tmp_path / "m.onnx", tmp_path / "out.onnx"
    relus(model, 2)
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", str(model), *QUICK, "-o", str(output)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=600)
    assert done.returncode == 4
    assert "files that were written before stay" in done.stderr
    assert output.exists()


def test_version_is_told_apart() -> None:
    assert run_apart("--version").stdout.startswith("taso-mirage ")
