"""The benchmark of generation: tokens have the largest logits, and logits are compared."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scripts import script

Tokens = np.ndarray[Any, np.dtype[np.int64]]


@pytest.fixture(scope="module")
def decode() -> ModuleType:
    return script("decode")


def test_each_token_is_the_input_of_the_next_step_at_its_position(decode: ModuleType) -> None:
    seen: list[tuple[list[int], int]] = []

    def step(tokens: Tokens, position: int) -> Tokens:
        seen.append((tokens.tolist(), position))
        return (tokens + 3) % 8

    tokens, seconds = decode.generate(step, np.array([1, 6]), 10, 4)
    assert [each.tolist() for each in tokens] == [[4, 1], [7, 4], [2, 7], [5, 2]]
    assert seen == [([1, 6], 10), ([4, 1], 11), ([7, 4], 12), ([2, 7], 13)]
    assert seconds > 0


@pytest.mark.filterwarnings("default::FutureWarning")  # of transformers, about the name of an argument
def test_the_next_token_has_the_largest_logit() -> None:
    pytest.importorskip("transformers")
    module, inputs = script("minute_models").FORMS["llama_decode"]("cpu", small=True)
    token, logits, *caches = module(**inputs)
    assert token.tolist() == [[int(logits[0, 0].argmax())]]
    assert len(caches) == len(inputs) - 2


def test_logits_are_worth_less_the_further_they_are_off(decode: ModuleType) -> None:
    wanted = np.random.default_rng(0).standard_normal((16, 32))
    same, shifted = decode.quality(wanted, wanted), decode.quality(wanted + 5.0, wanted)
    assert same["divergence"] == 0.0
    assert same["likelihood"] == same["reference likelihood"]
    assert shifted["divergence"] == pytest.approx(0.0, abs=1e-12)
    assert shifted["same"] == same["same"] == 16
    near, far = (decode.quality(wanted * scale, wanted) for scale in (0.9, 0.1))
    assert 0.0 < near["divergence"] < far["divergence"]
    turned = decode.quality(-wanted, wanted)
    assert turned["likelihood"] > same["likelihood"]
    assert turned["same"] == 0


def test_the_kernels_of_a_step_sum_to_the_step_also_where_they_overlap() -> None:
    """The second one starts early, and the third one ends within the second."""
    timeline = script("step_timeline")
    parts = [("a", 0.0, 4.0), ("b", 1.0, 9.0), ("c", 5.0, 2.0), ("a", 12.0, 3.0)]
    events = [{"name": n, "ts": ts, "dur": dur, "args": {"grid": [8, 2, 1]}} for n, ts, dur in parts]
    found = timeline.of(events)
    assert (found["launches"], found["us"]) == (4, 15.0)
    assert [(k["name"], k["count"], k["us"]) for k in found["kernels"]] == [("a", 2, 9.0), ("b", 1, 6.0), ("c", 1, 0.0)]
    assert {k["grid"] for k in found["kernels"]} == {"8x2x1"}
    assert timeline.of([])["launches"] == 0


@pytest.mark.filterwarnings("default::FutureWarning")  # of transformers, about the name of an argument
def test_a_step_of_eight_sequences_reads_one_set_of_weights_and_eight_caches() -> None:
    pytest.importorskip("transformers")
    forms, decoders = script("minute_models").FORMS, script("decoders")
    one, eight = (forms[name]("cpu", small=True) for name in ("llama_decode", "llama_decode_b8"))
    assert eight[1]["past_key_0"].shape == (8, *one[1]["past_key_0"].shape[1:])
    empty = decoders.bytes_of_a_step(one[0], 1, 0)
    rows = decoders.bytes_of_a_step(one[0], 1, 5) - empty
    assert rows == 2 * 2 * 2 * 5 * 16 * 4  # layers, keys and values, heads, rows, head's size, bytes
    assert decoders.bytes_of_a_step(eight[0], 8, 5) == empty + 8 * rows
    token, logits, *_ = eight[0](**eight[1])
    assert token.tolist() == logits[:, 0].argmax(-1)[:, None].tolist()


@pytest.mark.filterwarnings("default::FutureWarning")  # of transformers, about the name of an argument
def test_adapters_add_their_products_to_each_linear_layer_but_the_head() -> None:
    pytest.importorskip("transformers")
    module, _ = script("minute_models").FORMS["lora_decode"]("cpu", small=True)
    found = [each for each in module.modules() if type(each).__name__ == "Adapted"]
    assert len(found) == 2 * 7
    assert type(module.module.lm_head).__name__ == "Linear"
    first = found[0]
    assert first.down.weight.shape == (16, 64)
    x = first.base.weight[:3]
    merged = first.base.weight + first.scale * first.up.weight @ first.down.weight
    assert np.allclose((x @ merged.T).detach(), first(x).detach(), atol=1e-6)
    assert not np.allclose(first.base(x).detach(), first(x).detach(), atol=1e-6)
