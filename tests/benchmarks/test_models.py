"""The builders in `models/`: every model is valid, runs, and computes something that depends on its
weights."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import models
from models import __main__ as command
from models import light
from models.__main__ import main

ROOT = Path(__file__).parents[2]
DYNAMIC = ("bert", pytest.param("llama", marks=pytest.mark.slow))
LARGE_LIGHT = ("light_alexnet", "light_zfnet512", "light_vgg19")
ALIKE_LIGHT = ("light_resnet50", "light_inception_v2")
"""Models of the kinds of ResNet from PyTorch, and of the first Inception."""


Small = Callable[..., onnx.ModelProto]


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, **sizes: int) -> list[NDArray[Any]]:
    outputs: list[NDArray[Any]] = session(model).run(None, models.inputs(model, sizes=sizes))
    return outputs


def varies(model: onnx.ModelProto) -> bool:
    """Whether a model, which ONNX's checker takes, has finite outputs that vary, probabilities
    neither one-hot nor uniform."""
    onnx.checker.check_model(model)
    last = model.graph.node[-1]
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    if last.op_type == "Softmax":
        tapped.graph.output.append(onnx.ValueInfoProto(name=last.input[0]))
    outputs = run(tapped)
    probabilities, signal = outputs[0], outputs[-1]
    certain = last.op_type == "Softmax" and not 2 / probabilities.size < probabilities.max() < 0.5
    return all(np.isfinite(value).all() for value in outputs) and 0.3 < signal.std() < 10 and not certain


ALIKE = ("nasnet_a", "llama_lora")
"""Large to export, and made of the operators of MobileNet and Inception, or of Llama."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in models.EXPORTED])
def test_small_model_is_valid_and_runs(small: Small, name: str) -> None:
    assert varies(small(name))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in (*LARGE_LIGHT, *ALIKE_LIGHT))) for n in light.FILES],
)
def test_light_model_is_valid_and_runs(name: str) -> None:
    model = models.build(name)
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    assert len(model.graph.input) == 1
    assert varies(model)


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_a_light_model_of_another_batch_is_the_one_of_batch_one_image_by_image(name: str) -> None:
    fed = models.inputs(models.build(name, batch=2))
    (of_two,) = session(models.build(name, batch=2)).run(None, fed)
    single = session(models.build(name))
    of_each = [single.run(None, {k: v[i : i + 1] for k, v in fed.items()})[0] for i in range(2)]
    np.testing.assert_allclose(of_two, np.concatenate(of_each), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in models.EXPORTED if name != "mini_transformer"])
def test_full_model_is_valid_and_runs(name: str) -> None:
    assert varies(models.build(name, small=False))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize(("batch", "sequence"), [(1, 16), (3, 7)])
def test_dynamic_model_runs_at_any_size(small: Small, name: str, batch: int, sequence: int) -> None:
    model = small(name, dynamic=True)
    assert {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim} == {"batch", "sequence"}
    (output,) = run(model, batch=batch, sequence=sequence)
    assert output.shape[:2] == (batch, sequence)
    assert np.isfinite(output).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_model_equals_the_static_one(small: Small, name: str) -> None:
    fed = models.inputs(small(name))
    static, dynamic = (session(model).run(None, fed)[0] for model in (small(name), small(name, dynamic=True)))
    np.testing.assert_allclose(dynamic, static, rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(3)
def test_one_token_after_cached_ones_is_the_last_of_all_tokens(small: Small) -> None:
    import torch
    from transformers import DynamicCache

    model = models.module("llama_decode")[0].model  # the plain language model, which makes the keys and values
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 17)))
    with torch.no_grad():
        caches = DynamicCache(), DynamicCache()
        whole = model(ids, None, None, caches[0], use_cache=True)
        model(ids[:, :16], None, None, caches[1], use_cache=True)
    fed = models.inputs(small("llama_decode")) | {"input_ids": ids[:, 16:].numpy()}
    for i, layer in enumerate(caches[1].layers):
        fed |= {f"past_key_{i}": layer.keys.numpy(), f"past_value_{i}": layer.values.numpy()}
    step = session(small("llama_decode"))
    outputs = dict(zip((o.name for o in step.get_outputs()), step.run(None, fed), strict=True))
    np.testing.assert_allclose(outputs["logits"][:, -1], whole.logits[:, -1].numpy(), rtol=1e-3, atol=1e-4)
    for i, layer in enumerate(caches[0].layers):
        np.testing.assert_allclose(outputs[f"present_key_{i}"], layer.keys.numpy(), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(outputs[f"present_value_{i}"], layer.values.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_matrices_have_the_numbers_of_a_checkpoint(dtype: str) -> None:
    narrow = onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, dtype.upper()))
    plain, made = (models.build("light_squeezenet", **given) for given in ({}, {"checkpoint": dtype}))
    for before, after in zip(plain.graph.initializer, made.graph.initializer, strict=True):
        wide, rounded = numpy_helper.to_array(before), numpy_helper.to_array(after)
        assert (rounded == (wide.astype(narrow) if wide.ndim > 1 and wide.dtype == np.float32 else wide)).all()
    with pytest.raises(ValueError, match="bfloat16, float16"):
        models.build("light_squeezenet", checkpoint="float8")


