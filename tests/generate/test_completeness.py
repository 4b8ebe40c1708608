"""Completeness: each known equation is in the shipped library, or follows from it in a few
steps."""

from __future__ import annotations

from itertools import islice

import pytest

from taso_mirage.generate.candidates import RuleCandidate
from taso_mirage.generate.settling import Needed
from taso_mirage.ir.terms import Node, substitute, topological, users
from taso_mirage.prove.rules.fuzz import typings
from taso_mirage.prove.rules.ladder import different
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.library import load_rules
from taso_mirage.rewriting.text import laws, show_equation
from taso_mirage.search.search import _only_grows, directions

CONV = "strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1"
POINT = "strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1"
THIN = "strides=(1, 1), pads=(0, 1, 0, 1), dilations=(1, 1), group=1"
ENLARGED = "pad(y, pads=(0, 0, 1, 0, 0, 0, 1, 0))"
FACTOR = "div(z, sqrt(add(w, 9.999999747378752e-06)))"
FIRST, SECOND = (f"slice(x, starts=({a},), ends=({b},), axes=(3,), steps=(1,))" for a, b in (("0", "d"), ("d", "2*d")))
COS, SIN = (f"reshape({each}, shape=(n, 1, s, d))" for each in "yz")
LN = "axes=(2,), keepdims=1"
SPLIT = "item(split({merged}, axis={axis}, split=({first}, {second})), index={i})"


def halves(merged: str, axis: int, first: str, second: str) -> str:
    parts = [SPLIT.format(merged=merged, axis=axis, first=first, second=second, i=i) for i in (0, 1)]
    return f"({parts[0]}, {parts[1]})"


