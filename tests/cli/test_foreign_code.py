"""Code that a model carries does not run unless it is trusted: in commands, in the Python
interface, in generated code."""

from __future__ import annotations

import ast
import base64
import json
import zlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import mugraphs
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from commandline import run, run_apart
from fused_models import fresh_cache

from taso_mirage.emit import triton
from taso_mirage.emit.gpu.program import LaunchSchedule
from taso_mirage.errors import InvalidModel, TasoMirageError
from taso_mirage.ir.terms import Tensor
from taso_mirage.lowering import cpu as cpu
from taso_mirage.lowering import cuda as cuda
from taso_mirage.measure.session import Session, open_in_child
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.onnx_io import from_ir, load, serialize
from taso_mirage.onnx_io.kernels import dropped
from taso_mirage.pipeline import optimize_model
from taso_mirage.runtime.plan import KernelImage
from taso_mirage.runtime.register import PLAN_FORMAT, metadata
from taso_mirage.runtime.tensorrt import python_plugin
from taso_mirage.runtime.tensorrt.plugin_attributes import PluginKernel, PluginLaunch, kernel
from taso_mirage.search.config import Config

ROOT = Path(__file__).parents[2]
PAYLOAD = """
#include <cstdio>
__attribute__((constructor)) static void run_at_once() {{
  if (FILE* file = std::fopen("{mark}", "w")) std::fclose(file);
}}
"""


def hostile(mark: Path) -> onnx.ModelProto:
    """A model that runs code of its own where its kernels are registered."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Relu(a) }'
    )
    proto.metadata_props.add(key="taso_mirage.format", value=str(PLAN_FORMAT))
    proto.metadata_props.add(key="taso_mirage.cpp.kernel_0", value=PAYLOAD.format(mark=mark))
    return proto


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cache").mkdir()
    fresh_cache(monkeypatch, tmp_path / "cache")
    return tmp_path / "mark"


@pytest.fixture
def model(mark: Path, tmp_path: Path) -> Path:
    path = tmp_path / "hostile.onnx"
    onnx.save(hostile(mark), path)
    return path


def test_optimize_drops_foreign_kernels_and_says_so(model: Path, mark: Path, tmp_path: Path) -> None:
    done = run_apart("optimize", model, "-o", tmp_path / "out.onnx", "--no-measure", "--kernels", "off", "--portable")
    assert not mark.exists()
    assert "was not run" in done.stdout + done.stderr
    assert not any(key.startswith("taso_mirage") for key in metadata(tmp_path / "out.onnx"))


def test_diff_drops_foreign_kernels_and_says_so(model: Path, mark: Path) -> None:
    done = run_apart("diff", model, model)
    assert not mark.exists()
    assert "was not run" in done.stderr


def test_trusted_kernels_are_compiled_and_run(model: Path, mark: Path) -> None:
    """The model is the one above, with the user's word: so the tests above can fail."""
    run_apart("diff", model, model, "--trust-kernels")
    assert mark.exists()


def test_the_python_interface_drops_them_too(model: Path, mark: Path) -> None:
    read = from_ir(ir.from_proto(hostile(mark)))
    optimize_model(read, Config(measure=False))
    open_in_child(load(model)).run({"x": np.ones((2, 3), np.float32)})
    Session(model.read_bytes()).run({"x": np.ones((2, 3), np.float32)})
    Session(str(model)).run({"x": np.ones((2, 3), np.float32)})
    assert not mark.exists()
    assert dropped(read.header) is not None
    assert b"fopen" not in serialize(read)


def test_a_kernel_without_operators_is_refused(tmp_path: Path) -> None:
    """In the graph, in a body, in a function, in a body inside a function."""
    call = "<ir_version: 8, opset_import: ['' : 17, 'taso_mirage' : 1]> g (float[2] x, bool c) => (float[2] y) {{ {} }}"
    body = "y = If (c) <then_branch = t () => (float[2] a) { a = taso_mirage.CpuKernel0 (x) }, "
    body += "else_branch = e () => (float[2] b) { b = Relu (x) }>"
    function = "<opset_import: ['' : 17, 'taso_mirage' : 1], domain: 'other'> F (x, c) => (y) {{ {} }}"
    texts = [
        call.format("y = taso_mirage.CpuKernel0 (x)"),
        call.format(body),
        call.replace("17,", "17, 'other' : 1,").format("y = other.F (x, c)")
        + function.format("y = taso_mirage.CpuKernel0 (x)"),
        call.replace("17,", "17, 'other' : 1,").format("y = other.F (x, c)") + function.format(body),
    ]
    for i, text in enumerate(texts):
        path = tmp_path / f"{i}.onnx"
        onnx.save(onnx.parser.parse_model(text.replace("'", '"')), path)
        with pytest.raises(InvalidModel, match="without a function of ordinary operators"):
            load(path)


def test_functions_that_expand_without_end_are_refused(tmp_path: Path) -> None:
    """2^60 nodes, and a function that calls itself."""
    head = '<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[2] x) => (float[2] y) { y = f.F60 (x) }\n'
    one = '<opset_import: ["" : 17, "f" : 1], domain: "f"> F%d (x) => (y) { a = f.F%d (x) y = f.F%d (a) }\n'
    last = '<opset_import: ["" : 17], domain: "f"> F0 (x) => (y) { y = Relu (x) }\n'
    path = tmp_path / "deep.onnx"
    onnx.save(onnx.parser.parse_model(head + last + "".join(one % (i, i - 1, i - 1) for i in range(1, 61))), path)
    with pytest.raises(InvalidModel, match="expand to more than"):
        load(path)
    onnx.save(onnx.parser.parse_model(head.replace("F60", "F1") + one % (1, 1, 1)), path)
    with pytest.raises(InvalidModel, match="calls itself"):
        load(path)


