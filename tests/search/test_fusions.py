"""Fusions into the runtime's own operators that one-output passes cannot make: sums that live on,
shared heads, angles in weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from small_models import ops, w

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, topological, variable, weight
from taso_mirage.onnx_io import from_ir, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.write import to_ir
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.prove.fingerprint import Agreed, fingerprint
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.result import Result
from taso_mirage.rewriting.equation import apply_equation, match, matches
from taso_mirage.rewriting.index import Application
from taso_mirage.rewriting.text import show_equation
from taso_mirage.search.config import Config
from taso_mirage.search.passes import Context, joint, merge, pass_order, simplify
from taso_mirage.search.rulesets import rules
from taso_mirage.search.weights import split_halves

OPSETS = {"": 20, "com.microsoft": 1}
CONTEXT = Context(OPSETS, {})


def x(*shape: int, name: str = "x", dtype: str = "float32") -> Node:
    return variable(name, Tensor(dtype, shape))


def merged(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    last = pass_order(rules())[-1]
    for _ in range(2):
        outputs, _ = merge(outputs, joint(last), CONTEXT)
    return outputs


def norm(a: Node, name: str) -> Node:
    return term("layer_norm", a, w(8, name=f"{name}g"), w(8, name=f"{name}o"), axis=2, epsilon=1e-5)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("seen", [True, False])
def test_a_bias_goes_into_the_norm_whatever_the_order_of_its_sum(first: bool, seen: bool) -> None:
    """A layer's result joins the stream in front of it, or behind it."""
    product = term("add", term("matmul", x(2, 3, 8), w(8, 8, name="m")), w(8, name="b"))
    stream = x(2, 3, 8, name="y")
    total = term("add", product, stream) if first else term("add", stream, product)
    ends = (norm(total, "a"), term("relu", total)) if seen else (norm(total, "a"),)
    for rules_of in pass_order(rules())[1:]:
        ends = merge(simplify(ends, rules_of, CONTEXT)[0], joint(rules_of), CONTEXT)[0]
    ends = merge(ends, joint(rules_of), CONTEXT)[0]
    assert "add" not in ops(ends)
    (fused,) = (n for n in topological(ends) if n.op.startswith("skip_layer_norm"))
    assert fused.args[4] is w(8, name="b")


def test_a_norm_and_its_sum_are_one_term() -> None:
    """Before-norm transformers: the sum goes into the norm and on to the next layer."""
    a = x(2, 3, 8)
    total = term("add", a, x(2, 3, 8, name="y"))
    outputs = (term("add", term("relu", norm(total, "n")), total),)
    found = merged(outputs)
    assert ops(found) == ["add", "relu", "skip_layer_norm_sum"]
    assert isinstance(fingerprint(outputs, found), Agreed)


def test_a_chain_of_layers_is_merged_in_one_walk() -> None:
    state = x(2, 3, 8)
    for i in range(6):
        state = term("add", state, term("relu", norm(state, f"n{i}")))
    outputs = (norm(state, "last"), state)
    found = merged(outputs)
    assert ops(found).count("skip_layer_norm_sum") == 6
    assert ops(found).count("layer_norm") == 1
    assert isinstance(fingerprint(outputs, found), Agreed)


def test_a_sum_that_only_the_norm_uses_is_left_to_the_smaller_fusion() -> None:
    a, b = x(2, 3, 8), x(2, 3, 8, name="y")
    first = norm(term("add", a, b), "n")
    outputs = (term("add", first, b),)
    assert merged(outputs) == outputs


def written(graph: Graph, weights: dict[str, np.ndarray]) -> Model:
    built = standalone(graph, {"": 20}, {k: StoredWeight(v) for k, v in weights.items()})
    return from_ir(to_ir(built))


ROWS, HEADS, SHARED, SIZE = 6, 4, 2, 8


def rotated(heads: Node, cos: Node, sin: Node) -> Node:
    """torch's apply_rotary_pos_emb."""
    half = SIZE // 2
    ranges = {"axes": (3,), "steps": (1,)}
    second = term("slice", heads, starts=(half,), ends=(SIZE,), **ranges)
    first = term("slice", heads, starts=(0,), ends=(half,), **ranges)
    turned = term("concat", term("neg", second), first, axis=3)
    return term("add", term("mul", heads, cos), term("mul", turned, sin))


def heads_of(a: Node, count: int) -> Node:
    split = term("reshape", a, shape=(1, ROWS, count, SIZE))
    return term("transpose", split, perm=(0, 2, 1, 3))


