"""Partial equivalence: where programs agree, exactly; restricted programs; corrected ones equal
their original everywhere."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

import numpy as np
import pytest
from operator_uses import build, uses
from partial_programs import (
    assert_region,
    conv,
    differing,
    graph,
    image,
    inside,
    kernel,
    mutant,
    part,
    program,
    side_by_side,
)

from taso_mirage.errors import Unsupported
from taso_mirage.forms.base.form import known_forms
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Node, Tensor, constant, is_float, topological, variable
from taso_mirage.meanings.field import Field
from taso_mirage.meanings.residues import P
from taso_mirage.operators.ops import Op, get, term
from taso_mirage.operators.traits import Box, Inner
from taso_mirage.rewriting.equation import apply_equation, match
from taso_mirage.rewriting.text import parse_equation, show_equation
from taso_mirage.search.partial import agreement as partial_agreement
from taso_mirage.search.partial.agreement import Agreement, agreement, program_leaves
from taso_mirage.search.partial.cells import splits
from taso_mirage.search.partial.correct import correct
from taso_mirage.search.partial.pieces import merged_boxes, pieces
from taso_mirage.search.partial.restrict import Restriction
from taso_mirage.search.partial.whole import Total, total, verified_program
from taso_mirage.verdicts import Failure

# ---------------------------------------------------------------- two images side by side

X, W = image(2, 3, 6, 6), kernel(3, 3, 3, 3)


def test_two_images_side_by_side() -> None:
    original, other = graph(conv(X, W)), graph(side_by_side(X, W))
    found = agreement(original, other)
    assert found.whole
    assert not found.total
    assert merged_boxes(found.regions[0], False) == [((0, 1), (0, 3), (0, 6), (5, 6)), ((1, 2), (0, 3), (0, 6), (0, 1))]
    assert found.regions[0].share == pytest.approx(10 / 12)
    assert_region(original, other, found)
    made = total(original, other)
    assert isinstance(made, Total)
    assert not differing(original, made.corrected, seed=91).any()
    convs = [n for n in topological(made.corrected.outputs) if n.op == "conv"]
    assert len(convs) == 2, "both seams are corrected by one convolution"
    assert sorted(n.args[0].shape for n in convs) == [(1, 3, 6, 12), (2, 3, 8, 3)]


def test_many_images_side_by_side_have_two_corrections() -> None:
    x = image(16, 2, 5, 5)
    made = total(graph(conv(x, W2)), graph(side_by_side(x, W2)), joined=False)
    assert isinstance(made, Total)
    convs = [n for n in topological(made.corrected.outputs) if n.op == "conv"]
    assert sorted(n.args[0].shape for n in convs) == [(1, 2, 5, 80), (15, 2, 5, 2), (15, 2, 5, 2)]


W2 = kernel(2, 2, 3, 3)


def test_the_equation_applies_at_these_sizes_alone() -> None:
    original = graph(conv(X, W))
    made = total(original, graph(side_by_side(X, W)), "merged")
    assert isinstance(made, Total)
    found = match(made.equation, original.outputs[0])
    assert found
    assert apply_equation(made.equation, found) == made.corrected.outputs
    assert not match(made.equation, conv(image(2, 3, 6, 8), W))
    halves = (variable(n, Tensor("float16", leaf.shape)) for n, leaf in (("x", X), ("w", W)))
    assert not match(made.equation, conv(*halves))
    assert parse_equation(show_equation(made.equation), "merged", made.equation.evidence) == made.equation
    assert "24 random field trials" in made.equation.evidence


def test_points_find_what_all_elements_show() -> None:
    original, other = graph(conv(X, W)), graph(side_by_side(X, W))
    few = agreement(original, other, limit=0)
    assert not few.whole
    assert np.array_equal(few.regions[0].passed, agreement(original, other).regions[0].passed)


def test_trials_that_do_not_fit_side_by_side_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight of a language model's head took gigabytes for each trial."""
    original, other = graph(conv(X, W)), graph(side_by_side(X, W))
    monkeypatch.setattr(partial_agreement, "ELEMENTS", 3 * partial_agreement.widest(other.outputs))
    for limit in (0, 10**9):
        found = agreement(original, other, limit=limit)
        assert found.regions[0].passed.max() == found.trials == 8
        assert_region(original, other, found)
    monkeypatch.setattr(partial_agreement, "ELEMENTS", partial_agreement.widest(other.outputs) - 1)
    with pytest.raises(Unsupported, match="a term has 216 elements, 215 at most are compared"):
        agreement(original, other)


