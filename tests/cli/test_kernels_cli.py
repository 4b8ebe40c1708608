"""The fusible regions of models, `taso-mirage kernels`, and the runnable workloads at small
sizes."""

from __future__ import annotations

import json
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scripts import script
from typer.main import get_command
from typer.testing import CliRunner

from models.workloads import BEYOND, PAPER, command
from taso_mirage.cli.commands import app
from taso_mirage.cli.kernels import normal
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.cpu.native_kernel import build
from taso_mirage.errors import InvalidOption
from taso_mirage.ir.terms import Graph, Tensor, topological, variable
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io import load
from taso_mirage.operators.ops import term
from taso_mirage.regions.fragments import INPUTS, OPERATORS
from taso_mirage.regions.kernel_regions import KernelRegion, kernel_regions
from taso_mirage.regions.survey import survey
from taso_mirage.rewriting.text import parse_graph
from taso_mirage.targets.known import targets_with_kernels
from taso_mirage.verdicts import Evidence

pytestmark = pytest.mark.sampled(2)

MINI = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"
ROWS, WIDTH, HIDDEN, LAYERS = 4, 32, 48, 2
CUDA = ("--target", "cuda")


def gated(rows: int | str = ROWS) -> onnx.ModelProto:
    """Equal layers x + W3 (silu(W1 n) * (W2 n)) with n = x / rms(x)."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [numpy_helper.from_array(np.float32(1e-5), "epsilon")], "x"
    for i in range(LAYERS):
        for name, shape in (("gate", (WIDTH, HIDDEN)), ("up", (WIDTH, HIDDEN)), ("down", (HIDDEN, WIDTH))):
            weights.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), f"{name}{i}"))
        for op, inputs, output in (
            ("Mul", (x, x), "squares"),
            ("ReduceMean", ("squares",), "mean"),
            ("Add", ("mean", "epsilon"), "shifted"),
            ("Sqrt", ("shifted",), "root"),
            ("Div", (x, "root"), "normal"),
            ("MatMul", ("normal", "gate"), "gated"),
            ("Sigmoid", ("gated",), "open"),
            ("Mul", ("gated", "open"), "silu"),
            ("MatMul", ("normal", "up"), "upped"),
            ("Mul", ("silu", "upped"), "inner"),
            ("MatMul", ("inner", "down"), "downed"),
            ("Add", (x, "downed"), "y"),
        ):
            own = [f"{n}{i}" if n not in (x, "epsilon") else n for n in inputs]
            attributes: dict[str, Any] = {"axes": [-1]} if op == "ReduceMean" else {}
            nodes.append(helper.make_node(op, own, [f"{output}{i}"], name=f"layer{i}/{output}", **attributes))
        x = f"y{i}"
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, WIDTH])] for name in ("x", x))
    graph = helper.make_graph(nodes, "gated", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "gated.onnx"
    onnx.save(gated(), path)
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the muGraph of the model's region, which is searched once."""
    path = tmp_path_factory.mktemp("found") / "gated.onnx"
    onnx.save(gated(), path)
    kernels(path, "--budget", 60, "--checkpoint", path.with_suffix(".json"))
    return path.with_suffix(".json")


def operators(region: KernelRegion) -> list[str]:
    return [n.op for n in region.operators]


