"""Boxes against brute force: within a box the elements that an output element is made of only move,
by the same steps everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from operator_uses import build, uses

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Node, Tensor, is_float, topological, variable
from taso_mirage.meanings.boxes import Boxes, Cut
from taso_mirage.meanings.degree import DEGREE
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import Op, term
from taso_mirage.search.partial.cells import boxes, splits

LARGEST = 400
"""Elements of an input, at most, that are looked at one by one."""


def image(*shape: int) -> Node:
    return variable("x", Tensor("float32", shape))


def kernel(*shape: int) -> Node:
    return variable("w", Tensor("float32", shape))


def conv(x: Node, w: Node, stride: int = 1, pad: int = 1, dilation: int = 1, group: int = 1) -> Node:
    n = len(x.shape) - 2
    return term("conv", x, w, strides=(stride,) * n, pads=(pad,) * (2 * n), dilations=(dilation,) * n, group=group)


def support(output: Node, values: dict[Node, Any], of: Node) -> np.ndarray:
    """The elements of one operand on which each element of the output depends: (outputs,
    elements)."""
    shape = values[of].shape
    rows = []
    base = interpret([output], EXACT, {**values, of: EXACT.load(np.zeros(shape))})[output]
    for i in range(values[of].size):
        unit = np.zeros(values[of].size)
        unit[i] = 1.0
        found = interpret([output], EXACT, {**values, of: EXACT.load(unit.reshape(shape))})[output]
        rows.append(np.asarray(found - base).reshape(-1) != 0)
    return np.array(rows).T


def moves(found: np.ndarray, shape: tuple[int, ...], a: int, b: int) -> tuple[int, ...] | None:
    """How far the elements of `a` have moved to be those of `b`; () where there are none."""
    first, second = (np.argwhere(found[k].reshape(shape)) for k in (a, b))
    if len(first) != len(second):
        return None
    gaps = {tuple(row) for row in second - first}
    return None if len(gaps) > 1 else next(iter(gaps), ())


def assert_boxes(output: Node, values: dict[Node, Any]) -> int:
    """The number of boxes, each of which was looked at."""
    (points,) = splits([output])
    shape = tuple(int(n) for n in output.shape)
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    every = list(boxes(shape, points))
    for of in (n for n in values if n.op == "input" and values[n].size <= LARGEST and values[n].dtype.kind == "f"):
        found = support(output, values, of)
        for box in every:
            inside = numbers[tuple(slice(*interval) for interval in box)]
            for axis in range(inside.ndim):
                ahead, behind = (np.delete(inside, cut, axis).reshape(-1) for cut in (0, -1))
                steps = {moves(found, values[of].shape, int(a), int(b)) for a, b in zip(behind, ahead, strict=True)}
                assert len(steps) <= 1, (output, box, axis, steps)
                assert None not in steps, (output, box, axis)
    return len(every)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), [use for use in uses() if use.values[0].name != "winograd"])
def test_every_operator(op: Op, i: int) -> None:
    """All but winograd, which no model has: its sums cancel elements that a result does not depend
    on, but for rounding."""
    use = build(op, i)
    for output in use.outputs:
        try:
            splits([output])
        except Unsupported:
            continue
        if 0 < int(np.prod(output.shape)) <= LARGEST and is_float(output.dtype):
            values = {n: EXACT.load(v) if np.asarray(v).dtype.kind == "f" else v for n, v in use.values.items()}
            assert_boxes(output, values)


REFUSED = {
    "gather_elements",
    "gather_nd",
    "contrib_rotary_embedding",
}  # indices that are computed, or one for each element
REFUSED |= {"cast"}  # which rounds, in some examples
REFUSED |= {
    "attention_cached",
    "attention_traced",
    "nhwc_skip_group_norm_sum",
    "skip_layer_norm_sum",
    "skip_rms_norm_sum",
}  # for their other result
REFUSED |= {"dequantize", "matmul_integer_to_float", "qgemm"}  # scales of few numbers, and integers
REFUSED |= {"scatter_nd", "scatter_elements", "scatter", "tensor_scatter"}  # as for gathers


def test_what_is_refused_though_it_is_multilinear() -> None:
    """Among the operators whose degree is at most 1 in each operand, only these end a region; so no
    example above is skipped unseen."""
    refused, taken = set(), set()
    for op, i in (use.values for use in uses()):
        use = build(op, i)
        notes = {n: (n.tensor, {n.attr("name"): 1} if n.op == "input" else {}) for n in use.values}
        for output in use.outputs:
            try:
                _, degrees = interpret([output], DEGREE, notes)[output]
            except (Unsupported, IllTyped):
                continue
            if degrees and max(degrees.values()) <= 1 and is_float(output.dtype):
                try:
                    splits([output])
                    taken.add(op.name)
                except Unsupported:
                    refused.add(op.name)
    assert refused == REFUSED
    assert taken >= {
        "conv",
        "conv_transpose",
        "matmul",
        "einsum",
        "pad",
        "slice",
        "concat",
        "reshape",
        "average_pool",
        "resize",
    }


def drawn(output: Node) -> dict[Node, Any]:
    rng = np.random.default_rng(0)
    leaves = [n for n in topological([output]) if n.op == "input"]
    return {n: EXACT.load(rng.uniform(1, 2, [int(d) for d in n.shape])) for n in leaves}


X, W = image(1, 2, 6, 6), kernel(2, 2, 3, 3)
MERGED = term("reshape", term("transpose", image(2, 2, 4, 4), perm=(1, 2, 0, 3)), shape=(1, 2, 4, 8))
PROGRAMS = {
    "a 3 x 3 convolution has nine boxes": (conv(X, W), 9),
    "a strided one has four": (conv(X, W, stride=2), 4),
    "a dilated one has its borders and 2 rows": (conv(X, W, pad=2, dilation=2), 9),
    "without a border there is one": (conv(X, W, pad=0), 1),
    "groups are boxes": (conv(image(1, 4, 5, 5), kernel(4, 2, 1, 1), pad=0, group=2), 2),
    "two images side by side have a seam": (conv(MERGED, kernel(2, 2, 3, 3)), 3 * 6),
    "halves of a sum": (term("concat", X, term("neg", X), axis=1), 2),
    "a product of matrices": (term("matmul", image(4, 5), kernel(5, 3)), 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    output, count = PROGRAMS[name]
    assert assert_boxes(output, drawn(output)) == count


def test_what_is_not_linear_ends_a_region() -> None:
    for output in (
        term("relu", X),
        term("max_pool", X, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1)),
    ):
        with pytest.raises(Unsupported, match="not linear"):
            splits([output])


def test_a_split_point_too_few_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brute force sees a border that the meaning overlooks."""

    class Blind(Boxes):
        def pad(self, *args: Any, **kwargs: Any) -> Cut:
            found = super().pad(*args, **kwargs)
            return replace(found, splits=(frozenset(),) * len(found.splits))

    output = conv(X, W)
    monkeypatch.setattr("taso_mirage.search.partial.cells.BOXES", Blind())
    with pytest.raises(AssertionError):
        assert_boxes(output, drawn(output))


def test_a_conversion_that_rounds_is_not_linear() -> None:
    assert splits([term("cast", image(1, 1, 2, 2), to="float64")])
    with pytest.raises(Unsupported, match="rounds"):
        splits([term("cast", image(1, 1, 2, 2), to="float16")])
