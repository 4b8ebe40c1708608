"""What a superoptimizer must know: each equation is in the shipped library, or follows from it in a few steps."""

from __future__ import annotations

import pytest

from taso_mirage.generate.candidates import Candidate
from taso_mirage.generate.settling import Needed
from taso_mirage.library import load

CONV = "strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1"
POINT = "strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1"
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
}


@pytest.fixture(scope="module")
def library() -> Needed:
    needed = Needed(0)
    needed.adopt(load())
    return needed


@pytest.mark.parametrize("name", KNOWN)
def test_is_known(library: Needed, name: str) -> None:
    text, given = KNOWN[name]
    assert library.derives(Candidate(text, given, 4)), text
