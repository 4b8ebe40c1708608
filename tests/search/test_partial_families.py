"""Every family of mutants: its region is found, its correction makes it whole, and a mutant that
should be right everywhere is."""

from __future__ import annotations

import numpy as np
import pytest
from partial_programs import assert_region, conv, graph, image, kernel, side_by_side

from taso_mirage.ir.terms import Node, constant, topological
from taso_mirage.operators.ops import term
from taso_mirage.search.partial.agreement import agreement
from taso_mirage.search.partial.candidates import CorrectedMutant, candidates
from taso_mirage.search.partial.families import families, mutants_of, variants
from taso_mirage.search.partial.picture import picture
from taso_mirage.search.partial.whole import Total, total, verified_program
from taso_mirage.verdicts import Failure


def pool(x: Node, count: int, stride: int = 1) -> Node:
    attrs = {"kernel": (3, 3), "strides": (stride,) * 2, "pads": (1,) * 4, "dilations": (1, 1), "extra": (0, 0)}
    return term("average_pool", x, **attrs, count_include_pad=count)


def blocks(w: Node) -> Node:
    """Weights of two groups as those of one: zeros across."""
    o, c, i, j = (int(n) for n in w.shape)
    rows = term("mul", term("reshape", w, shape=(1, 2, o // 2, 1, c, i, j)), DIAGONAL)
    return term("reshape", rows, shape=(o, 2 * c, i, j))


DIAGONAL = constant(np.eye(2).reshape(1, 2, 1, 2, 1, 1, 1), "float32")
X, W, B, B2 = image(4, 2, 8, 8), kernel(4, 2, 3, 3), kernel(4, name="b"), kernel(4, name="c")
DEEP = {"strides": (1, 1, 1), "pads": (0, 1, 1) * 2, "dilations": (1, 1, 1)}
CUBE = term("conv", image(2, 2, 3, 3, 4), kernel(2, 2, 1, 3, 3), **DEEP)
SMALL, OTHER = kernel(4, 2, 1, 1, name="v"), image(4, 2, 8, 8, name="y")

CASES = {
    "batch into axis 2": (conv(X, W), {26 / 32, 28 / 32, 1.0}),
    "batch into axis 3": (term("conv", X, W, B, strides=(1, 2), pads=(1,) * 4, dilations=(1, 1)), None),
    "batch into axis 4": (CUBE, {6 / 8, 1.0}),
    "axis 2 into batch": (conv(X, W), {6 / 8, 2 / 8, 1.0}),
    "axis 3 into batch": (conv(X, W, stride=2), {3 / 4, 1 / 4, 1.0}),
    "axis 4 into batch": (CUBE, {1 / 2, 0.0, 1.0}),
    "dilated to dense": (conv(X, W, pad=2, dilation=2), {1.0}),
    "strided to dense": (conv(X, W, stride=2), {1.0}),
    "space to depth": (conv(image(2, 2, 7, 9), W, stride=2), {1.0}),
    "fewer groups": (conv(image(2, 4, 6, 6), kernel(8, 1, 3, 3), group=4), {1.0}),
    "more groups": (conv(image(2, 4, 6, 6), blocks(W)), {1.0, 0.0}),
    "axes exchanged": (
        term("conv", X, kernel(4, 2, 1, 7), strides=(1, 1), pads=(0, 3, 0, 3), dilations=(1, 1)),
        {1.0},
    ),
    "parallel to grouped": (term("concat", conv(X, W), conv(OTHER, SMALL, pad=0), axis=1), {1.0}),
    "pool to convolution": (pool(X, 0), {36 / 64}),
    "matmul to batched": (term("matmul", image(8, 6), kernel(6, 16)), {1.0}),
    "batched to matmul": (term("matmul", image(2, 3, 4, 6), kernel(6, 5)), {1.0}),
}


def test_every_family_has_a_case() -> None:
    assert CASES.keys() == families().keys()


@pytest.mark.parametrize("name", CASES)
def test_family(name: str) -> None:
    output, shares = CASES[name]
    original, found = graph(output), set()
    for new in variants(families()[name], output):
        other = graph(new)
        seen = agreement(original, other)
        assert_region(original, other, seen)
        made = total(original, other, name)
        share = seen.regions[0].share
        assert isinstance(made, Total) or share < 0.3, made
        found.add(round(share, 6))
    assert found, "the family has no mutant"
    if shares is not None:
        assert found == {round(s, 6) for s in shares}


EXACT = {
    "odd sizes, pads that do not divide": conv(image(1, 2, 7, 9), W, pad=1, dilation=2),
    "three steps": conv(image(1, 2, 11, 10), W, pad=3, dilation=3),
    "two dilations": term("conv", X, W, strides=(1, 1), pads=(2, 3, 2, 3), dilations=(2, 3)),
    "one axis": term("conv", X, W, strides=(1, 1), pads=(1, 2, 1, 2), dilations=(1, 2)),
}


@pytest.mark.parametrize("name", EXACT)
def test_dilated_to_dense_is_exact(name: str) -> None:
    output = EXACT[name]
    (new,) = variants(families()["dilated to dense"], output)
    assert agreement(graph(output), graph(new)).total
    assert {n.attr("dilations") for n in topological([new]) if n.op == "conv"} == {(1, 1)}


@pytest.mark.parametrize(("size", "stride", "kernel_size"), [(7, 2, 3), (8, 2, 3), (9, 3, 5), (8, 2, 2), (11, 4, 7)])
def test_space_to_depth_is_exact(size: int, stride: int, kernel_size: int) -> None:
    output = conv(image(1, 2, size, size + 1), kernel(4, 2, kernel_size, kernel_size), stride=stride)
    (new,) = variants(families()["space to depth"], output)
    assert agreement(graph(output), graph(new)).total
    assert {n.attr("strides") for n in topological([new]) if n.op == "conv"} == {(1, 1)}


def test_a_stride_of_a_point_is_a_slice_of_the_image() -> None:
    output = conv(X, SMALL, stride=2, pad=0)
    first, second = variants(families()["strided to dense"], output)
    assert first.op == "conv"
    assert second.op == "slice"


def test_parallel_convolutions_of_one_image_are_one_dense_one() -> None:
    output = term("concat", conv(X, W), conv(X, SMALL, pad=0), axis=1)
    dense, grouped = variants(families()["parallel to grouped"], output)
    assert (dense.attr("group"), grouped.attr("group")) == (1, 2)
    assert agreement(graph(output), graph(dense)).total
    assert agreement(graph(output), graph(grouped)).total


def test_parallel_convolutions_with_a_bias() -> None:
    biased = [term("conv", x, W, b, strides=(1, 1), pads=(1,) * 4, dilations=(1, 1)) for x, b in ((X, B), (OTHER, B2))]
    (new,) = variants(families()["parallel to grouped"], term("concat", *biased, axis=1))
    assert agreement(graph(term("concat", *biased, axis=1)), graph(new)).total


def test_groups_and_back() -> None:
    """Dense, then grouped again: one family undoes the change of another."""
    output = conv(image(2, 4, 6, 6), W, group=2)
    found = [m.graph for m in mutants_of(graph(output), 2) if m.families == ("fewer groups", "more groups")]
    (back,) = [each for each in found if each.outputs[0].attr("group") == 2]
    assert agreement(graph(output), back).total


def test_two_steps_of_a_dilated_convolution() -> None:
    """Dilated to dense, then the images of the batch side by side: partially right, and
    corrected."""
    original = graph(conv(image(2, 2, 8, 8), W, pad=2, dilation=2))
    found = [m for m in mutants_of(original, 2) if m.families == ("dilated to dense", "batch into axis 3")]
    shares = [agreement(original, m.graph).regions[0].share for m in found]
    assert {round(s, 6) for s in shares} > {1.0}
    assert all(isinstance(total(original, m.graph), Total) for m, s in zip(found, shares, strict=True) if s > 0.5)


def test_no_mutant_comes_twice() -> None:
    found = [m.graph.outputs for m in mutants_of(graph(conv(image(2, 2, 4, 4), W)), 2)]
    assert len(set(found)) == len(found) > 10


def test_candidates_come_with_both_ways_to_correct() -> None:
    """Every candidate is equal to the original, verified."""
    original = graph(conv(image(2, 2, 6, 6), W))
    found = list(candidates(original))
    made = [c for c in found if isinstance(c, CorrectedMutant)]
    assert {c.joined for c in made} == {False, True}
    assert all(verified_program(original, c.corrected) for c in made)
    refused = [c.reason for c in found if isinstance(c, Failure)]
    assert all("no part of it is smaller" in reason for reason in refused)


def test_picture() -> None:
    original, other = (graph(each(image(2, 3, 6, 6), kernel(3, 3, 3, 3))) for each in (conv, side_by_side))
    assert picture(agreement(original, other).regions[0]) == PICTURE.strip("\n")


PICTURE = """
[0, 0:3, :, :]
0:6 ....#
    ....#
    ....#
    0 1:5 5
[1, 0:3, :, :]
0:6 #....
    #....
    #....
    0 1:5 5
"""