def kernels(*arguments: object) -> dict[str, Any]:
    """The command's output as JSON, for the GPU that is there or an H100, unless another target is
    named."""
    target = () if "--target" in arguments else CUDA
    done = CliRunner().invoke(app, ["kernels", *map(str, (*arguments, *target)), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---------------------------------------------------------------- regions


def test_mini_transformer_has_attention_norms_and_mlps() -> None:
    model = load(MINI)
    found = kernel_regions(model, {})
    names = {tuple(operators(r)): r for r in found}
    attention = next(r for ops, r in names.items() if "softmax" in ops)
    mlp = next(r for ops, r in names.items() if "gelu" in ops)
    norm = next(r for ops, r in names.items() if "layer_norm" in ops)
    assert operators(attention).count("matmul") == operators(mlp).count("matmul") == 2
    assert len(attention.places) == len(mlp.places) == 7
    assert operators(norm) == ["gather", "add", "add", "layer_norm"]
    assert (norm.flops, norm.bytes, norm.least) == (9280, 103040, 78464)


def test_regions_are_disjoint_and_within_their_limits() -> None:
    found = kernel_regions(load(MINI), {})
    places = [name for region in found for names in region.places for name in names]
    assert len(places) == len(set(places))
    for region in found:
        assert 0 < len(region.operators) <= OPERATORS
        assert len(region.graph.inputs) <= INPUTS
        assert all(len(names) == len(region.operators) for names in region.places)


def test_equal_layers_are_one_region(model: Path) -> None:
    (found,) = kernel_regions(load(model), {})
    assert operators(found) == [
        *("mul", "reduce_mean", "add", "sqrt", "div"),
        *("matmul", "sigmoid", "mul", "matmul", "mul", "matmul", "add"),
    ]
    assert [names[0] for names in found.places] == ["layer0/squares", "layer1/squares"]
    assert [i.shape for i in found.graph.inputs].count((ROWS, WIDTH)) == 1


def test_a_linear_layer_of_many_rows_stays_outside(tmp_path: Path) -> None:
    onnx.save(gated("rows"), tmp_path / "gated.onnx")
    model = load(tmp_path / "gated.onnx")
    few, many = kernel_regions(model, {"rows": 64}), kernel_regions(model, {"rows": 65})
    assert any("matmul" in operators(r) for r in few)
    assert many
    assert not any("matmul" in operators(r) for r in many)
    assert any("sigmoid" in operators(r) for r in many)


# ---------------------------------------------------------------- the command


def test_the_json_has_the_mugraph_and_it_computes_the_region(model: Path, found: Path) -> None:
    (row,) = kernels(model, "--checkpoint", found)["regions"]
    goal, mugraph = from_json(row["goal"]), from_json(row["mugraph"])
    assert row["count"] == LAYERS
    assert len(row["places"][1]) == len(row["operators"]) == 12
    assert isinstance(verified_mugraph(mugraph, goal, seed=7), Evidence)
    assert len(row["kernels"]) == sum(n.op == "kernel" for n in topological(mugraph.outputs))
    assert 0 < row["seconds"]["fused"] < row["seconds"]["apart"]
    assert row["bytes"]["fused"] < row["bytes"]["apart"]
    assert row["evidence"]["tests"] >= 8
    assert row["problem"] is None


def test_the_text_names_places_kernels_and_evidence(model: Path, found: Path) -> None:
    done = CliRunner().invoke(app, ["kernels", *CUDA, str(model), "--checkpoint", str(found)], catch_exceptions=False)
    assert "gated.onnx: 1 region in 2 places" in done.stdout
    assert "2 places, from layer0/squares, layer1/squares" in done.stdout
    assert "kernel of " in done.stdout
    assert "tests in the field" in done.stdout
    assert "not measured" in done.stdout


def test_one_region_is_shown_with_its_schedule_estimate_and_program(model: Path, found: Path) -> None:
    given = [str(model), "--checkpoint", str(found), "--show", "1"]
    (row,) = kernels(*given)["regions"]
    done = CliRunner().invoke(app, ["kernels", *CUDA, *given], catch_exceptions=False)
    assert len(row["launches"]) == len(row["kernels"])
    assert all(0 < each["tuner_seconds"] < 1e-3 and each["waves"] >= 1 for each in row["launches"])
    assert [each["grid"] for each in row["launches"]] == [each["grid"] for each in row["kernels"]]
    compile(row["source"], "source", "exec")
    assert all(f"def {each['name']}(" in row["source"] for each in row["launches"])
    (text,) = re.findall(r"(?ms)^def mugraph\(.*?^    return [^\n]*$", done.stdout)
    assert parse_graph(text) == from_json(row["mugraph"])
    assert re.search(r"schedule: warps=\d+, stages=\d+", done.stdout)
    assert re.search(r"tuner's estimate: \d+\.\d us; \d+ blocks on a processor, \d+ waves", done.stdout)
    assert row["source"] in done.stdout


def test_a_region_that_is_not_shown_is_not_searched(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["kernels", str(MINI), "--budget", "0", "--show", "2"], catch_exceptions=False)
    assert done.exit_code == 0
    assert re.findall(r"(?m)^(\d+)\. ", done.stdout) == ["2"]
    rows = kernels(MINI, "--budget", 0, "--show", 2)["regions"]
    assert len(rows) == len(kernel_regions(normal(load(MINI), {}), {}))
    assert [row["problem"] for row in rows].count("not searched") == len(rows) - 1
    with pytest.raises(InvalidOption, match=r"--show 99: the model has \d+ regions"):
        CliRunner().invoke(app, ["kernels", str(MINI), "--budget", "0", "--show", "99"], catch_exceptions=False)


def test_programs_and_the_page_are_written(model: Path, found: Path, tmp_path: Path) -> None:
    from html.parser import HTMLParser

    page, folder = tmp_path / "page.html", tmp_path / "programs"
    (row,) = kernels(model, "--checkpoint", found, "--report", page, "-o", folder)["regions"]
    assert row["program"] == str(folder / "region1.py")
    assert "def launch(" in (folder / "region1.py").read_text()
    text = page.read_text()
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(text)
    assert "script" not in tags
    assert tags.count("details") == 1
    assert "kernel of " in text
    assert "def graph(" in text


def test_without_a_gpu_times_and_programs_are_the_cpus(
    model: Path, found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region of a checkpoint for a GPU is searched again, because times differ."""
    monkeypatch.setattr("taso_mirage.devices.cuda.device.gpu", lambda: None)
    kept, folder = tmp_path / "kept.json", tmp_path / "programs"
    kept.write_bytes(found.read_bytes())
    given = ["kernels", str(model), "--checkpoint", str(kept), "-o", str(folder), "--show", "1"]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    source = (folder / "region1.cpp").read_text()
    assert source.strip() in done.stdout
    assert build(source, tmp_path / "built").exists()
    (row,) = kernels(model, "--checkpoint", kept, "--target", "cpu")["regions"]
    (other,) = kernels(model, "--checkpoint", found)["regions"]
    assert (row["device"], other["device"]) == ("CPU", "H100")
    assert 0 < row["seconds"]["fused"] < row["seconds"]["apart"]
    assert row["seconds"]["apart"] > other["seconds"]["apart"]


def test_a_target_without_kernels_has_none_to_list(model: Path) -> None:
    known = ", ".join(targets_with_kernels())
    said = f"--target openvino: there are no fused kernels for it; the targets with kernels are {known}"
    with pytest.raises(InvalidOption, match=f"^{said}$"):
        CliRunner().invoke(app, ["kernels", str(model), "--target", "openvino"], catch_exceptions=False)


def test_the_help_names_the_targets_with_kernels() -> None:
    options = get_command(app).commands["kernels"].params
    assert [each.metavar for each in options if each.name == "target"] == ["|".join(targets_with_kernels())]


def test_a_checkpoint_is_gone_on_from(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept.json"
    first = kernels(model, "--budget", 20, "--checkpoint", kept)
    monkeypatch.setattr("taso_mirage.regions.survey.Search", None)  # nothing is searched again
    again = kernels(model, "--checkpoint", kept)
    for found in (first, again):  # the evidence is found again at the region's own sizes
        for each in found["regions"]:
            assert each.pop("evidence")["tests"] == 8
    assert again == first


@pytest.mark.parametrize("text", ["", "[]", '{"survey": 1}', '{"survey": 1, "regions": [{"mugraph": 1}]}'])
def test_another_file_is_no_checkpoint(model: Path, tmp_path: Path, text: str) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(text)
    done = CliRunner().invoke(app, ["kernels", str(model), "--checkpoint", str(kept)])
    assert isinstance(done.exception, InvalidOption)
    assert "remove it" in str(done.exception)
    assert kept.read_text() == text


def test_the_first_interrupt_keeps_what_was_found(model: Path) -> None:
    (region,) = kernel_regions(load(model), {})
    pressed = iter([False] * 1000)
    before = list(survey([region], 20, {}, H100, lambda: next(pressed)))
    after = list(survey([region, region], 20, {}, H100, lambda: True))
    assert [each.found is None for each in (*before, *after)] == [False, True, True]
    assert "interrupted" in after[0].problem


def test_ctrl_c_is_as_before_after_the_command(model: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    kernels(model, "--budget", 20)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_region_without_a_mugraph_says_why(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taso_mirage.mugraph.search.Search.run", lambda *_, **__: [])
    (row,) = kernels(model)["regions"]
    assert row["mugraph"] is None
    assert "share of the budget" in row["problem"]
    assert row["seconds"]["apart"] > 0


def test_dynamic_dims_are_fixed_by_shape(tmp_path: Path) -> None:
    onnx.save(gated("rows"), tmp_path / "gated.onnx")
    found = kernels(tmp_path / "gated.onnx", "--shape", "rows:6", "--budget", 20)
    assert found["sizes"] == {"rows": 6}
    assert [i.shape[0] for i in from_json(found["regions"][0]["goal"]).inputs].count(6) == 1


def attention(keys: int = 4096) -> onnx.ModelProto:
    """Attention as exporters write it: scales on both sides, a mask that is known, and a guard
    against rows that are no number."""
    seen = np.tri(64, keys, keys - 64, dtype=bool)
    weights = {"scale": np.float32(0.35), "seen": seen, "none": np.float32(0), "low": np.float32(-3.4e38)}
    nodes = [
        helper.make_node(op, inputs, [output], name=f"attention/{output}", **attributes)
        for op, inputs, output, attributes in (
            ("Where", ["seen", "none", "low"], "mask", {}),
            ("Mul", ["q", "scale"], "scaled", {}),
            ("Transpose", ["k"], "turned", {"perm": [0, 2, 1]}),
            ("Mul", ["turned", "scale"], "turned_scaled", {}),
            ("MatMul", ["scaled", "turned_scaled"], "scores", {}),
            ("Add", ["scores", "mask"], "masked", {}),
            ("Softmax", ["masked"], "weights", {"axis": -1}),
            ("IsNaN", ["weights"], "bad", {}),
            ("Where", ["bad", "none", "weights"], "guarded", {}),
            ("MatMul", ["guarded", "v"], "y", {}),
        )
    ]
    shapes = {"q": [2, 64, 16], "k": [2, keys, 16], "v": [2, keys, 16], "y": [2, 64, 16]}
    *inputs, output = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "attention", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_guard_and_a_known_mask_leave_attention_its_online_form(tmp_path: Path) -> None:
    path = tmp_path / "attention.onnx"
    onnx.save(attention(), path)
    before = kernel_regions(load(path), {})
    assert any("isnan" in operators(r) for r in before)
    (row,) = kernels(path, "--budget", 30)["regions"]
    assert not {"isnan", "where"} & {*row["operators"]}
    assert all(name.startswith("attention/") for names in row["places"] for name in names)
    bodies = [
        topological(n.attr("body").outputs) for n in topological(from_json(row["mugraph"]).outputs) if n.op == "kernel"
    ]
    over = [n.attr("over") for body in bodies for n in body if n.op == "accumulate"]
    assert "rescaled" in over or len(bodies) == 2  # no block has all keys at once: 256 KB for each head


def test_attention_is_a_region_where_it_is_one_operator(tmp_path: Path) -> None:
    shapes = {"q": [1, 4, 16, 8], "k": [1, 2, 32, 8], "v": [1, 2, 32, 8], "y": [1, 4, 16, 8]}
    *inputs, output = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="attention")
    graph = helper.make_graph([node], "attention", inputs, [output])
    path = tmp_path / "attention.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11), path)
    (found,) = kernel_regions(load(path), {})
    assert (operators(found), found.places) == (["attention"], (("attention",),))


def test_laws_that_fuse_are_left_out_before_the_search(model: Path) -> None:
    """A root of a mean of squares is a norm only where it is one operator already; regions are the
    same as without laws."""
    loaded = load(model)
    after = normal(loaded, {})
    assert [operators(r) for r in kernel_regions(after, {})] == [operators(r) for r in kernel_regions(loaded, {})]
    assert [r.places for r in kernel_regions(after, {})] == [r.places for r in kernel_regions(loaded, {})]


# ---------------------------------------------------------------- workloads

SMALL: dict[str, dict[str, int]] = {
    "rmsnorm_linear": {"batch": 2, "width": 32, "hidden": 48},
    "gated_mlp": {"batch": 4, "width": 32, "hidden": 48},
    "lora": {"batch": 4, "width": 32, "hidden": 48, "rank": 8},
    "gqa": {"queries": 16, "width": 8, "keys": 64},
    "qknorm": {"queries": 16, "width": 8, "keys": 64},
    "ntrans": {"width": 64},
    "rmsnorm_gamma_linear": {"batch": 4, "width": 32, "hidden": 48},
    "linear_bias": {"batch": 4, "width": 32, "hidden": 48},
    "masked_attention": {"queries": 16, "width": 8, "keys": 64},
    "long_attention": {"heads": 2, "group": 4, "width": 16, "keys": 64},
    "gated_mlp_down": {"batch": 4, "width": 32, "hidden": 48},
    "rotary_attention": {"queries": 16, "width": 8, "keys": 64},
    "float8_linear": {"batch": 4, "width": 32, "hidden": 48},
    "float8_attention": {"heads": 2, "group": 4, "width": 16, "keys": 64},
    "latent_attention": {"heads": 4, "width": 16, "rotary": 8, "keys": 64},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (i % 2)) for i, n in enumerate((*PAPER, *BEYOND))]
)
def test_a_workload_is_found(name: str) -> None:
    graph = {**PAPER, **BEYOND}[name](**SMALL[name]).graph()
    (found, *_) = superoptimize(graph, best=1, budget=20)
    assert isinstance(verified_mugraph(found.graph, graph, seed=5), Evidence)


def test_the_benchmark_runs_a_workload_in_a_process_of_its_own() -> None:
    bench = script("kernel_search")
    row = bench.searched("linear_bias", runs=1, best=2)
    assert row["counts"]["found"] == row["counts"]["verified"] == 2
    assert row["counts"]["tested"] > 0
    assert row["ours"] == row["runs"][0]
    assert bench.shown(row).startswith("linear_bias")
    assert "no workload" in bench.ran("raise ValueError('no workload')")["failed"]


def test_the_benchmark_compiles_what_it_finds() -> None:
    bench = script("kernel_search")
    with ThreadPoolExecutor(1) as pool:
        row = bench.compiling("linear_bias", 2, pool)
    assert (row["found"], row["problems"]) == (2, {})
    assert row["compiled"] == row["fit"] == 2
    assert row["kernels"] >= 2
    assert bench.shown_compiling(row).startswith("linear_bias")
    x = variable("x", Tensor("float32", (4,)))
    assert "problem" in bench.built(to_json(Graph((x,), (term("relu", x),))))


def test_an_example_prints_what_it_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = command.main(
        PAPER["gated_mlp"], ["--batch", "4", "--width", "32", "--hidden", "48", "--best", "2", "-o", str(tmp_path)]
    )
    shown = capsys.readouterr().out
    assert len(found) == 2
    assert "gated_mlp {'batch': 4, 'width': 32, 'hidden': 48}: 2 muGraphs" in shown
    assert "kernel(" in shown
    assert "def launch(" in (tmp_path / "gated_mlp.py").read_text()


@pytest.mark.parametrize("name", [*PAPER, "beyond"])
def test_an_example_runs_as_a_script(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python models/workloads/NAME.py` finds its imports beside itself."""
    import runpy

    folder = MINI.parent / "workloads"
    monkeypatch.setattr(sys, "argv", [name, *(["linear_bias"] if name == "beyond" else []), "--help"])
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0
