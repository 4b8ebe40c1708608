"""The end-to-end benchmarks on small models: their rows, floors, peers that are not there, and
files; and the model with adapters."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from scripts import script

import models
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CPU
from taso_mirage.onnx_io import from_ir

Small = Callable[..., onnx.ModelProto]


@pytest.fixture(scope="module")
def cpu() -> ModuleType:
    return script("end_to_end_cpu")


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    return script("end_to_end_h100")


@pytest.fixture(scope="module")
def common(cpu: ModuleType) -> ModuleType:
    found: ModuleType = cpu.common
    return found


# ---------------------------------------------------------------- the model with adapters


@pytest.mark.sampled(3)
def test_adapters_are_kept_apart_and_add_to_their_linear_maps(small: Small) -> None:
    """Merged by hand, W + SCALE * A B, the plain decoder computes the same."""
    import torch

    from models.transformer import RANK, SCALE

    adapted = small("llama_lora", batch=2)
    narrow = [t for t in adapted.graph.initializer if len(t.dims) == 2 and RANK in t.dims]
    assert len(narrow) >= 2 * 7 * 2  # down and up of seven maps in two layers
    merged = models.module("llama_lora", batch=2)[0]
    with torch.no_grad():
        for layer in merged.model.model.layers:
            for parent in (layer.self_attn, layer.mlp):
                for name, each in list(parent.named_children()):
                    if hasattr(each, "base"):
                        each.base.weight += SCALE * each.up.weight @ each.down.weight
                        setattr(parent, name, each.base)
    fed = models.inputs(adapted)
    with torch.no_grad():
        wanted = merged(**{k: torch.from_numpy(v) for k, v in fed.items()})[0].numpy()
    run = onnxruntime.InferenceSession(adapted.SerializeToString(), providers=["CPUExecutionProvider"]).run
    np.testing.assert_allclose(run(None, fed)[0], wanted, rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- rows


@pytest.fixture
def quick(layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options for a run of moments: a layer under the name of one of the benchmarks'
    own."""
    (tmp_path / "bert-b1.onnx").write_bytes(layer.read_bytes())
    return ["bert", "--seconds", "0.1", "--budget", "0.1", "--models", str(tmp_path), "-o", str(tmp_path / "rows.json")]


@pytest.mark.sampled(3)
def test_a_row_has_all_stages_and_its_file_is_written(
    cpu: ModuleType, tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    monkeypatch.setattr(cpu, "PRODUCTS", ((8, 64, 64),))
    monkeypatch.setattr(cpu, "STREAMED", 1 << 20)
    cpu.main([*quick, "--no-compile", "--kernels", "cached"])
    found = json.loads(path.read_text())
    (row,) = found["rows"]
    assert (found["bench"], found["device"], row["case"]) == ("end_to_end_cpu", runtime.device(), "bert b1")
    assert row["ours"] > 0
    assert set(row["ratios"]) == {"substitutions", "kernels"}
    assert row["floor"]["distance"] == pytest.approx(row["ours"] / row["floor"]["us"], rel=1e-2)
    assert 0 < sum(row["left"]["operators"].values()) <= 1.01
    assert found["means"]["ratio"] == row["ratio"]
    table = script("tables").end_to_end(found)
    assert table[2].startswith(f"| bert b1 | {row['baselines']['onnxruntime'] / 1e3:.2f} | ")
    assert len({line.count("|") for line in table[:3]}) == 1
    failed = script("tables").end_to_end({**found, "rows": [{"case": "bert b1", "failed": "a | b"}]})
    assert failed[2].count("|") == table[0].count("|")


@pytest.mark.slow
def test_the_benchmark_of_the_gpu_works_on_the_cpu(
    gpu: ModuleType, tmp_path: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers that are not there, or fail, have no figure and a reason; a failing model is a row;
    others' rows are kept."""
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setattr(gpu, "Compiled", _failing)
    monkeypatch.setattr(gpu, "left", lambda *given: {})
    path = tmp_path / "rows.json"
    quick += ["--kernels", "off"]
    gpu.main(quick, CPU)
    (row,) = json.loads(path.read_text())["rows"]
    assert row["baselines"]["tensorrt"] is None
    assert row["baselines"]["torch.compile"] is None
    assert row["absent"]["tensorrt"].startswith("ModuleNotFoundError: import of tensorrt halted")
    assert row["absent"]["torch.compile"] == "ValueError: no graph for you"
    monkeypatch.setattr(gpu.common, "imported", _failing)
    gpu.main(["vit", "--small", *quick[1:], "--append"], CPU)
    first, second = json.loads(path.read_text())["rows"]
    assert first == row
    assert second == {"case": "vit b1", "failed": "ValueError: no graph for you"}


def _failing(*given: object) -> None:
    raise ValueError("no graph for you\nand more")


def test_rows_of_another_setting_are_not_kept(common: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"device": "this", "rows": [{"case": "bert b1"}]}))
    assert list(common.kept(path, {"device": "this"})) == ["bert b1"]
    assert common.kept(path, {"device": "another"}) == {}


