"""False neighbours of true equations of the operators that are more than arithmetic: a wrong scale,
other heads, halves that are turned the other way, steps, casts that narrow, groups."""

from __future__ import annotations

import pytest
from program_texts import text

from taso_mirage.checker import Accepted, Refused, check

HEADS = {
    "q": "float32['b', 's', 8]",
    "k": "float32['b', 't', 8]",
    "v": "float32['b', 't', 8]",
    "m": "float32[1, 1, 's', 't']",
}
HEADS |= {"p": "float32[24]", "u": "float32['b', 's', 8]"}
TURNED = {"x": "float32['b', 2, 's', 4]", "c": "float32['b', 's', 2]", "d": "float32['b', 's', 2]"}
TURNED |= {"f": "float32['r', 2]", "g": "float32['r', 2]", "i": "int64['b', 's']", "y": "float32['b', 's', 8]"}
READ = {"x": "float32['m', 'n']", "i": "int64['k']", "j": "int64['h']", "a": "int32['m']", "b": "int8['m']"}
READ |= {"h": "float16['m']", "f": "float32['m']", "g": "bfloat16['m']", "u": "uint8['m']", "l": "int64['m']"}
NORMED = {"x": "float32['n', 4, 'h', 'w']", "s": "float32[4]", "b": "float32[4]"}
CHANNELS_LAST = {"x": "float32['n', 'h', 'w', 4]", "s": "float32[4]", "b": "float32[4]"}
SILU = "groups=2, activation=1, epsilon=0.5"
ATTENTION = "is_causal=0, q_num_heads=2, kv_num_heads=2, scale=0.5, softcap=0.0, softmax_precision=None"
ROTARY = "interleaved=0, num_heads=0, rotary_embedding_dim=0"
LAST = "dim('2*n - 1')"
SLICED = "starts=({},), ends=({},), axes=(1,), steps=({},)"
STEPS = {"x": "float32['m', dim('2*n')]"}
APART = "a = reshape({}, shape=('b', {}, 2, 4)); "
BY_HAND = (
    "x1 = reshape(q, shape=('b', 's', 2, 4)); x2 = transpose(x1, perm=(0, 2, 1, 3)); "
    "x3 = reshape(k, shape=('b', 't', 2, 4)); x4 = transpose(x3, perm=(0, 2, 3, 1)); "
    "x5 = reshape(v, shape=('b', 't', 2, 4)); x6 = transpose(x5, perm=(0, 2, 1, 3)); "
    "x7 = mul(matmul(x2, x4), constant(value=array('float32', (), [0.5]))); x8 = softmax(add(x7, m), axis=3); "
    "x9 = transpose(matmul(x8, x6), perm=(0, 2, 1, 3)); reshape(x9, shape=('b', 's', 8))"
)
MULTI = "multi_head_attention(q, k, v, None, m, num_heads={}, scale={}, unidirectional=0)"
HALVES = (
    "x1 = slice(x, starts=(0,), ends=(2,), axes=(3,), steps=(1,)); x2 = slice(x, starts=(2,), ends=(4,), axes=(3,), steps=(1,)); "
    "c1 = reshape(c, shape=('b', 1, 's', 2)); d1 = reshape(d, shape=('b', 1, 's', 2)); "
    "concat(sub(mul(x1, c1), mul(x2, d1)), add(mul(x1, d1), mul(x2, c1)), axis=3)"
)
PAIRS = "concat(c1, d1, axis=3)"
NORM_BY_HAND = (
    "x1 = reshape(x, shape=('n', 2, dim('2*h*w'))); x2 = sub(x1, reduce_mean(x1, axes=(2,), keepdims=1)); "
    "x3 = add(reduce_mean(mul(x2, x2), axes=(2,), keepdims=1), constant(value=array('float32', (), [0.5]))); "
    "x4 = reshape(div(x2, sqrt(x3)), shape=('n', 4, 'h', 'w')); "
    "add(mul(x4, reshape(s, shape=(4, 1, 1))), reshape(b, shape=(4, 1, 1)))"
)
LAST_GROUPED = (
    "transpose(nhwc_group_norm(transpose(x, perm=(0, 2, 3, 1)), s, b, groups=2, activation=0, epsilon=0.5), "
    "perm=(0, 3, 1, 2))"
)
GROUPED = "group_norm(x, s, b, num_groups={}, epsilon={}, stash_type=1)"


def biased(*starts: int) -> str:
    """Attention over sums with parts of p."""
    parts = [f"slice(p, starts=({i},), ends=({i + 8},), axes=(0,), steps=(1,))" for i in starts]
    sums = "; ".join(f"x{i} = add({a}, {part})" for i, (a, part) in enumerate(zip("uqq", parts, strict=True)))
    return f"{sums}; multi_head_attention(x0, x1, x2, num_heads=2, scale=0.5)"