KNOWN = {
    "merge parallel matmuls": (
        "(matmul(x, y), matmul(x, z)) == " + halves("matmul(x, concat(y, z, axis=1))", 1, "dim(y, 1)", "dim(z, 1)"),
        "x: (m, k), y: (k, a), z: (k, b)",
    ),
    "merge matmuls that share weights": (
        "(matmul(x, z), matmul(y, z)) == " + halves("matmul(concat(x, y, axis=0), z)", 0, "dim(x, 0)", "dim(y, 0)"),
        "x: (m, k), y: (n, k), z: (k, a)",
    ),
    "merge parallel convolutions": (
        f"(conv(x, y, {CONV}), conv(x, z, {CONV})) == "
        + halves(f"conv(x, concat(y, z, axis=0), {CONV})", 1, "dim(y, 0)", "dim(z, 0)"),
        "x: (n, c, h, w), y: (a, c, 3, 3), z: (b, c, 3, 3)",
    ),
    "merge convolutions with relu": (
        f"(relu(conv(x, y, {CONV})), relu(conv(x, z, {CONV}))) == "
        + halves(f"relu(conv(x, concat(y, z, axis=0), {CONV}))", 1, "dim(y, 0)", "dim(z, 0)"),
        "x: (n, c, h, w), y: (a, c, 3, 3), z: (b, c, 3, 3)",
    ),
    "concatenated outputs of convolutions": (
        f"concat(conv(x, y, {CONV}), conv(x, z, {CONV}), axis=1) == conv(x, concat(y, z, axis=0), {CONV})",
        "x: (n, c, h, w), y: (a, c, 3, 3), z: (b, c, 3, 3)",
    ),
    "sum of convolutions as one": (
        f"add(conv(x, y, {CONV}), conv(z, w, {CONV})) == conv(concat(x, z, axis=1), concat(y, w, axis=1), {CONV})",
        "x: (n, c, h, w), y: (a, c, 3, 3), z: (n, d, h, w), w: (a, d, 3, 3)",
    ),
    "grouped convolutions side by side": (
        "concat(conv(x, y, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1), "
        "conv(z, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1), axis=1) == conv(concat(x, z, axis=1), "
        "concat(y, w, axis=0), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=2)",
        "x: (n, c, h, w), y: (a, c, 3, 3), z: (n, c, h, w), w: (a, c, 3, 3)",
    ),
    "enlarge a kernel": (
        "conv(x, y, strides=(1, 1), pads=(0, 1, 0, 1), dilations=(1, 1), group=1) == "
        f"conv(x, pad(y, pads=(0, 0, 1, 0, 0, 0, 1, 0)), {CONV})",
        "x: (n, c, h, w), y: (a, c, 1, 3)",
    ),
    "matmul is associative": ("matmul(matmul(x, y), z) == matmul(x, matmul(y, z))", "x: (m, k), y: (k, a), z: (a, b)"),
    "matmul is linear": ("matmul(x, add(y, z)) == add(matmul(x, y), matmul(x, z))", "x: (m, k), y: (k, a), z: (k, a)"),
    "transpose of a product": (
        "transpose(matmul(x, y), perm=(1, 0)) == matmul(transpose(y, perm=(1, 0)), transpose(x, perm=(1, 0)))",
        "x: (m, k), y: (k, a)",
    ),
    "scale into weights": (
        f"mul(conv(x, y, {CONV}), z) == conv(x, mul(y, z), {CONV})",
        "x: (n, c, h, w), y: (a, c, 3, 3), z: ()",
    ),
    "average pool as convolution": (
        "average_pool(x, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), extra=(0, 0), count_include_pad=1) == "
        "conv(x, expand(div(1, 9), shape=(8, 1, 3, 3)), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=8)",
        "x: (n, 8, h, w)",
    ),
    "relu moves through concat": (
        "relu(concat(x, y, axis=1)) == concat(relu(x), relu(y), axis=1)",
        "x: (m, k), y: (m, a)",
    ),
    "relu moves through transpose": ("relu(transpose(x, perm=(1, 0))) == transpose(relu(x), perm=(1, 0))", "x: (m, k)"),
    "max pool of relu": (
        "relu(max_pool(x, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))) == "
        "max_pool(relu(x), kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))",
        "x: (n, c, h, w)",
    ),
    "softmax from its parts": (
        "div(exp(x), reduce_sum(exp(x), axes=(3,), keepdims=1)) == softmax(x, axis=3)",
        "x: (n, 2, s, t)",
    ),
    "attention from its parts": (
        "matmul(softmax(mul(matmul(x, transpose(y, perm=(0, 1, 3, 2))), 0.5), axis=3), z) == attention(x, y, z, scale=0.5)",
        "x: (n, 2, s, d), y: (n, 2, t, d), z: (n, 2, t, e)",
    ),
    "layer norm from RMS norm": (
        f"rms_norm(sub(x, reduce_mean(x, {LN})), y, axis=2, epsilon=1e-5) == layer_norm(x, y, axis=2, epsilon=1e-5)",
        "x: (b, s, d), y: (d)",
    ),
    "RMS norm from its parts": (
        f"mul(div(x, sqrt(add(reduce_mean(mul(x, x), {LN}), 9.999999747378752e-06))), y) == "
        "rms_norm(x, y, axis=2, epsilon=1e-05)",
        "x: (b, s, d), y: (d)",
    ),
    "skip layer norm": (
        "layer_norm(add(x, y), z, axis=2, epsilon=1e-5) == skip_layer_norm(x, y, z, epsilon=1e-5)",
        "x: (b, s, d), y: (b, s, d), z: (d)",
    ),
    "SiLU": ("mul(x, sigmoid(x)) == swish(x, alpha=1.0)", "x: (m, k)"),
    "GELU from its parts": (
        "mul(mul(x, add(erf(mul(x, 0.7071067690849304)), 1.0)), 0.5) == gelu(x)",
        "x: (m, k)",
    ),
    "GELU by tanh": (
        "mul(mul(x, add(tanh(mul(add(x, mul(mul(mul(x, x), x), 0.044714998453855515)), 0.7978845834732056)), 1.0)), 0.5) == "
        "gelu(x, approximate='tanh')",
        "x: (m, k)",
    ),
    "GELU with a bias": ("gelu(add(x, y)) == bias_gelu(x, y)", "x: (m, k), y: (k)"),
    "hard swish": ("mul(div(x, 6.0), clip(add(x, 3.0), 0.0, 6.0)) == hard_swish(x)", "x: (m, k)"),
    "Mish": ("mul(x, tanh(softplus(x))) == mish(x)", "x: (m, k)"),
    "enlarge and merge": (
        f"(conv(x, y, {THIN}), conv(x, z, {CONV})) == "
        + halves(f"conv(x, concat({ENLARGED}, z, axis=0), {CONV})", 1, "dim(y, 0)", "dim(z, 0)"),
        "x: (n, c, h, w), y: (a, c, 1, 3), z: (b, c, 3, 3)",
    ),
    "a pointwise convolution, then another": (
        f"conv(conv(x, y, {POINT}), z, {CONV}) == conv(x, transpose(reshape(matmul(transpose(reshape(y, shape=(2*g, 2*g)), perm=(1, 0)), "
        f"reshape(transpose(z, perm=(1, 0, 2, 3)), shape=(2*g, 18*g))), shape=(2*g, 2*g, 3, 3)), perm=(1, 0, 2, 3)), {CONV})",
        "x: (n, 2*g, h, w), y: (2*g, 2*g, 1, 1), z: (2*g, 2*g, 3, 3)",
    ),
    "a convolution, then a pointwise one": (
        f"conv(conv(x, z, {CONV}), y, {POINT}) == "
        f"conv(x, reshape(matmul(reshape(y, shape=(2*g, 2*g)), reshape(z, shape=(2*g, 18*g))), shape=(2*g, 2*g, 3, 3)), {CONV})",
        "x: (n, 2*g, h, w), y: (2*g, 2*g, 1, 1), z: (2*g, 2*g, 3, 3)",
    ),
    "scale of each output into weights": (
        f"mul(conv(x, y, {CONV}), reshape(z, shape=(2*g, 1, 1))) == conv(x, mul(y, reshape(z, shape=(2*g, 1, 1, 1))), {CONV})",
        "x: (n, 2*g, h, w), y: (2*g, 2*g, 3, 3), z: (2*g)",
    ),
    "batch normalization into weights": (
        f"batch_norm(conv(x, y, t, {CONV}), z, v, u, w, epsilon=1e-05) == add(conv(x, mul(y, reshape({FACTOR}, shape=(2*g, 1, 1, 1))), "
        f"{CONV}), reshape(sub(v, mul(sub(u, t), {FACTOR})), shape=(2*g, 1, 1)))",
        "x: (n, 2*g, h, w), y: (2*g, 2*g, 3, 3), z: (2*g), w: (2*g), v: (2*g), u: (2*g), t: (2*g)",
    ),
    "scale of columns into the weights of a matmul": (
        "mul(matmul(x, y), z) == matmul(x, mul(y, z))",
        "x: (m, k), y: (k, a), z: (a)",
    ),
    "product and bias as Gemm": ("add(matmul(x, y), z) == gemm(x, y, z)", "x: (m, k), y: (k, a), z: (a)"),
    "transpose into Gemm": ("matmul(x, transpose(y, perm=(1, 0))) == gemm(x, y, transB=1)", "x: (m, k), y: (a, k)"),
    "projections side by side": (
        "concat(matmul(x, y), matmul(x, z), axis=2) == matmul(x, concat(y, z, axis=1))",
        "x: (n, s, 2*d), y: (2*d, a), z: (2*d, b)",
    ),
    "merged projections through reshape and transpose": (
        "slice(transpose(reshape(matmul(x, concat(y, z, axis=1)), shape=(n, s, 4, d)), perm=(0, 2, 1, 3)), starts=(0,), ends=(2,), "
        "axes=(1,), steps=(1,)) == transpose(reshape(matmul(x, y), shape=(n, s, 2, d)), perm=(0, 2, 1, 3))",
        "x: (n, s, 2*d), y: (2*d, 2*d), z: (2*d, 2*d)",
    ),
    "query, key and value in one attention": (
        "multi_head_attention(matmul(x, y), matmul(x, z), matmul(x, w), v, num_heads=2, scale=0.5) == "
        "packed_attention(x, concat(y, z, w, axis=1), v, num_heads=2, scale=0.5)",
        "x: (n, s, 2*d), y: (2*d, 2*d), z: (2*d, 2*d), w: (2*d, 2*d), v: (6*d)",
    ),
    "biases of query, key and value": (
        "multi_head_attention(add(x, y), add(z, w), add(v, u), num_heads=2, scale=0.5) == "
        "multi_head_attention(x, z, v, concat(y, w, u, axis=0), num_heads=2, scale=0.5)",
        "x: (n, s, 2*d), y: (2*d), z: (n, a, 2*d), w: (2*d), v: (n, a, 2*d), u: (2*d)",
    ),
    "softmax without its shift": (
        "softmax(sub(x, reduce_max(x, axes=(3,))), axis=3) == softmax(x, axis=3)",
        "x: (n, 2, s, t)",
    ),
    "rotary embedding from its parts": (
        f"concat(sub(mul({FIRST}, {COS}), mul({SECOND}, {SIN})), add(mul({FIRST}, {SIN}), mul({SECOND}, {COS})), axis=3) == "
        "rotary_embedding(x, y, z)",
        "x: (n, 2, s, 2*d), y: (n, s, d), z: (n, s, d)",
    ),
    "rotary embedding by rotated halves": (
        "add(mul(x, reshape(concat(y, y, axis=2), shape=(n, 1, s, 2*d))), "
        f"mul(concat(neg({SECOND}), {FIRST}, axis=3), reshape(concat(z, z, axis=2), shape=(n, 1, s, 2*d)))) == rotary_embedding(x, y, z)",
        "x: (n, 2, s, 2*d), y: (n, s, d), z: (n, s, d)",
    ),
    "rotary embedding by positions": (
        "rotary_embedding(x, gather(y, z, axis=0), gather(w, z, axis=0)) == rotary_embedding(x, y, w, z)",
        "x: (n, 2, s, 2*d), y: (3, d), z: int64 (n, s), w: (3, d)",
    ),
    "layer norm and its offset": (
        "add(layer_norm(x, y, axis=2, epsilon=1e-5), z) == layer_norm(x, y, z, axis=2, epsilon=1e-5)",
        "x: (b, s, d), y: (d), z: (d)",
    ),
}


