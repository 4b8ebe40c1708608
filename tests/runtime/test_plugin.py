"""Exporting TensorRT plugins: files, the Python module, the models around them.

The library itself: test_plugin_library.py.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from commandline import one_line, run, run_apart
from plugin_models import exported, optimized

from taso_mirage.errors import InvalidModel, Unsupported
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.onnx_io import save
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.runtime.plan import sealed
from taso_mirage.runtime.tensorrt.plugin_attributes import kernel as kernel_of
from taso_mirage.runtime.tensorrt.plugin_export import Exported, export
from taso_mirage.runtime.tensorrt.python_plugin import reordered

__all__ = ["exported", "optimized"]
pytest.importorskip("triton", reason="the extra `triton` is not installed")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_exporting_twice_gives_the_same_files(optimized: Path, exported: Exported, tmp_path: Path) -> None:
    again = export(optimized, tmp_path / "new", {})
    assert files(again.folder) == files(exported.folder)
    assert {"model.onnx", "reference.onnx", "plugin.cpp", "kernels.cpp", "CMakeLists.txt"} <= files(again.folder).keys()


def test_equal_kernels_are_one_plugin_and_nodes_name_them(exported: Exported) -> None:
    first, second = exported.kernels
    nodes = [n for n in onnx.load(exported.folder / "model.onnx").graph.node if n.domain == "taso_mirage"]
    assert [n.op_type for n in nodes] == [first, first, second]
    for node in nodes:
        fields = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        digest = exported.kernels[node.op_type].digest.encode()
        assert fields == {"digest": digest, "plugin_namespace": b"taso_mirage", "plugin_version": b"1", "aot": 1}


def test_plugin_model_has_no_function_that_a_parser_could_take_instead(exported: Exported) -> None:
    model = onnx.load(exported.folder / "model.onnx")
    assert not model.functions
    assert not model.metadata_props
    reference = onnx.load(exported.folder / "reference.onnx")
    onnx.checker.check_model(reference, full_check=True)
    assert {n.domain for n in reference.graph.node} == {""}


def test_samples_are_what_the_optimized_model_gives(optimized: Path, exported: Exported) -> None:
    samples = exported.folder / "samples"
    index = json.loads((samples / "samples.json").read_text())
    inputs = {name: np.load(samples / each["file"]) for name, each in index["inputs"].items()}
    for name, each in index["inputs"].items():
        raw = np.fromfile(samples / each["raw"], inputs[name].dtype)
        np.testing.assert_array_equal(raw.reshape(inputs[name].shape), inputs[name])
    session = onnxruntime.InferenceSession(str(optimized), providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)  # without the library the functions run
    for (name, each), output in zip(index["outputs"].items(), outputs, strict=True):
        expected = np.load(samples / each["file"])
        assert output.dtype == expected.dtype, name
        assert 0 < each["tolerance"] < 0.05
        np.testing.assert_allclose(output.astype(np.float64), expected.astype(np.float64), atol=each["tolerance"])


@pytest.mark.parametrize(("offset", "code"), [(0.0, 0), (0.5, 1)])
def test_script_compares_what_trtexec_wrote(exported: Exported, tmp_path: Path, offset: float, code: int) -> None:
    index = json.loads((exported.folder / "samples" / "samples.json").read_text())
    written = []
    for name, each in index["outputs"].items():
        values = np.load(exported.folder / "samples" / each["file"]).astype(np.float64) + offset
        dims = "x".join(map(str, values.shape))
        written.append({"name": name, "dimensions": dims, "values": values.reshape(-1).tolist()})
    (tmp_path / "output.json").write_text(json.dumps(written))
    command = [sys.executable, str(exported.folder / "check_samples.py"), str(tmp_path / "output.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("above" if code else "within")) == (code, 2), done.stdout + done.stderr


def test_python_module_has_the_kernels_of_one_launch(exported: Exported) -> None:
    first, second = exported.kernels
    assert exported.not_in_python == {second: "it has 2 kernels, and TensorRT launches one"}
    source = (exported.folder / "plugin_in_python.py").read_text()
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert names == ["_check", first, f"autotune_{first}", f"aot_{first}"]
    entry = re.search(r"\.entry kernel_0\(([^)]*)\)", source)
    assert entry is not None
    order = re.findall(r"_param_(\d)", entry[1])
    used = exported.kernels[first].launches[0].arguments
    assert [used[int(i)] for i in order] == ["i0", "i1", "o0"]  # and the two hidden pointers are gone


PTX = ".visible .entry f(\n\t.param .u64 f_param_0,\n\t.param .u64 f_param_1\n)\n{ ld.param.u64 %rd1, [f_param_1]; }"


def test_parameters_of_ptx_change_places() -> None:
    made = reordered(PTX, "f", [1, None])
    assert made == (
        ".visible .entry f(\n\t.param .u64 f_param_1,\n\t.param .u64 f_unused_1\n)\n{ ld.param.u64 %rd1, [f_param_1]; }"
    )


@pytest.mark.parametrize(("symbol", "order", "said"), [("g", [0], "no entry g"), ("f", [0], "reads parameter 1")])
def test_ptx_that_does_not_fit_is_refused(symbol: str, order: list[int | None], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        reordered(PTX, symbol, order)


def attributes(lines: list[str], code: bytes = b"code") -> dict[str, str]:
    head = ["taso_mirage 1 cuda", *lines, f"image 0 90 cubin f 4 0 2 0 {len(code)} {zlib.crc32(code):08x}"]
    return {"plan": sealed(head), "image_0": base64.b64encode(code).decode()}


def test_named_sizes_are_those_of_the_model() -> None:
    made = kernel_of(
        "n", attributes(["input float16 r 8", "output float16 r*2 (r+4)/2", "kernel r/4 1 1 i0 o0"]), [(12, 8)]
    )
    assert (made.inputs[0].shape, made.outputs[0].shape) == ((12, 8), (24, 8))
    assert made.launches[0].grid == (3, 1, 1)
    with pytest.raises(Unsupported, match="n: the size r is not fixed in the model"):
        kernel_of("n", attributes(["input float16 r 8", "output float16 r", "kernel 1 1 1 i0 o0"]), [None])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("input bfloat16 2", "n: input 0 is bfloat16; a TensorRT plugin takes and gives float32 and float16"),
        ("input float16 1 1 1 1 1 1 1 1 2", "n: input 0 has 9 dims"),
    ],
)
def test_what_tensorrt_cannot_take_is_refused(line: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        kernel_of("n", attributes([line, "output float16 2", "kernel 1 1 1 i0 o0"]), [None])


PLAN = attributes(["input float16 2", "output float16 2", "kernel 1 1 1 i0 o0"])


@pytest.mark.parametrize(
    "changed",
    [
        {"plan": PLAN["plan"].replace("float16 2", "float16 4", 1)},
        {"plan": PLAN["plan"][:40]},
        {"plan": "__import__('os')"},
        {"image_0": "AAAA"},
        {"image_0": "not base64"},
        {"plan": sealed(["taso_mirage 1 cuda", "input float16 2**99999", "output float16 2", "kernel 1 1 1 i0"])},
        {"plan": sealed(["taso_mirage 1 cuda", "input float16 2", "kernel 1 1 1 i0", "image 0 90"])},
    ],
)
def test_damaged_plans_are_refused(changed: dict[str, str]) -> None:
    with pytest.raises(InvalidModel, match="n has no plan that can be read"):
        kernel_of("n", PLAN | changed, [None])


def test_kernels_for_the_cpu_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"n: its plan is .*cpu.* cuda.*a plugin takes kernels for CUDA"):
        kernel_of(
            "n", {"plan": sealed(["taso_mirage 1 cpu", "input float16 2", "output float16 2", "entry f"])}, [None]
        )


def test_command_says_what_it_wrote(optimized: Path, exported: Exported, tmp_path: Path) -> None:
    done = run_apart("export-plugin", optimized, "-o", tmp_path / "plugin", "--json")
    said = json.loads(done.stdout)
    assert said["plugins"] == {
        name: {"digest": k.digest, "launches": len(k.launches)} for name, k in exported.kernels.items()
    }
    assert files(tmp_path / "plugin") == files(exported.folder)


def test_model_without_kernels_is_refused(tmp_path: Path) -> None:
    x = variable("X", Tensor("float32", ("n", 4)))
    save(standalone(Graph((x,), (term("relu", x),)), {"": 17}), tmp_path / "plain.onnx")
    command = ("export-plugin", tmp_path / "plain.onnx", "-o", tmp_path / "plugin")
    assert "give --shape n:N" in one_line(run(*command, check=2))
    assert "has no fused kernels" in one_line(run(*command, "--shape", "n:2", check=3))
    assert not (tmp_path / "plugin").exists()


def test_operators_that_tensorrt_lacks_are_named(optimized: Path, tmp_path: Path) -> None:
    model = onnx.load(optimized)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    last = next(node for node in model.graph.node if "output_0" in node.output)
    last.output[:] = ["sum"]
    model.graph.node.append(onnx.helper.make_node("FastGelu", ["sum"], ["output_0"], domain="com.microsoft"))
    onnx.save(model, tmp_path / "mixed.onnx")
    done = run("export-plugin", tmp_path / "mixed.onnx", "-o", tmp_path / "plugin")
    assert "TensorRT has no com.microsoft.FastGelu: optimize the model with --portable" in done.stderr


def test_sizes_of_dynamic_dims_come_from_the_command(optimized: Path, exported: Exported, tmp_path: Path) -> None:
    model = onnx.load(optimized)
    model.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "rows"
    onnx.save(model, tmp_path / "dynamic.onnx")
    command = ("export-plugin", tmp_path / "dynamic.onnx", "-o", tmp_path / "plugin")
    done = run(*command, "--shape", "rows:13", check=3)
    assert "input 0 is (13, 20) in the model, the plan has" in one_line(done)
    run(*command, "--shape", "rows:12")
    assert files(tmp_path / "plugin") == files(exported.folder)


def test_names_are_those_of_no_other_set_of_kernels(optimized: Path, exported: Exported, tmp_path: Path) -> None:
    model = onnx.load(optimized)
    del model.graph.output[1:]
    kept = [node for node in model.graph.node if "output_1" not in node.output]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, tmp_path / "part.onnx")
    part = export(tmp_path / "part.onnx", tmp_path / "plugin", {})
    (name,), (made,) = zip(*part.kernels.items(), strict=True)
    assert made == next(iter(exported.kernels.values()))
    assert name not in exported.kernels


def test_no_file_outside_the_folder_is_written(optimized: Path, exported: Exported, tmp_path: Path) -> None:
    model = onnx.load(optimized)
    onnx.helper.set_model_props(
        model, {p.key: p.value for p in model.metadata_props} | {"taso_mirage.triton.../../bad": ""}
    )
    onnx.save(model, tmp_path / "hostile.onnx")
    export(tmp_path / "hostile.onnx", tmp_path / "a" / "plugin", {})
    assert files(tmp_path / "a" / "plugin") == files(exported.folder)
    assert {str(p) for p in files(tmp_path)} == {
        "hostile.onnx",
        *(f"a/plugin/{name}" for name in files(exported.folder)),
    }


@pytest.mark.parametrize("name", ["model.onnx", "reference.onnx"])
def test_the_model_that_is_read_is_not_written_over(optimized: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(optimized.read_bytes())
    done = run("export-plugin", tmp_path / name, "-o", tmp_path, check=2)
    assert "would overwrite the model that is read" in one_line(done)
    assert (tmp_path / name).read_bytes() == optimized.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_plugins_files_are_regular(optimized: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "model.onnx")
    one_line(run("export-plugin", optimized, "-o", tmp_path / "folder", check=4))
    os.mkfifo(tmp_path / "pipe")
    one_line(run("export-plugin", optimized, "-o", tmp_path / "pipe", check=4))
