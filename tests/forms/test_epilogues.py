"""Epilogues of the hand-written kernels of a CPU: any elementwise function, with other operands
that broadcast; which operators of a model they are; wrong ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from epilogue_functions import CHANNELS, FUNCTIONS, IMAGES, RESULTS, leaves, right_body, silu, wrong_bodies
from fused_models import TRYING, quick, together
from named_models import model, session, w, x
from native_kernels import QUICK, STRICT, complaints, computes, values

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.errors import IllTyped
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.forms.linear import weight_products
from taso_mirage.forms.winograd import convolution
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused
from taso_mirage.regions.fragments import fragments
from taso_mirage.search.config import Config
from taso_mirage.verdicts import Evidence, Failure

pytestmark = pytest.mark.sampled(2)

PADS = (1, 1, 1, 1)


def conv(data: Node, kernel: Node, *bias: Node) -> Node:
    return term("conv", data, kernel, *bias, strides=(1, 1), pads=PADS, dilations=(1, 1), group=1)


def convolved(name: str, side: int = 3) -> tuple[Graph, Graph]:
    """A convolution of odd sizes with an epilogue, of which a block has parts, and its goal."""
    function = FUNCTIONS[name]
    data, kernel = x("x", 2, 3, 9, 11), x("w", 5, 3, side, side)
    shapes = {CHANNELS: (5, 1, 1), RESULTS: (2, 5, 9, 11), IMAGES: (2, 5, 1, 1)}
    others = leaves(function.others, shapes)
    pads = (side // 2,) * 4
    how: dict[str, Any] = {"tile": (2, 2), "block": (16, 2), "pads": pads, "body": function.body()}
    made = term("winograd", data, kernel, None, None, *others, **how)
    plain = term("conv", data, kernel, strides=(1, 1), pads=pads, dilations=(1, 1), group=1)
    given = (data, kernel, *others)
    return Graph(given, (made,)), Graph(given, (function.made(plain, *others),))


def multiplied(name: str, rows: tuple[int, ...], n: int, block: tuple[int, int, int]) -> tuple[Graph, Graph]:
    """A product with an epilogue, and its goal; rows have numbers of their own in place of
    images."""
    function = FUNCTIONS[name]
    data, weights = x("x", *rows, 21), x("w", 21, n)
    others = leaves(function.others, {CHANNELS: (n,), RESULTS: (*rows, n), IMAGES: (*rows, 1)})
    made = term("linear", data, weights, *[None] * 4, *others, block=block, body=function.body())
    given = (data, weights, *others)
    return Graph(given, (made,)), Graph(given, (function.made(term("matmul", data, weights), *others),))


SIZES = (((1, 7), 33, (16, 6, 2)), ((2, 13), 50, (48, 9, 3)), ((3,), 17, (64, 8, 1)))


def all_cases() -> Iterator[tuple[str, Graph, Graph]]:
    for i, name in enumerate(FUNCTIONS):
        yield f"winograd_{i}", *convolved(name, (3, 5)[i % 2])
        yield f"linear_{i}", *multiplied(name, *SIZES[i % 3])


PROLOGUES = ("silu", "relu6", "scale and shift", "excited", "sum, then silu")


def preceded(name: str, rows: int = 0) -> Graph:
    """A goal that is a function of the data of a convolution, or of a product of so many rows, and
    another function of its result."""
    function = FUNCTIONS[name]
    data = x("x", rows, 19) if rows else x("x", 2, 8, 7, 5)
    kernel = x("w", 19, 21) if rows else x("w", 6, 8, 3, 3)
    of_products = {CHANNELS: (19,), RESULTS: (rows, 19), IMAGES: (rows, 1)}
    of_images = {CHANNELS: (8, 1, 1), RESULTS: (2, 8, 7, 5), IMAGES: (2, 8, 1, 1)}
    others = leaves(function.others, of_products if rows else of_images)
    seen = function.made(data, *others)
    made = term("matmul", seen, kernel) if rows else conv(seen, kernel)
    return Graph((data, kernel, *others), (silu(made),))


def read(goal: Graph) -> Graph:
    """The first muGraph of a goal of a form."""
    found = convolution(goal) or weight_products(goal)
    assert found is not None
    return found.mugraphs(goal, CPU_DEVICE)[0].graph


def test_the_kernels_compute_functions_of_their_data() -> None:
    goals = {f"case_{i}_{rows}": preceded(name, rows) for i, name in enumerate(PROLOGUES) for rows in (0, 3)}
    made = {name: read(goal) for name, goal in goals.items()}
    assert all(graph.outputs[0].attr("prologue") is not None for graph in made.values())
    library = build(generate_all(made), None, QUICK)
    for name, goal in goals.items():
        assert computes(NativeKernel(made[name], name, threads=2, library=library), goal, values(goal), 5e-6)


@pytest.mark.sampled(1)
def test_wrong_prologues_are_refused() -> None:
    """Another function of the data, none, or the function of the result before the product."""
    goal = preceded("silu")
    (node,) = read(goal).outputs
    attrs = dict(node.attrs)
    assert isinstance(verified_mugraph(Graph(goal.inputs, (node,)), goal), Evidence)
    for wrong in (FUNCTIONS["gelu"].body(), FUNCTIONS["relu"].body(), None):
        mutant = term(node.op, *node.args, **{**attrs, "prologue": wrong})
        assert isinstance(verified_mugraph(Graph(goal.inputs, (mutant,)), goal), Failure)
    exchanged = term(node.op, *node.args, **{**attrs, "prologue": FUNCTIONS["relu"].body(), "body": attrs["prologue"]})
    assert isinstance(verified_mugraph(Graph(goal.inputs, (exchanged,)), goal), Failure)


def test_the_kernels_compute_every_function() -> None:
    """From one file, on two threads; at odd sizes, where the last tiles and columns are cut."""
    cases = {name: (made, goal) for name, made, goal in all_cases()}
    library = build(generate_all({name: made for name, (made, _) in cases.items()}), None, QUICK)
    for name, (made, goal) in cases.items():
        assert computes(NativeKernel(made, name, threads=2, library=library), goal, values(goal), 5e-6)


@pytest.mark.parametrize("name", ["all", pytest.param("chosen", marks=pytest.mark.slow)])
def test_the_kernel_as_models_have_it(name: str) -> None:
    """With vectors, and all warnings of the compiler."""
    made, goal = convolved(name)
    assert computes(NativeKernel(made, flags=STRICT, threads=2), goal, values(goal), 5e-6)


def test_no_sanitizer_complains(tmp_path: Path) -> None:
    assert not complaints({"winograd": convolved("all")[0], "linear": multiplied("all", *SIZES[1])[0]}, tmp_path)


@pytest.mark.parametrize("rows", [1, 8, 9, 21])
def test_a_run_may_give_the_number_of_rows(rows: int) -> None:
    """Tiles of few rows have another number of rows then."""
    name = symbol("n0")
    for block in ((16, 8, 1), (48, 9, 2)):
        made, _ = multiplied("silu, then sum", (rows,), 20, block)
        free = with_free_names(made, FreeSizes(((name, 21), (21, 20), (name, 20)), ((name, 20),)))
        _, goal = multiplied("silu, then sum", (rows,), 20, block)
        given = values(goal)
        (found,) = NativeKernel(free, flags=QUICK)(*given.values())
        (wanted,) = NativeKernel(made, flags=QUICK)(*given.values())
        np.testing.assert_array_equal(found, wanted)


# ---------------------------------------------------------------- goals


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_goal_is_read_with_its_epilogue(name: str) -> None:
    """The muGraph computes the goal, in the field and at float32; elu and selu have the absolute
    error of 1 near 0, so that the rounding of other sums is seen."""
    _, goal = convolved(name)
    read = convolution(goal)
    assert read is not None
    assert read.goal() == goal.outputs[0]
    (best, *_) = read.mugraphs(goal, CPU_DEVICE)
    assert isinstance(verified_mugraph(best.graph, goal), Evidence) or name in ("elu", "selu")
    _, product = multiplied(name, (2,), 5, (16, 8, 1))
    products = weight_products(product)
    assert products is not None
    (first, *_) = products.mugraphs(product, CPU_DEVICE)
    assert isinstance(verified_mugraph(first.graph, product), Evidence)


@pytest.mark.sampled(1)
def test_wrong_epilogues_are_refused() -> None:
    data, kernel, b, z = x("x", 2, 3, 5, 5), x("w", 4, 3, 3, 3), x("b", 4, 1, 1), x("z", 2, 4, 5, 5)
    body = right_body()
    goal = Graph(
        (data, kernel, b, z), retyped(body.outputs, dict(zip(body.inputs, (conv(data, kernel), b, z), strict=True)))
    )

    def found(body: Graph, *others: Node) -> Evidence | Failure:
        made = term("winograd", data, kernel, None, None, *others, pads=PADS, body=body)
        return verified_mugraph(Graph(goal.inputs, (made,)), goal)

    assert isinstance(found(body, b, z), Evidence)
    for name, wrong in wrong_bodies(body).items():
        assert isinstance(found(wrong, b, z), Failure), name
    with pytest.raises(IllTyped, match="1 tensors and a result"):
        found(body, b)
    with pytest.raises(IllTyped, match="without a function"):
        term("winograd", data, kernel, None, None, b, pads=PADS)
    few = variable("y", Tensor("float32", (2, 1, 1, 1)))
    with pytest.raises(IllTyped, match="what follows"):
        found(Graph(body.inputs, (body.inputs[1],)), few, z)


# ---------------------------------------------------------------- models


def regions(*outputs: Node) -> list[list[str]]:
    """The operators of the regions of forms."""
    made = fragments(model(*outputs), {}, prepared=CPU_GOALS)
    return [[n.op for n in graph if n.args] for graph in made if CPU_GOALS.read(graph) is not None]


def test_an_epilogue_ends_where_others_read_it_or_there_is_no_code() -> None:
    data, kernel = x("x", 1, 8, 6, 6), w("w", 8, 8, 3, 3)
    made = conv(data, kernel, w("b", 8))
    assert regions(silu(made)) == [["conv", "sigmoid", "mul"]]
    assert regions(term("tan", made)) == [["conv"]], "no C++"
    assert regions(term("relu", term("tan", silu(made)))) == [["conv", "sigmoid", "mul"]]
    bent = silu(made)
    pooled = term("reduce_mean", bent, axes=(2, 3), keepdims=1)
    excited = term("mul", bent, term("sigmoid", pooled))
    assert ["conv", "sigmoid", "mul"] in regions(excited)
    halves = term("cast", term("cast", made, to="float16"), to="float32")
    assert regions(halves) == [["conv"]], "it rounds"
    assert regions(term("where", term("greater", made, constant(0.0, "float32")), made, data)) == [
        ["conv", "greater", "where"]
    ]


def test_a_prologue_is_read_by_its_term_alone_and_is_no_epilogue() -> None:
    data, kernel = x("x", 1, 8, 6, 6), w("w", 8, 8, 3, 3)
    assert regions(conv(silu(data), kernel)) == [["sigmoid", "mul", "conv"]]
    assert regions(conv(silu(data), kernel), silu(data)) == [["conv"]], "it is a result, too"
    assert regions(conv(silu(conv(data, kernel)), w("v", 8, 8, 3, 3))) == [["conv", "sigmoid", "mul"], ["conv"]]
    scaled = term("add", term("mul", data, w("s", 8, 1, 1)), w("t", 8, 1, 1))
    assert regions(term("relu", conv(term("relu", scaled), kernel))) == [["mul", "add", "relu", "conv", "relu"]]
    gate = term("sigmoid", x("g", 1, 8, 1, 1))
    assert regions(conv(term("mul", data, gate), kernel)) == [["mul", "conv"]]
    assert regions(conv(term("tan", data), kernel)) == [["conv"]], "no C++"


def efficient_block() -> list[Node]:
    """A convolution, a depthwise one, squeeze and excitation, and a projection, with silu."""
    data = x("x", 1, 8, 8, 8)

    def one(data: Node, name: str, channels: int, given: int) -> Node:
        how: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
        return term("conv", data, w(f"w{name}", channels, given, 1, 1), w(f"b{name}", channels), **how)

    wide = silu(conv(data, w("w", 16, 8, 3, 3), w("b", 16)))
    deep = term("conv", wide, w("d", 16, 1, 3, 3), strides=(1, 1), pads=PADS, dilations=(1, 1), group=16)
    seen = silu(deep)
    pooled = term("reduce_mean", seen, axes=(2, 3), keepdims=1)
    gate = term("sigmoid", one(silu(one(pooled, "r", 4, 16)), "e", 16, 4))
    return [term("add", one(term("mul", seen, gate), "p", 8, 16), data)]


@pytest.mark.sampled(2)
def test_a_model_gets_kernels_with_epilogues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions with silu are one node of the runtime, beside regions that a search finds."""
    quick(monkeypatch)
    together(monkeypatch)
    plain = model(*efficient_block())
    result = optimize_model(plain, Config(measure=False, budget=0.0))
    result = replace(result, model=result.original, steps=(), changed=False)
    found = fused(result, Config(budget=1000.0, seconds=0.0), "search", trying=TRYING)
    assert found.changed, found.notes
    assert (("conv", "sigmoid", "mul"), 1) in [kind for kernel in found.kernels for kind in kernel.kinds]
    assert all(each.passed for each in found.differences)
    left = [node.op for node in found.model.nodes()]
    assert left.count("sigmoid") < [node.op for node in plain.nodes()].count("sigmoid")
    feed = dict(random_inputs(plain, 0, {}))
    runs = [session(*each).run(None, feed)[0] for each in ((found.model, True), (found.model, False), (plain, False))]
    for made in runs[:2]:
        np.testing.assert_allclose(made, runs[2], rtol=1e-4, atol=1e-4)


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    yield "epilogues/winograd", convolved("all")[0]
    yield "epilogues/prologue", read(preceded("excited"))
    yield "epilogues/linear", multiplied("all", *SIZES[1])[0]