def test_what_was_kept_has_the_time_of_what_it_is_equal_to(common: ModuleType) -> None:
    times = {"onnxruntime": [4e-3, 4e-3, 8e-3], "kernels": [2e-3, 4e-3, 2e-3]}
    found = common.figures(times, {"substitutions": "onnxruntime"})
    assert (found["ours"], found["baselines"]) == (2000, {"onnxruntime": 4000, "substitutions": 4000})
    assert found["ratios"]["substitutions"] == {"ratio": 1, "quartiles": [1, 1]}
    assert found["ratios"]["kernels"] == {"ratio": 2, "quartiles": [1.5, 3]}
    assert (found["kept"], found["over_compiled"]) == (["substitutions"], None)


def test_the_means_are_those_of_batch_one_without_what_failed(common: ModuleType) -> None:
    def row(case: str, ratio: float, compiled: float | None) -> dict[str, object]:
        return {"case": case, "ratio": ratio, "ratios": {"substitutions": {"ratio": 1.0}}, "over_compiled": compiled}

    rows = [row("a b1", 2.0, None), row("b b1", 0.5, 1.5), row("a b8", 0.25, 3.0), {"case": "c b1", "failed": "?"}]
    assert common.means(rows) == {"ratio": 1.0, "substitutions": 1.0, "over_compiled": 1.5, "least": 0.25}


# ---------------------------------------------------------------- floors and shares


def test_the_floor_counts_weights_once_and_of_tables_what_is_read() -> None:
    helper, roofline = onnx.helper, script("roofline")
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 5])
    table, matrix = (
        onnx.numpy_helper.from_array(np.ones(shape, np.float32), name)
        for name, shape in (("table", (100, 4)), ("matrix", (4, 5)))
    )
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "matrix"], ["y"])]
    graph = helper.make_graph(nodes, "g", [ids], [y], [table, matrix])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = from_ir(ir.from_proto(proto))
    moved, flops = roofline.demands(model)
    assert moved == 3 * 8 + 3 * 4 * 4 + 4 * 5 * 4 + 3 * 5 * 4
    assert 2 * 3 * 4 * 5 <= flops < 2 * 3 * 4 * 5 + 20
    bound = roofline.floor(model, roofline.Machine(moved, 1e12), 2e6)
    assert (bound["us"], bound["distance"]) == (1e6, 2.0)


def test_the_shares_of_kernels_go_by_their_short_names(gpu: ModuleType) -> None:
    runs = gpu.PROFILED
    events = [
        ("void cutlass::Kernel2<cutlass_80, 3>(Params)", 30.0 * runs, 2 * runs),
        ("void cutlass::Kernel2<cutlass_90, 4>(Params)", 20.0 * runs, runs),
        ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", 10.0 * runs, runs),
        ("cudaGraphLaunch", 0.0, runs),
    ]
    found = gpu.shares(events, 100.0)
    assert found == {"operators": {"Kernel2": 0.5, "softmax_warp_forward": 0.1}, "between": 0.4, "launches": 4.0}


@pytest.mark.sampled(3)
def test_the_names_of_both_benchmarks_are_models_that_can_be_built(cpu: ModuleType, gpu: ModuleType) -> None:
    for bench in (cpu, gpu):
        for builder, options in bench.MODELS.values():
            module, _ = models.module(builder, small=True, **{k: v for k, v in options.items() if k != "configuration"})
            assert module is not None


def test_unknown_names_are_refused(cpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu.main(["gpt"])
    assert "no model is named 'gpt'; the names are decode, prefill, " in capsys.readouterr().err
