"""Fused operators that hide products with large weights: their decomposition, and its use for the
stage of kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from fused_models import on_the_cpu, quick
from named_models import WITH_CONTRIB, w, x
from named_models import model as model_of
from onnxruntime import InferenceSession

from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, stage
from taso_mirage.pipeline.fuse.form_terms import decompose
from taso_mirage.search.config import Config

WIDTH = 512
model = partial(model_of, opsets=WITH_CONTRIB)


def attention(data: Node, name: str, *mask: Node, width: int = WIDTH) -> Node:
    return term("packed_attention", data, w(f"w{name}", width, 3 * width), w(f"b{name}", 3 * width), *mask, num_heads=2)


def counted(made: Model) -> Counter[str]:
    return Counter(n.op for n in made.nodes())


def test_attention_is_three_products_and_what_is_left() -> None:
    """A model of two layers, one on the other, with a mask and without."""
    first = attention(x("x", 1, 5, WIDTH), "1", x("m", 1, 1, 5, 5))
    whole = model(attention(term("tanh", first), "2"))
    made = decompose(whole, {}, CPU_GOALS)
    found = counted(made)
    assert [found[op] for op in ("packed_attention", "multi_head_attention", "matmul", "add", "slice")] == [
        0,
        2,
        6,
        6,
        0,
    ]
    assert sum(a.numpy().size for a in made.weights.values()) == sum(a.numpy().size for a in whole.weights.values())
    inputs = random_inputs(whole, 1)
    wanted, got = (InferenceSession(serialize(m)).run(None, inputs)[0] for m in (whole, made))
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)


def test_what_has_no_kernels_stays_as_it_is() -> None:
    small = model(attention(x("x", 1, 5, 64), "", width=64))
    assert decompose(small, {}, CPU_GOALS) is small
    weights = term("packed_attention", x("x", 1, 5, WIDTH), w("w", WIDTH, 3 * WIDTH), x("b", 3 * WIDTH), num_heads=2)
    given = model(weights)  # a bias of the run would be cut in every run
    assert decompose(given, {}, CPU_GOALS) is given
    free = model(attention(variable("x", Tensor("float32", (1, symbol("n"), WIDTH))), ""))
    assert decompose(free, {}, CPU_GOALS) is free
    assert counted(decompose(free, {"n": 5}, CPU_GOALS))["multi_head_attention"] == 1


@pytest.mark.sampled(3)
def test_the_stage_keeps_the_fused_operator_where_no_kernel_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial is compared with the model as it was, not with the decomposed one."""
    whole = model(attention(x("x", 1, 8, WIDTH), ""))
    result = optimize_model(whole, Config(budget=0.0, seconds=0.0, measure=False))
    seen: list[Counter[str]] = []

    def opened(made: Model, *args: Any, **options: Any) -> Session:
        seen.append(counted(made))
        return on_the_cpu(made)

    monkeypatch.setattr(stage.runtime, "open_in_child", opened)
    quick(monkeypatch, gain=0.9)
    again = fused(replace(result, model=whole), Config(budget=90.0, seconds=0.0), "search")
    assert seen[0]["packed_attention"] == 1
    assert len(seen) > 1
    assert not any(each["packed_attention"] for each in seen[1:])
    assert again.model is whole
    assert any("no kernels" in note for note in again.notes)