@pytest.mark.parametrize("name", [pytest.param("resnet50", marks=pytest.mark.slow), "light_squeezenet"])
def test_seed_decides_the_weights(name: str) -> None:
    first, again, other = (models.build(name, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.sampled(2)
def test_committed_mini_transformer_is_what_the_builder_makes(small: Small) -> None:
    committed = ROOT / "models" / "mini_transformer.onnx"
    assert committed.stat().st_size < 2_000_000
    assert onnx.load(committed).graph == small("mini_transformer").graph


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    ["resnet50", "inception_v3", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnext50", "nasnet_a"))],
)
def test_convolutional_model_keeps_its_norms(small: Small, name: str) -> None:
    norms = [node for node in small(name).graph.node if node.op_type == "BatchNormalization"]
    assert len(norms) > 10


@pytest.mark.sampled(3)
def test_folding_the_norms_changes_no_result(small: Small) -> None:
    folded = models.build("resnet50", keep_norms=False)
    assert "BatchNormalization" not in {node.op_type for node in folded.graph.node}
    fed = models.inputs(folded)
    np.testing.assert_allclose(session(folded).run(None, fed)[0], run(small("resnet50"))[0], rtol=1e-3, atol=1e-4)


def test_inputs_respect_vocabulary_masks_and_seed(small: Small) -> None:
    fed = models.inputs(small("bert"))
    assert fed["input_ids"].max() > 31
    assert fed["input_ids"].max() < 256
    assert (fed["attention_mask"] == 1).all()
    assert (models.inputs(small("bert"), seed=1)["input_ids"] != fed["input_ids"]).any()


@pytest.mark.sampled(3)
def test_a_vision_model_with_a_free_batch_runs_at_any(small: Small) -> None:
    static, dynamic = session(small("vit")), session(small("vit", dynamic=True))
    images = np.random.default_rng(0).normal(size=(5, 3, 32, 32)).astype(np.float32)
    (whole,) = dynamic.run(None, {"pixel_values": images})
    for i in range(5):
        (wanted,) = static.run(None, {"pixel_values": images[i : i + 1]})
        np.testing.assert_allclose(whole[i : i + 1], wanted, rtol=1e-3, atol=1e-4)


def test_unknown_name_and_option_say_what_is_known() -> None:
    with pytest.raises(ValueError, match="no model is named 'alexnet'; the names are bert, "):
        models.build("alexnet")
    with pytest.raises(TypeError, match="csrnet has no option dynamic; its options are batch"):
        models.build("csrnet", dynamic=True)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"^this model needs transformers: pip install taso-mirage\[models\]$"):
        models.build("vit")


def test_importing_models_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, models; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_command_line_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    assert main(["light_shufflenet", "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 203 nodes, 5.7 MB\n"
    onnx.checker.check_model(str(path))


def test_weights_of_a_large_model_go_to_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "EXTERNAL_DATA_BYTES", 1_000_000)
    path = tmp_path / "model.onnx"
    command.write(models.build("light_squeezenet"), path)
    assert path.stat().st_size < 100_000
    assert (tmp_path / "model.onnx.data").stat().st_size > 4_000_000
    assert np.isfinite(run(onnx.load(path))[0]).all()


def test_command_line_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(models.NAMES)
    assert main(["light_shufflenet", "--dynamic"]) == 1
    assert capsys.readouterr().err == "error: light_shufflenet has no option dynamic; its options are batch\n"
