"""The benchmark of generation: tokens have the largest logits, and logits are compared."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from scripts import script


@pytest.fixture(scope="module")
def decode() -> ModuleType:
    return script("decode")


def test_each_token_is_the_input_of_the_next_step_at_its_position(decode: ModuleType) -> None:
    seen: list[tuple[int, int]] = []

    def step(token: int, position: int) -> int:
        seen.append((token, position))
        return (token + 3) % 8

    tokens, seconds = decode.generate(step, 1, 10, 4)
    assert tokens == [4, 7, 2, 5]
    assert seen == [(1, 10), (4, 11), (7, 12), (2, 13)]
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