NEIGHBOURS: list[tuple[dict[str, str], str, str, list[str]]] = [  # true equalities, and false ones near them
    (
        HEADS,
        MULTI.format(2, 0.5),
        BY_HAND,
        [
            BY_HAND.replace("[0.5]", "[0.25]"),
            BY_HAND.replace("axis=3", "axis=2"),
            BY_HAND.replace("2, 4)", "4, 2)"),
            BY_HAND.replace("perm=(0, 2, 3, 1)", "perm=(0, 2, 1, 3)"),
            BY_HAND.replace(", m)", ", neg(m))"),
            BY_HAND.replace("add(x7, m)", "x7"),
            BY_HAND.replace("reshape(v,", "reshape(k,"),
            MULTI.format(4, 0.5),
            MULTI.format(2, 0.25),
            MULTI.format(2, 0.5).replace("q, k", "k, q"),
            MULTI.format(2, 0.5).replace("None, m", "None"),
            f"attention(q, k, v, m, {ATTENTION.replace('0.0', '2.0')})",
            f"attention(q, k, v, m, {ATTENTION.replace('causal=0', 'causal=1')})",
        ],
    ),
    (HEADS, MULTI.format(2, 0.5), f"attention(q, k, v, m, {ATTENTION})", [f"attention(q, v, k, m, {ATTENTION})"]),
    (
        HEADS,
        "multi_head_attention(u, q, q, p, num_heads=2, scale=0.5)",
        biased(0, 8, 16),
        [biased(8, 0, 16), biased(0, 16, 8), "multi_head_attention(u, q, q, num_heads=2, scale=0.5)"],
    ),
    (
        TURNED,
        f"rotary_embedding(x, c, d, {ROTARY})",
        HALVES,
        [
            HALVES.replace("starts=(0,), ends=(2,)", "starts=(2,), ends=(4,)"),
            HALVES.replace("sub(", "add("),
            HALVES.replace("c1)", "d1)"),
            f"rotary_embedding(x, d, c, {ROTARY})",
            f"rotary_embedding(x, c, d, {ROTARY.replace('interleaved=0', 'interleaved=1')})",
            f"rotary_embedding(x, c, c, {ROTARY})",
            HALVES.replace(
                "concat(sub(mul(x1, c1), mul(x2, d1)), add(mul(x1, d1), mul(x2, c1))",
                "concat(add(mul(x1, d1), mul(x2, c1)), sub(mul(x1, c1), mul(x2, d1))",
            ),
        ],
    ),
    (
        TURNED,
        f"rotary_embedding(x, f, g, i, {ROTARY})",
        f"rotary_embedding(x, gather(f, i, axis=0), gather(g, i, axis=0), {ROTARY})",
        [f"rotary_embedding(x, gather(g, i, axis=0), gather(f, i, axis=0), {ROTARY})", "x"],
    ),
    (
        TURNED,
        f"contrib_rotary_embedding(x, i, f, g, {ROTARY})",
        f"rotary_embedding(x, f, g, i, {ROTARY})",
        [
            f"rotary_embedding(x, g, f, i, {ROTARY})",
            "contrib_rotary_embedding(x, i, f, g, interleaved=1, num_heads=0, rotary_embedding_dim=0)",
        ],
    ),
    (
        READ,
        "gather(gather(x, i, axis=1), j, axis=1)",
        "gather(x, gather(i, j, axis=0), axis=1)",
        ["gather(x, i, axis=1)", "gather(gather(x, i, axis=0), j, axis=1)", "gather(x, gather(j, i, axis=0), axis=1)"],
    ),
    (
        READ,
        "exp(gather(x, i, axis=0))",
        "gather(exp(x), i, axis=0)",
        ["gather(exp(x), i, axis=1)", "gather(x, i, axis=0)", "exp(gather(x, j, axis=0))"],
    ),
    (
        STEPS,
        f"slice(slice(x, {SLICED.format(0, repr('z'), 1).replace(repr('z'), repr('n'))}), {SLICED.format(0, repr('n'), 1)})",
        f"slice(x, {SLICED.format(0, repr('n'), 1)})",
        [f"slice(x, {SLICED.format(repr('n'), 'dim(' + repr('2*n') + ')', 1)})"],
    ),
    (
        STEPS,
        f"slice(slice(x, {SLICED.format(LAST, -1, -1)}), {SLICED.format(LAST, -1, -1)})",
        "x",
        [f"slice(x, {SLICED.format(LAST, -1, -1)})"],
    ),
    (
        STEPS,
        f"exp(slice(x, {SLICED.format(0, 'dim(' + repr('2*n') + ')', 2)}))",
        f"slice(exp(x), {SLICED.format(0, 'dim(' + repr('2*n') + ')', 2)})",
        [
            f"slice(exp(x), {SLICED.format(1, 'dim(' + repr('2*n') + ')', 2)})",
            f"slice(exp(x), {SLICED.format(0, repr('n'), 1)})",
            f"exp(slice(x, {SLICED.format(LAST, -1, -2)}))",
        ],
    ),
    (
        READ,
        "cast(cast(h, to='float32'), to='float64')",
        "cast(h, to='float64')",
        ["cast(cast(h, to='bfloat16'), to='float64')"],
    ),
    (READ, "cast(cast(h, to='float32'), to='float16')", "h", ["neg(h)", "cast(cast(h, to='bfloat16'), to='float16')"]),
    (
        READ,
        "cast(cast(b, to='int32'), to='int8')",
        "b",
        ["cast(cast(b, to='float16'), to='uint8')", "cast(cast(b, to='bool'), to='int8')"],
    ),
    (READ, "cast(cast(b, to='float16'), to='int8')", "b", ["neg(b)"]),
    (
        READ,
        "cast(cast(a, to='float64'), to='int32')",
        "a",
        [
            "cast(cast(a, to='float32'), to='int32')",
            "cast(cast(a, to='float16'), to='int32')",
            "cast(cast(a, to='int16'), to='int32')",
        ],
    ),
    (
        READ,
        "cast(add(a, a), to='int8')",
        "cast(mul(a, constant(value=array('int32', (), [2]))), to='int8')",
        ["cast(a, to='int8')"],
    ),
    (READ, "cast(add(cast(b, to='int32'), cast(b, to='int32')), to='int8')", "add(b, b)", ["b"]),
    (
        READ,
        "cast(f, to='float16')",
        "cast(cast(f, to='float64'), to='float16')",
        ["cast(cast(f, to='bfloat16'), to='float16')"],
    ),
    (
        READ,
        "add(cast(b, to='int32'), cast(b, to='int32'))",
        "mul(cast(b, to='int32'), constant(value=array('int32', (), [2])))",
        ["cast(add(b, b), to='int32')"],
    ),
    (
        READ,
        "cast(u, to='float32')",
        "cast(cast(u, to='int32'), to='float32')",
        ["cast(cast(u, to='int8'), to='float32')"],
    ),
    (
        NORMED,
        GROUPED.format(2, 0.5),
        NORM_BY_HAND,
        [
            GROUPED.format(4, 0.5),
            GROUPED.format(1, 0.5),
            GROUPED.format(2, 0.25),
            GROUPED.format(2, 0.5).replace("s, b", "b, s"),
            "instance_norm(x, s, b, epsilon=0.5)",
            NORM_BY_HAND.replace("x3 = add(reduce_mean(mul(x2, x2)", "x3 = add(reduce_sum(mul(x2, x2)"),
            NORM_BY_HAND.replace("mul(x2, x2)", "x2"),
            NORM_BY_HAND.replace("div(x2, sqrt(x3))", "div(x2, x3)"),
            NORM_BY_HAND.replace("div(x2", "div(x1"),
        ],
    ),
    (
        NORMED,
        GROUPED.format(2, 0.5),
        LAST_GROUPED,
        [
            LAST_GROUPED.replace("groups=2", "groups=4"),
            LAST_GROUPED.replace("activation=0", "activation=1"),
            LAST_GROUPED.replace("epsilon=0.5", "epsilon=0.25"),
            LAST_GROUPED.replace("s, b", "b, s"),
        ],
    ),
    (
        {**CHANNELS_LAST, "y": "float32['n', 4]"},
        f"nhwc_skip_group_norm(x, s, b, y, {SILU})",
        f"a = nhwc_group_norm(add(x, reshape(y, shape=('n', 1, 1, 4))), s, b, {SILU.replace('=1', '=0')}); mul(a, sigmoid(a))",
        [
            f"nhwc_skip_group_norm(x, s, b, y, {SILU.replace('=1', '=0')})",
            f"nhwc_group_norm(x, s, b, {SILU})",
            f"nhwc_skip_group_norm(x, s, b, neg(y), {SILU})",
            f"nhwc_skip_group_norm(x, s, b, y, s, {SILU})",
        ],
    ),
    (
        NORMED,
        GROUPED.format(4, 0.5),
        "instance_norm(x, s, b, epsilon=0.5)",
        [
            "instance_norm(x, b, s, epsilon=0.5)",
            "instance_norm(x, s, b, epsilon=0.25)",
            "instance_norm(x, s, s, epsilon=0.5)",
        ],
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("leaves", "left", "right", "wrong"), NEIGHBOURS, ids=[f"{i} {row[1][:40]}" for i, row in enumerate(NEIGHBOURS)]
)
def test_false_neighbours_of_true_equations(leaves: dict[str, str], left: str, right: str, wrong: list[str]) -> None:
    assert check(text(left, **leaves), text(right, **leaves)) == Accepted()
    for other in wrong:
        assert isinstance(check(text(left, **leaves), text(other, **leaves)), Refused), other