# ---------------------------------------------------------------- generated source

PTX = '''.visible .entry go(.param .u64 a, .param .u64 b) { ret; }
// """
raise SystemExit("ran")
r"""\\
'''


def exported(symbol: str = "go") -> PluginKernel:
    image = KernelImage(0, 80, PTX.encode(), symbol, 1, 0, 0, False, ptx=True)
    tensor = Tensor("float32", (4,))
    return PluginKernel("plan", ("x",), (tensor,), (tensor,), (PluginLaunch((1, 1, 1), ("i0", "o0"), (image,)),))


def test_ptx_stays_text_in_the_generated_module() -> None:
    source, missing = python_plugin.module({"K": exported()})
    assert not missing
    tree = ast.parse(source)
    kinds = {type(statement).__name__ for statement in tree.body}
    assert kinds <= {"Expr", "Import", "FunctionDef", "Assign"}
    assert sum(isinstance(statement, ast.Expr) for statement in tree.body) == 1  # the module's own words
    values = [ast.literal_eval(s.value) for s in tree.body if isinstance(s, ast.Assign)]
    assert len(values) == 1
    assert values[0].endswith(PTX[PTX.index("{ ret") :])


@pytest.mark.parametrize("symbol", ['go"', "go\\", "a;b", "é", "{go}"])
def test_a_symbol_that_is_no_name_is_refused(symbol: str) -> None:
    code = b"code"
    row = f"image 0 80 ptx {symbol} 1 0 0 0 {len(code)} {zlib.crc32(code):08x}"
    above = "\n".join(
        [f"taso_mirage {PLAN_FORMAT} cuda", "input float32 4", "output float32 4", row, "kernel 1 1 1 i0 o0", ""]
    )
    plan = f"{above}check {zlib.crc32(above.encode()):08x}\n"
    with pytest.raises(InvalidModel, match="no plan that can be read"):
        kernel("node", {"plan": plan, "image_0": base64.b64encode(code).decode()}, [None])


def test_the_audit_of_the_docs_writes_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = hostile(tmp_path / "mark")
    for name in (f"{tmp_path}/absolute", "../above", "a/b", ""):
        proto.metadata_props.add(key=f"taso_mirage.triton.{name}", value="x")
        function = onnx.helper.make_function("taso_mirage", f"{name}f", ["a"], ["a"], [], [])
        node = function.node.add(op_type="Relu", input=["a"], output=["b"])
        node.attribute.append(onnx.helper.make_attribute(f"image_/../../{name}", b"eA=="))
        proto.functions.append(function)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    onnx.save(proto, "model.optimized.onnx")
    text = (ROOT / "docs" / "shipping.md").read_text()
    code = text[text.index("```python", text.index("## Inspecting the code")) :].split("```")[1].removeprefix("python")
    exec(compile(code, "shipping.md", "exec"), {})
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and p.parent != tmp_path / "here" / "audit"]
    assert outside == [tmp_path / "here" / "model.optimized.onnx"]
    assert len(list((tmp_path / "here" / "audit").iterdir())) == 1 + 3 * 4


def test_rules_names_are_no_paths(tmp_path: Path) -> None:
    library = tmp_path / "rules"
    library.mkdir()
    shipped = (ROOT / "substitutions" / "elementwise.toml").read_text().split("[[rule]]")[1]
    name = shipped.split('name = "')[1].split('"')[0]
    (library / "rules.toml").write_text("[[rule]]" + shipped.replace(name, "../../outside"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    run("substitutions", "explain", "../../outside", "--library", library, "-o", tmp_path / "a" / "b")
    assert {p.parent for p in tmp_path.rglob("*outside*")} == {tmp_path / "a" / "b"}


# ---------------------------------------------------------------- records of kernels


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of values in JSON that are neither a list nor a table."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield place
    for key, each in items or ():
        yield from leaves(each, (*place, key))


def with_leaf(value: Any, place: tuple[Any, ...], leaf: Any) -> Any:
    """The value with another leaf at a place."""
    made = deepcopy(value)
    around = made
    for key in place[:-1]:
        around = around[key]
    around[place[-1]] = leaf
    return made


TEXTS = ("4\nimport os; os.system('planted')\n", "4; planted()", "4 if planted() else 4", "ieee', planted(), '")


@pytest.mark.parametrize("text", TEXTS)
def test_records_bring_no_code(text: str) -> None:
    """Any text in the place of a number, flag or word of a record from a file (`cache import`) is
    refused, or is not in the generated code."""
    graph = mugraphs.rmsnorm_linear(16, 64, 32, 2, 2)[0]
    schedules = [asdict(each.schedule) for each in triton.program(graph).launches]
    record = json.loads(json.dumps({"mugraph": to_json(graph), "schedules": schedules}))
    record |= {"before": [{**record, "most": 4}], "batch": {"dims": 1, "inputs": [True, False]}}
    tried = 0
    for place in leaves(record):
        for lowered in (cuda._program, cpu.CpuLowering.kernel):
            made = with_leaf(record, place, text)
            try:
                found = lowered(made) if lowered is cuda._program else lowered(None, made)  # type: ignore[arg-type]
            except (TasoMirageError, LookupError, TypeError, ValueError):
                tried += 1
                continue
            assert "planted" not in f"{found.source}{getattr(found, 'plan', '')}", place
    assert tried > len(schedules) * len(fields(LaunchSchedule))