def test_many_boxes_are_compared_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A depthwise convolution has a box for every channel and border; at points each took
    milliseconds."""
    original, other = graph(conv(X, W)), graph(side_by_side(X, W))
    flops = 8 * partial_agreement.field_work((*original.outputs, *other.outputs))
    assert not agreement(original, other, limit=flops - 1).whole
    monkeypatch.setattr(partial_agreement, "BOX", 1.0)
    assert agreement(original, other, limit=flops - 1).whole
    monkeypatch.setattr(partial_agreement, "MANY", 3)
    with pytest.raises(Unsupported, match="boxes are too many to compare"):
        agreement(original, other, limit=0)


def test_no_trial_is_drawn_for_two_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the trials that verify a region would be those that found it, where trials run in
    turn."""
    drawn: list[int] = []

    class Seen(Field):
        def __init__(self, trials: int, seed: int) -> None:
            drawn.extend(range(seed, seed + trials))
            super().__init__(trials, seed)

    original, other = graph(conv(X, W)), graph(side_by_side(X, W))
    monkeypatch.setattr(partial_agreement, "Field", Seen)
    monkeypatch.setattr(partial_agreement, "ELEMENTS", partial_agreement.widest(other.outputs))
    assert isinstance(total(original, other), Total)
    assert len(drawn) > 8
    assert len(set(drawn)) == len(drawn)


def test_the_bound_is_stored() -> None:
    found = agreement(graph(conv(X, W)), graph(side_by_side(X, W)), trials=3)
    assert (found.trials, found.leaves, found.bound) == (3, 2, (2 / P) ** 3)
    assert set(found.regions[0].passed.flat) == {0, 3}


def test_without_a_correction_it_is_not_verified() -> None:
    refused = verified_program(graph(conv(X, W)), graph(side_by_side(X, W)))
    assert isinstance(refused, Failure)
    assert "in the field" in refused.reason


def test_what_rounds_otherwise_is_not_verified() -> None:
    """Equal in the field, but a large number comes and goes."""
    big = constant(1e7, "float32")
    lossy = term("sub", term("add", conv(X, W), big), big)
    refused = verified_program(graph(conv(X, W)), graph(lossy))
    assert isinstance(refused, Failure)
    assert "is off by" in refused.reason