def repeated(heads: Node) -> Node:
    wide = term("expand", term("unsqueeze", heads, axes=(2,)), shape=(1, SHARED, HEADS // SHARED, ROWS, SIZE))
    return term("reshape", wide, shape=(1, HEADS, ROWS, SIZE))


def llama_attention(equal: bool) -> Model:
    """Attention with shared heads, rotary embedding and a mask, as torch exports it."""
    state, mask = x(1, ROWS, 16), x(1, 1, ROWS, ROWS, name="mask")
    cos, sin = w(1, 1, ROWS, SIZE, name="cos"), w(1, 1, ROWS, SIZE, name="sin")
    projections = {n: w(16, c * SIZE, name=n) for n, c in (("q", HEADS), ("k", SHARED), ("v", SHARED))}
    q, k, v = (
        heads_of(term("matmul", state, p), c)
        for p, c in zip(projections.values(), (HEADS, SHARED, SHARED), strict=True)
    )
    keys = term("transpose", repeated(rotated(k, cos, sin)), perm=(0, 1, 3, 2))
    scores = term("mul", term("matmul", rotated(q, cos, sin), keys), constant(SIZE**-0.5, "float32"))
    weighted = term("matmul", term("softmax", term("add", scores, mask), axis=3), repeated(v))
    joined = term("reshape", term("transpose", weighted, perm=(0, 2, 1, 3)), shape=(1, ROWS, HEADS * SIZE))
    rng = np.random.default_rng(0)
    angles = rng.normal(size=(1, 1, ROWS, SIZE // 2)).astype(np.float32)
    tables = {n: np.concatenate([f(angles)] * 2, -1) for n, f in (("cos", np.cos), ("sin", np.sin))}
    if not equal:
        tables["cos"] = tables["cos"] + np.float32(1e-7) * np.arange(SIZE, dtype=np.float32)
    values = {n: rng.normal(size=[int(d) for d in p.shape]).astype(np.float32) / 4 for n, p in projections.items()}
    return written(Graph((state, mask), (joined,)), values | tables)


@pytest.fixture(scope="module")
def attention() -> Result:
    return optimize_model(llama_attention(True), Config(measure=False, budget=5))


def test_shared_heads_and_angles_become_the_runtimes_operators(attention: Result) -> None:
    names = ops(attention.model.graph.outputs)
    assert names.count("contrib_rotary_embedding") == 2
    assert "multi_head_attention" in names
    assert "softmax" not in names
    assert attention.differences
    assert all(d.passed for d in attention.differences)


def test_halves_are_told_apart_bit_by_bit() -> None:
    _, steps = split_halves(llama_attention(True), {})
    assert len(steps[0].old) == 2
    _, steps = split_halves(llama_attention(False), {})
    assert [n.attr("name") for n in steps[0].old] == ["sin"]
    found = optimize_model(llama_attention(False), Config(measure=False, budget=2))
    assert "contrib_rotary_embedding" not in ops(found.model.graph.outputs)


def test_half_precision_is_fused_too() -> None:
    """On a machine whose runtime has the kernels (a GPU): here legality by the schema stands for
    it."""
    a = x(2, 3, 8, dtype="float16")
    total = term("add", a, x(2, 3, 8, name="y", dtype="float16"))
    scale, offset = (weight(n, Tensor("float16", (8,))) for n in "go")
    outputs = (term("layer_norm", total, scale, offset, axis=2, epsilon=1e-5),)
    found, _ = simplify(outputs, pass_order(rules())[-1], replace(CONTEXT, available=lambda node: True))
    assert ops(found) == ["skip_layer_norm"]


def test_a_mask_of_minus_infinity_keeps_its_guard() -> None:
    """A row that is masked whole is no number, which the guard of the export makes 0: no finite
    mask, so no fusion takes it away."""
    laws = [e for e in rules() if e.name.startswith("multi_head_attention") and "isnan" in show_equation(e)]
    assert len(laws) == 12  # the other half has no mask
    for number, fits in ((-3e38, True), (float("-inf"), False), (5.0, False)):
        guarded = guarded_attention(number)
        assert any(bool(match(law, guarded)) for law in laws) == fits


def scaled_attention(dtype: str, *, masked: bool) -> Node:
    """Attention as torch exports it, scaled on both sides and guarded, with heads of 64, and a mask
    that lets everything through or none."""
    number, rows, shape = np.asarray(64**-0.25, dtype), 9, (2, 9, 128)
    q, k, v = (term("reshape", x(*shape, name=n, dtype=dtype), shape=(2, rows, 2, 64)) for n in "qkv")
    queries = term("mul", term("transpose", q, perm=(0, 2, 1, 3)), constant(number))
    keys = term("mul", term("transpose", k, perm=(0, 2, 3, 1)), constant(number))
    scores = term("matmul", queries, keys)
    if masked:
        allowed = term("expand", constant(np.ones((1, 1, rows, 1), bool)), shape=(2, 1, rows, rows))
        scores = term("add", scores, term("where", allowed, constant(0.0, dtype), constant(-6e4, dtype)))
    weights = term("softmax", scores, axis=3)
    kept = term("where", term("isnan", weights), constant(0.0, dtype), weights)
    out = term("matmul", kept, term("transpose", v, perm=(0, 2, 1, 3)))
    return term("reshape", term("transpose", out, perm=(0, 2, 1, 3)), shape=shape)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_that_torch_guards_is_fused(dtype: str) -> None:
    context, proofs = replace(CONTEXT, available=lambda node: True), Proofs()
    outputs: tuple[Node, ...] = (scaled_attention(dtype, masked=True),)
    for stage in pass_order(rules(), proofs):
        outputs, _ = simplify(outputs, stage, context)
    (fused,) = outputs
    assert fused.op == "multi_head_attention"
    assert len(fused.args) == 3
    assert fused.attr("scale") == pytest.approx(0.125, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_scale_has_the_digits_of_a_product(dtype: str) -> None:
    """The fourth root of 1/64 has all digits of its dtype, and its square twice as many."""
    root = scaled_attention(dtype, masked=False)
    found = [(law, each) for law in rules() if law.name.startswith("multi_head") for each in matches(law, root)]
    ((law, each),) = found
    results = apply_equation(law, each)
    assert isinstance(results, tuple)
    assert Proofs().of(Application(law, each, results))
    (fused,) = results
    assert fused.attr("scale") == float(np.asarray(64**-0.25, dtype)) ** 2
    attrs = {**dict(fused.attrs), "scale": 0.125}
    assert not Proofs().of(Application(law, each, (term("multi_head_attention", *fused.args, **attrs),)))


def guarded_attention(number: float) -> Node:
    """Attention as torch exports it, masked with a number."""
    q, k, v = (heads_of(x(1, ROWS, HEADS * SIZE, name=n), HEADS) for n in "qkv")
    keys = term("transpose", k.args[0], perm=(0, 2, 3, 1))
    scores = term("mul", term("matmul", q, keys), constant(0.5, "float32"))
    allowed = x(1, 1, ROWS, ROWS, name="allowed", dtype="bool")
    mask = term("where", allowed, constant(0.0, "float32"), constant(number, "float32"))
    weights = term("softmax", term("add", scores, mask), axis=3)
    kept = term("where", term("isnan", weights), constant(0.0, "float32"), weights)
    joined = term("transpose", term("matmul", kept, v), perm=(0, 2, 1, 3))
    return term("reshape", joined, shape=(1, ROWS, HEADS * SIZE))


@pytest.mark.parametrize("keys", [16, 4])
def test_rows_without_keys_are_asked_for_behind_the_values_where_these_are_narrower(keys: int) -> None:
    """A softmax of minus infinities is NaN, for which exporters write 0."""
    heads, mask = Tensor("float32", (1, 2, 6, 8)), variable("m", Tensor("bool", (1, 1, 6, keys)))
    q, k, v = variable("q", heads), x(1, 2, 8, keys, name="k"), x(1, 2, keys, 8, name="v")
    zero, low = constant(0.0, "float32"), constant(-np.inf, "float32")
    shares = term("softmax", term("add", term("matmul", q, k), term("where", mask, zero, low)), axis=3)
    root = term("matmul", term("where", term("isnan", shares), zero, shares), v)
    (found,), _ = simplify((root,), pass_order(rules())[-1], Context({"": 17}, {}))
    assert (found.op == "where") == (keys > 8)
    rng = np.random.default_rng(0)
    values = {n.attr("name"): rng.normal(size=n.shape).astype(np.float32) for n in (q, k, v)}
    values["m"] = np.broadcast_to(np.tri(6, keys, -1, dtype=bool), mask.shape)  # the first row has no key
    before, after = (
        onnxruntime.InferenceSession(serialize(standalone(Graph((q, k, v, mask), (root,)), {"": 17}, {}))).run(
            None, values
        )[0]
        for root in (root, found)
    )
    np.testing.assert_allclose(after, before, atol=1e-6)
    assert not after[:, :, 0].any()
    assert after[:, :, 1:].all()