@pytest.fixture(scope="module")
def library() -> Needed:
    needed = Needed(0)
    needed.adopt(load_rules())
    return needed


@pytest.mark.parametrize("name", KNOWN)
def test_is_known(library: Needed, name: str) -> None:
    text, given = KNOWN[name]
    assert library.derives(RuleCandidate(text, given, 4)), text


ONE_OF_MANY = (
    "relu(transpose(x, ",
    "exp(transpose(x, ",
    "mul(transpose(x, ",
    "concat(relu(x, ",
    "concat(exp(x, ",
    "concat(mul(x, c), ",
)
"""Laws that one line states for all operators of a sort, of which the library has some."""


@pytest.mark.slow
def test_no_law_is_in_the_library_too() -> None:
    """A law that the optimizer could take from the library, in the directions in which it reads
    both, need not be written by hand."""
    known = Rules(directions(tuple(rule.equation for rule in load_rules())))
    double = []
    for law in laws():
        cases = different(list(islice(typings(law, 0, 1500), 200)), 24)
        ways = [lambda c: (c.lhs, c.rhs), *([lambda c: (c.rhs, c.lhs)] if len(directions((law,))) > 1 else [])]
        if cases and all(one_step(known, *way(c)) for way in ways for c in cases):
            double.append(show_equation(law))
    assert [text for text in double if not text.startswith(ONE_OF_MANY)] == []


def one_step(known: Rules, before: tuple[Node, ...], after: tuple[Node, ...]) -> bool:
    order = topological(before)
    used = users(order)
    return any(
        not _only_grows(application)
        and substitute(before, dict(zip(application.found.outputs, application.results, strict=True))) == after
        for node in order
        for application in (*known.applications(node), *known.joint_applications(node, used))
    )