DYNAMIC = variable("x", Tensor("float32", (symbol("n"), 3)))
REFUSED = {
    "not linear": (term("relu", X), X, "not linear|degree"),
    "twice": (term("mul", X, X), X, "degree 2 in x"),
    "another type": (conv(X, W), conv(X, W, pad=2), "keeps types"),
    "a size that is not fixed": (term("neg", DYNAMIC), DYNAMIC, "must be fixed"),
    "nothing": (term("neg", image(2, 0)), image(2, 0), "at least 1"),
    "another leaf": (conv(X, W), conv(image(2, 3, 6, 6, name="z"), W), "reads z"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    original, other, reason = REFUSED[name]
    with pytest.raises(Unsupported, match=reason):
        agreement(graph(original), graph(other))


def test_what_agrees_nowhere_is_refused() -> None:
    original, other = graph(conv(X, W)), graph(term("neg", conv(X, W)))
    with pytest.raises(Unsupported, match="agree nowhere"):
        correct(original, other, agreement(original, other))


def test_a_correction_as_large_as_the_original_is_refused() -> None:
    """Each of four strips needs the rows around it of the convolution below."""
    x, v, w = image(1, 2, 8, 6), kernel(2, 2, 5, 5, name="v"), kernel(2, 2, 5, 5)
    original, below = (conv(conv(each, v, pad=2), w, pad=2) for each in (x, term("neg", x)))
    right = term("neg", below)
    strips = [part(right if i % 2 else below, 2, i, i + 1) for i in range(8)]
    other = term("concat", *strips, axis=2)
    with pytest.raises(Unsupported, match="no part of it is smaller"):
        correct(graph(original), graph(other), agreement(graph(original), graph(other)))


def test_summands_that_move_apart_need_all_elements() -> None:
    """x5 + x6, x6 + x5, x7 + x4: two points agree, the third does not.

    A comparison that is restricted to points is never proof alone.
    """
    x = image(12)
    apart = term("add", part(x, 0, 5, 9), part(x, 0, 6, 2, -1))
    still = term("expand", term("add", part(x, 0, 5, 6), part(x, 0, 6, 7)), shape=(4,))
    assert agreement(graph(apart), graph(still), limit=0).total
    assert not agreement(graph(apart), graph(still)).total
    assert not verified_program(graph(apart), graph(still))


def test_points_draw_what_is_read_with_steps() -> None:
    """A slice that is no longer than the points is not restricted: it reads the input itself,
    beside a smaller part that another reads."""
    x = image(8)
    odd, even = (term("add", part(x, 0, 0, 2), part(x, 0, start, start + 4, 2)) for start in (3, 2))
    assert not agreement(graph(odd), graph(even), limit=0).regions[0].same.any()


def test_a_wrong_restriction_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_border(inner: Inner, node: Node, box: Box) -> Node:
        right = conv_rule(inner, node, box)
        x, *rest = right.args
        pads = x.attr("pads")
        turned = term("pad", *x.args, pads=(*pads[:3], pads[7], *pads[4:7], pads[3]))
        return term("conv", turned, *rest, **dict(right.attrs))

    conv_rule = get("conv").traits.restrict
    assert conv_rule is not None
    monkeypatch.setattr(get("conv").traits, "restrict", without_border)
    made = total(graph(conv(X, W)), graph(side_by_side(X, W)))
    assert isinstance(made, Failure)
    assert "in the field" in made.reason


def test_several_outputs_have_regions_of_their_own() -> None:
    original = graph(conv(X, W), conv(term("neg", X), W))
    other = graph(side_by_side(X, W), term("neg", conv(X, W)))
    found = agreement(original, other)
    assert [r.same.all() for r in found.regions] == [False, True]
    made = total(original, other)
    assert isinstance(made, Total)
    assert made.corrected.outputs[1] is other.outputs[1]
    assert len(made.equation.lhs.outputs) == 2


# ---------------------------------------------------------------- restriction and pieces


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(80))
def test_a_restricted_program_is_a_part_of_the_whole(seed: int) -> None:
    draw = np.random.default_rng(seed)
    whole = program(draw)
    (output,) = whole.outputs
    for _ in range(4):
        ends = [sorted(draw.choice(int(n) + 1, 2, replace=False).tolist()) for n in output.shape]
        box = tuple((int(a), int(b)) for a, b in ends)
        axes = range(len(box))
        starts, stops = zip(*box, strict=True)
        wanted = term("slice", output, starts=starts, ends=stops, axes=axes, steps=(1,) * len(box))
        assert not differing(graph(wanted), graph(Restriction()(output, box)), seed).any(), (output, box)


WITHOUT_RULE = (
    *"conv_transpose cumsum einsum eye_like gather linear_attention matmul_nbits one_hot resample trilu".split(),
    *(form.program.op for form in known_forms()),
)
"""The operators that have no mutants among those that may be linear; and products with vectors, and
pads that mirror."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), uses())
def test_every_linear_operator_has_a_restriction(op: Op, i: int) -> None:
    use = build(op, i)
    (output, *_) = use.outputs
    try:
        splits([output])
        shape = [int(n) for n in output.shape]
    except Unsupported:
        return
    if not is_float(output.dtype) or 0 in shape or not any(is_float(n.dtype) for n in program_leaves([output])):
        return
    draw = np.random.default_rng(i)
    for _ in range(3):
        ends = [sorted(draw.choice(n + 1, 2, replace=False).tolist()) for n in shape]
        box = tuple((int(a), int(b)) for a, b in ends)
        wanted = output
        for axis, (a, b) in enumerate(box):
            wanted = part(wanted, axis, a, b)
        found = restricted(output, box)
        if found is None:
            return
        assert not differing(graph(wanted), graph(found), i).any(), box


def restricted(output: Node, box: Box) -> Node | None:
    known = "|".join([*WITHOUT_RULE, "a product with a vector", "pad of mode (reflect|edge|wrap)"])
    try:
        return Restriction()(output, box)
    except Unsupported as error:
        if not re.match(f"(a part of )?({known}) has no restriction", str(error)):
            raise
        return None


def test_a_range_that_crosses_rows_is_their_parts() -> None:
    """Two images in a row, the columns at their seam: one column of each, and no more of them."""
    flat = term("reshape", term("transpose", conv(X, W), perm=(1, 2, 0, 3)), shape=(1, 3, 6, 12))
    seam = Restriction()(flat, ((0, 1), (0, 3), (0, 6), (5, 7)))
    convs = [n for n in topological([seam]) if n.op == "conv"]
    assert [n.shape for n in convs] == [(1, 3, 6, 1)] * 2
    assert not differing(graph(part(flat, 3, 5, 7)), graph(seam), 0).any()


def test_pieces_tile_the_output() -> None:
    for seed, axis in product(range(10), (2, 3)):
        found = random_agreement(seed, axis)
        for region in found.regions:
            seen = np.zeros([e[-1] for e in region.edges], int)
            same = np.zeros(seen.shape, bool)
            for box in region.boxes(True):
                same[inside(box)] = True
            for each in pieces(region).leaves():
                seen[inside(each.box)] += 1
                assert (same[inside(each.box)] == each.agrees).all()
            assert (seen == 1).all()


def random_agreement(seed: int, axis: int) -> Agreement:
    draw = np.random.default_rng(seed)
    x = image(1, 1, 6, 6)
    at = int(draw.integers(1, 5))
    original = conv(x, kernel(1, 1, 3, 3))
    parts = [part(original, axis, 0, at), term("neg", part(original, axis, at, 6))]
    return agreement(graph(original), graph(term("concat", *parts[:: 1 if seed % 2 else -1], axis=axis)))


def test_a_ragged_region_is_refused() -> None:
    x = image(1, 1, 24, 24)
    checks = constant(np.indices((24, 24)).sum(axis=0).reshape(1, 1, 24, 24) % 2 * 2 - 1.0, "float32")
    found = agreement(graph(x), graph(term("mul", x, checks)))
    with pytest.raises(Unsupported, match="too ragged"):
        pieces(found.regions[0])


# ---------------------------------------------------------------- random programs, random mutants

SEEDS = 25


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chunk", [pytest.param(i, marks=[pytest.mark.slow] * (i > 2)) for i in range(6)])
def test_a_corrected_mutant_equals_its_original(chunk: int) -> None:
    """Every chunk has many mutants that are right on a part alone, and corrected."""
    outcomes = Counter(outcome(seed) for seed in range(chunk * SEEDS, (chunk + 1) * SEEDS))
    assert outcomes["corrected"] >= 3, outcomes
    assert outcomes["right"] >= 2, outcomes
    assert outcomes["right, but refused"] == 0, outcomes


def outcome(seed: int) -> str:
    """A random program and a mutant of it: the region is exact, and the corrected mutant is the
    original."""
    draw = np.random.default_rng(seed)
    original = program(draw)
    other = mutant(draw, original)
    if other is None:
        return "no mutant"
    found = agreement(original, other, seed=seed)
    assert_region(original, other, found)
    few = agreement(original, other, seed=seed, limit=0)
    assert not few.whole
    assert np.array_equal(few.regions[0].same, found.regions[0].same)
    try:
        corrected = correct(original, other, found)
    except Unsupported:
        return "right, but refused" if found.total else "refused"
    for each in range(3):
        assert not differing(original, corrected, seed=each).any()
    assert verified_program(original, corrected)
    return "right" if found.total else "corrected"
