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


def test_positions_begin_again_at_the_end_of_the_caches() -> None:
    seen: list[int] = []

    def step(tokens: Tokens, position: int) -> Tokens:
        seen.append(position)
        return tokens + 1

    found = script("decode_runs").wrapped(step, np.array([0, 5]), 2, 4, 5)
    assert seen == [2, 3, 0, 1, 2]
    assert found == [[1, 6], [2, 7], [3, 8], [4, 9], [5, 10]]


def test_a_step_is_measured_at_positions_within_the_caches_only() -> None:
    seen = set[int]()

    def step(tokens: Tokens, position: int) -> Tokens:
        seen.add(position)
        return tokens

    found = script("decode_runs").at_positions(step, np.array([0]), [64, 1, 8, 1], 64)
    assert [*found] == ["1", "8"]
    assert seen == {1, 8}


class Counter:
    """Steps whose tokens depend on those before, as with caches. The 19th gives wrong ones, and
    the 20th fails."""

    def __init__(self) -> None:
        self.made = 0

    def session(self) -> object:
        return object()

    def step(self, session: object) -> Any:
        self.made += 1
        number, calls = self.made, 0

        def call(tokens: Tokens, position: int) -> Tokens:
            nonlocal calls
            calls += 1
            if number == 20:
                raise ValueError("of one thread")
            return tokens + calls + position + (number == 19)

        return call


def test_a_soak_counts_threads_with_other_tokens_and_tells_their_errors() -> None:
    """Steps are made for the single run, for eight threads, and for what they are compared with."""
    runs, made = script("decode_runs"), Counter()
    found = runs.soak(made, np.array([0]), 3, 16, 160, "cpu")
    assert made.made == 10
    assert found["steps of a thread"] == 20
    assert (found["same"], found["runs"], found["errors"]) == (8, 8, [])
    assert found["begin"].keys() == found["end"].keys() == {"host"}
    steps = [Counter().step(None) for _ in range(3)]
    other = Counter()
    other.made = 18
    steps += [other.step(None), other.step(None)]
    wanted = runs.wrapped(Counter().step(None), np.array([0]), 3, 16, 20)
    told = runs.together(steps, lambda step: runs.wrapped(step, np.array([0]), 3, 16, 20), wanted)
    assert told == {"same": 3, "runs": 5, "errors": ["ValueError: of one thread"]}


def test_a_table_of_positions_has_a_gap_where_none_was_measured() -> None:
    rows = [
        {"case": "a", "pasts": {"ours": {"1": 10.2, "64": 20.0}}},
        {"case": "b", "pasts": {"ours": {"64": 30.0}}},
        {"case": "c", "pasts": {}},
        {"case": "d"},
    ]
    lines = script("decode_table").pasts({"rows": rows})
    assert lines[0] == "| model | runtime | 1 | 64 |"
    assert lines[2:] == ["| a | ours | 10 | 20 |", "| b | ours |  | 30 |"]


def test_each_binding_has_its_own_caches(decode: ModuleType) -> None:
    """A step in place writes those of its binding alone, so that the next one begins anew."""
    onnxruntime, helper = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx").helper
    integer, real = 7, 1
    given = [
        helper.make_tensor_value_info("input_ids", integer, [1, 1]),
        helper.make_tensor_value_info("position", integer, [1]),
        helper.make_tensor_value_info("past_key_0", real, [1, 4]),
    ]
    made = [
        helper.make_tensor_value_info("token", integer, [1, 1]),
        helper.make_tensor_value_info("logits", real, [1, 4]),
        helper.make_tensor_value_info("present_key_0", real, [1, 4]),
    ]
    nodes = [
        helper.make_node("Add", ["input_ids", "position"], ["token"]),
        helper.make_node("Identity", ["past_key_0"], ["logits"]),
        helper.make_node("Add", ["past_key_0", "past_key_0"], ["present_key_0"]),
    ]
    graph = helper.make_graph(nodes, "step", given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    caches = {"past_key_0": np.ones((1, 4), np.float32)}
    first = decode.Bound(session, "cpu", caches)
    assert first(np.array([3]), 2).tolist() == [5]
    assert caches["past_key_0"].tolist() == [[1.0] * 4]
    again = first.logits(np.array([3]), 2)  # of its own caches, which are written
    fresh = decode.Bound(session, "cpu", caches).logits(np.array([3]), 2)
    assert again[0, 0] > fresh[0, 0]
