"""Convolutions as kernels for a GPU: they compute the convolution, in the field, in numbers and in
Triton's interpreter; how a model has them; and the stage, without a GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from followed_terms import with_convolutions
from form_programs import (
    Case,
    every_kernel_kept,
    program_errors,
    same_model,
    same_outputs,
    saved_proto,
    unchanged,
    unseen_changes,
    without_a_gpu,
    wrong_cases,
)
from fused_models import GPU, TRYING, run, together

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.estimates import ranked
from taso_mirage.emit.gpu.program import LaunchSchedule
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.forms.base.form import GPU_GOALS, in_operators
from taso_mirage.forms.channels_last import (
    ChannelsLastConvolution,
    grouped_weights,
    parts_of_groups,
    read_convolution,
)
from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model, StoredWeight, random_inputs
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable, weight
from taso_mirage.lowering import cuda as cuda
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.checkpoint import from_json
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators import interpret as meaning
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, kinds
from taso_mirage.regions.fragments import fragments
from taso_mirage.search.config import Config
from taso_mirage.targets.protocol import Trusted
from taso_mirage.verdicts import Evidence

pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")
N, S, T = symbol("n0"), symbol("n1"), symbol("n2")
BOUND = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6}
"""Largest error relative to the largest element: a few roundings of the dtype."""


def convolved(
    image: tuple[Dim, ...],
    kernel: tuple[int, ...],
    follows: str = "bias, relu",
    dtype: str = "float32",
    group: int = 1,
    merged: int = 1,
    **attrs: tuple[int, ...],
) -> tuple[ChannelsLastConvolution, Graph]:
    """A convolution of an image (n,h,w,c) and weights (i,j,c,o), and its goal in operators of ONNX;
    so many groups are one there."""
    how = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)} | attrs
    x, w = variable("x", Tensor(dtype, image)), variable("w", Tensor(dtype, kernel))
    b = variable("b", Tensor(dtype, kernel[3:])) if "bias" in follows else ABSENT
    made = ChannelsLastConvolution(x, w, b, ABSENT, **how, group=group, merged=merged, relu="relu" in follows)
    if "sum" in follows:
        made = replace(made, z=variable("z", Tensor(dtype, made.goal().shape)))
    leaves = tuple([each for each in (x, w, b, made.z) if each is not ABSENT])
    return made, Graph(leaves, in_operators([made.goal()]))


Form = tuple[int, tuple[int, int, int, int]]
FORMS: dict[str, tuple[tuple[ChannelsLastConvolution, Graph], Form]] = {
    "a diagonal": (convolved((2, 9, 7, 6), (3, 3, 2, 9), group=3), (3, (16, 16, 16, 0))),
    "written one by one": (
        convolved((2, 9, 7, 6), (3, 3, 2, 9), "bias, sum, relu", group=3, strides=(2, 2)),
        (3, (32, 16, 16, 1)),
    ),
    "parts of channels": (
        convolved((1, 8, 11, 20), (3, 2, 20, 40), pads=(1, 0, 2, 1), dilations=(1, 2)),
        (1, (32, 32, 16, 0)),
    ),
    "parts of a group": (convolved((1, 5, 6, 40), (3, 3, 20, 42), "sum", group=2), (1, (16, 16, 16, 0))),
    "elements": (convolved((1, 8, 11, 5), (3, 3, 1, 5), group=5, strides=(1, 2)), (1, (32, 4, 1, 0))),
    "several of a channel": (convolved((1, 8, 11, 5), (5, 3, 1, 10), "", group=5), (1, (16, 16, 1, 1))),
    "few of many": (convolved((1, 8, 11, 16), (3, 3, 4, 16), "bias", group=4), (2, (64, 16, 16, 0))),
    "one element": (
        convolved((3, 4, 4, 33), (1, 1, 33, 34), "bias, sum", pads=(0, 0, 0, 0)),
        (1, (16, 32, 64, 0)),
    ),
    "wide pads": (convolved((1, 3, 2, 4), (2, 3, 2, 4), group=2, pads=(3, 0, 4, 5)), (2, (32, 16, 16, 0))),
    "a row": (convolved((2, 11, 9, 3), (5, 7, 3, 20), strides=(2, 2), pads=(2, 3, 1, 2)), (1, (32, 32, 32, 1))),
    "parts of a row": (convolved((1, 6, 9, 5), (3, 5, 5, 4), "sum", dilations=(2, 1)), (1, (16, 16, 16, 0))),
    "halves": (convolved((2, 9, 7, 8), (3, 3, 4, 8), dtype="float16", group=2), (2, (16, 16, 16, 0))),
    "bfloat16": (convolved((2, 6, 5, 8), (3, 3, 1, 8), dtype="bfloat16", group=8), (1, (16, 8, 1, 1))),
}


def mugraph(made: ChannelsLastConvolution, goal: Graph, form: Form) -> Graph:
    return Graph(goal.inputs, (made.mugraph(*form),))


WRONG = (
    ("a row further", r"% 5 \* 2 - 1\n", "% 5 * 2\n"),
    ("beyond the image", r"& \(wide >= 0\)", ""),
    ("columns for rows", r"t // 3", "t % 3"),
    ("another group", r"depth // 2", "depth % 3"),
    ("stride", r"% 5 \* 2 - 1", "% 5 * 1 - 1"),
    ("no bias", r"acc \+= tl.load\(b .*\n", "pass\n"),
    ("no sum", r"acc \+= tl.load\(z .*\n", "pass\n"),
    ("no relu", r"acc = tl.maximum\(acc, 0.0\)", "pass"),
    ("a channel too few", r"\(depth < 6\)", "(depth < 5)"),
    ("another channel", r"part \* 9 \+ column", "part * 9 + column // 2"),
)
"""Changes of the program of `written one by one`, which make it wrong."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The errors of all forms, of wrong programs, and of one with free sizes at several, from one
    process."""
    cases: list[Case] = []
    for name, ((made, goal), form) in FORMS.items():
        cases.append((name, triton.program(mugraph(made, goal, form)).source, [goal]))
    (made, goal), form = FORMS["written one by one"]
    cases += wrong_cases(triton.program(mugraph(made, goal, form)).source, WRONG, goal)
    made, goal = convolved((2, 6, 5, 6), (3, 3, 2, 6), "bias, sum", group=3)
    names = FreeSizes(((N, 6, 5, 6), (3, 3, 2, 6), (6,), (N, 6, 5, 6)), ((N, 6, 5, 6),))
    source = triton.program(with_free_names(mugraph(made, goal, (3, (16, 16, 16, 0))), names)).source
    goals = [convolved((n, 6, 5, 6), (3, 3, 2, 6), "bias, sum", group=3)[1] for n in (1, 3)]
    cases.append(("free", source, goals))
    made, goal = convolved((2, 6, 5, 3), (3, 3, 3, 6), "bias, relu")
    names = FreeSizes(((N, S, T, 3), (3, 3, 3, 6), (6,)), ((N, S, T, 6),))
    source = triton.program(with_free_names(mugraph(made, goal, (1, (16, 16, 16, 0))), names)).source
    goals = [convolved((*sizes, 3), (3, 3, 3, 6), "bias, relu")[1] for sizes in ((1, 7, 4), (3, 2, 9))]
    cases.append(("free images", source, goals))
    return program_errors(cases, tmp_path_factory.mktemp("convolutions"))


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", FORMS)
def test_the_kernel_computes_the_convolution(name: str, errors: dict[str, list[float]]) -> None:
    """At odd sizes: blocks that are not full, channels that are no powers of two, strides,
    dilations, pads that differ."""
    (error,) = errors[name]
    assert error < BOUND[FORMS[name][0][1].inputs[0].dtype]


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", ["free", "free images"])
def test_one_program_for_any_number_of_images(name: str, errors: dict[str, list[float]]) -> None:
    """The program also takes images of any size."""
    assert len(errors[name]) == 2
    assert max(errors[name]) < BOUND["float32"]


@pytest.mark.sampled(3, together=True)
def test_what_is_wrong_in_a_program_is_seen(errors: dict[str, list[float]]) -> None:
    given, form = FORMS["written one by one"]
    assert unseen_changes(triton.program(mugraph(*given, form)).source, WRONG, errors, 1e-2) == []


# ---------------------------------------------------------------- evidence


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMS)
def test_the_definition_is_the_convolution(name: str) -> None:
    (made, _), (merged, block) = FORMS[name]
    small, leaves = made.small(merged)
    found = verified_mugraph(Graph(leaves.inputs, (small.mugraph(merged, block),)), leaves)
    assert isinstance(found, Evidence)
    assert found.tests >= 8
    assert found.bound < 1e-30
    assert small.goal().shape[1] >= 3


def test_every_mutant_is_refused() -> None:
    """The mutants have other strides, pads, dilations, groups and operands."""
    made, goal = convolved((2, 7, 8, 4), (3, 3, 2, 4), "bias, sum", group=2, strides=(1, 2), pads=(1, 0, 1, 1))
    kinds: Counter[str] = Counter()
    right = made.mugraph(2, (32, 32, 32, 0))
    assert verified_mugraph(Graph(goal.inputs, (right,)), goal)
    x, w, b, z = right.args
    attrs: dict[str, Any] = dict(right.attrs)
    changes: list[tuple[str, tuple[Node, ...], dict[str, Any]]] = [
        ("pads", right.args, {"pads": (1, 1, 1, 0)}),
        ("pads", right.args, {"pads": (0, 0, 2, 1)}),
        ("relu", right.args, {"relu": 1}),
        ("group", right.args, {"group": 1, "merged": 1}),
        ("dilations", right.args, {"dilations": (2, 1), "pads": (2, 0, 2, 1)}),
        ("strides", right.args, {"strides": (2, 2), "pads": (4, 0, 5, 1)}),
        ("sum", (x, w, b, ABSENT), {}),
        ("bias", (x, w, ABSENT, z), {}),
        ("data", (term("add", x, x), w, b, z), {}),
        ("weights", (x, term("transpose", w, perm=(1, 0, 2, 3)), b, z), {}),
        ("groups exchanged", (x, term("concat", *_halves(w), axis=3), b, z), {}),
        ("sum of bias", (x, w, term("add", b, b), z), {}),
    ]
    for kind, args, change in changes:
        try:
            mutant = term("implicit_gemm", *args, **{**attrs, **change})
        except IllTyped:
            kinds["ill typed"] += 1
            continue
        assert not verified_mugraph(Graph(goal.inputs, (mutant,)), goal), kind
        kinds[kind] += 1
    assert kinds["ill typed"] <= 2
    assert len(kinds) >= 9


def _halves(w: Node) -> list[Node]:
    """The last half of the output channels, and the first."""
    half = int(w.shape[3]) // 2
    return [term("slice", w, axes=(3,), starts=(s,), ends=(s + half,), steps=(1,)) for s in (half, 0)]


RESNEXT = [(56, 56, 128, 1), (56, 28, 256, 2), (28, 28, 256, 1), (14, 14, 512, 1), (7, 7, 1024, 1)]


def resnext(side: int, channels: int, stride: int, batch: int = 16) -> tuple[ChannelsLastConvolution, Graph]:
    return convolved(
        (batch, side, side, channels),
        (3, 3, channels // 32, channels),
        dtype="float16",
        group=32,
        strides=(stride,) * 2,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("side", "_made", "channels", "stride"), RESNEXT)
def test_muGraphs_are_ranked_by_the_devices_model(side: int, _made: int, channels: int, stride: int) -> None:
    made, goal = resnext(side, channels, stride)
    found = made.mugraphs(goal, H100)
    assert [f.seconds for f in found] == sorted(f.seconds for f in found)
    assert len({(f.graph.outputs[0].attr("merged"), f.graph.outputs[0].attr("block")) for f in found}) == len(found) > 5
    floor = sum(b.bytes for b in triton.program(found[0].graph).buffers) / H100.bandwidth
    assert floor < found[0].seconds < 3 * floor + 4e-6
    assert ranked([triton.program(found[0].graph)])[0][0] == found[0].seconds


def test_what_is_bound_by_operations_is_left_to_libraries() -> None:
    few, many = (
        convolved((16, 28, 28, n), (side, side, n, n), "bias, relu", "float16", pads=(side // 2,) * 4)
        for n, side in ((128, 1), (512, 3))
    )
    assert few[0].mugraphs(few[1], H100)
    assert few[0].saved(H100) > 0 == many[0].saved(H100)
    assert many[0].mugraphs(many[1], H100) == []
    grouped = convolved((16, 28, 28, 512), (3, 3, 16, 512), dtype="float16", group=32)
    assert grouped[0].saved(H100) > 2 * few[0].saved(H100)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "capability", [pytest.param(80, marks=pytest.mark.slow), 90, pytest.param(100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("written", [0, 1])
def test_tiles_are_loaded_in_whole_sectors(written: int, capability: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Sixteen bytes a thread of the data, as many as a group has of the weights; and tensor cores
    multiply them."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made, goal = resnext(56, 128, 1)
    program = triton.program(mugraph(made, goal, (8, (64, 32, 32, written))))
    (found,) = compiled(program, capability, (LaunchSchedule(4, 1 if written else 3),))
    assert found.hidden == 2
    loads = Counter(re.findall(r"ld\.global\S*v(\d)|cp\.async\.(c[ag])", found.ptx))
    assert loads["4", ""] + loads["", "cg"] >= 2
    assert "st.global.v4.b32" in found.ptx
    assert re.search("wgmma.mma_async" if capability == 90 else r"mma\.sync|tcgen05.mma", found.ptx)


def test_what_has_no_form_says_why() -> None:
    made, goal = convolved((1, 5, 5, 4), (3, 3, 2, 4), group=2)
    with pytest.raises(Unsupported, match="powers of two"):
        triton.program(mugraph(made, goal, (2, (24, 16, 16, 0))))
    double, of_double = convolved((1, 5, 5, 4), (3, 3, 2, 4), dtype="float64", group=2)
    with pytest.raises(Unsupported, match="x of float64"):
        triton.program(mugraph(double, of_double, (2, (16, 16, 16, 0))))
    with pytest.raises(Unsupported, match="implicit_gemm, which has no form in Gluon"):
        triton.program(mugraph(made, goal, (2, (16, 16, 16, 0))), specialized=True)
    with pytest.raises(IllTyped, match="3 of them merged"):
        made.mugraph(3, (16, 16, 16, 0))


# ---------------------------------------------------------------- how a model has them


@pytest.mark.parametrize("follows", ["", "bias", "sum", "bias, sum, relu"])
@pytest.mark.parametrize(("group", "merged"), [(1, 1), (6, 1), (6, 2), (6, 6)])
def test_a_goal_tells_what_it_is(follows: str, group: int, merged: int) -> None:
    """The goal's form in operators of ONNX has the weights that a model has."""
    made, written = convolved(
        (2, 5, 4, 12), (3, 2, 12 // group, 18), follows, "float16", group, merged, pads=(1, 0, 1, 1)
    )
    assert read_convolution(Graph(written.inputs, (made.goal(),))) == made
    assert read_convolution(written) is None
    dense = next(n for n in written if n.op == "conv").args[1]
    rng = np.random.default_rng(0)
    w = rng.normal(size=[int(n) for n in made.w.shape]) + 3
    array = np.asarray(meaning.interpret([dense], EXACT, {made.w: w})[dense])
    whole = group // merged
    assert array.shape == (18, 12 // whole, 3, 2)
    assert parts_of_groups(array, whole) == merged
    assert np.array_equal(grouped_weights(array, group, whole).transpose(2, 3, 1, 0), w)


def test_weights_are_turned_when_they_are_read() -> None:
    """Most of a large model's convolutions never get a kernel."""
    model = block()
    turned = [w for name, w in with_convolutions(model).model.weights.items() if name.startswith("channels_last")]
    assert turned
    assert all(w._array.base is not None for w in turned)  # type: ignore[attr-defined]
    assert all(w.numpy().flags.c_contiguous for w in turned)
    assert all(w.numpy() is w.numpy() for w in turned)


def test_a_late_look_for_regions_turns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds.find_kinds(block(), {}, GPU, lambda: False, raising).places
    monkeypatch.setattr(kinds, "with_terms", raising)
    assert not kinds.find_kinds(block(), {}, GPU, lambda: True, raising).places


def raising(*_: object) -> None:
    raise AssertionError("was not to be called")


def test_single_precision_has_no_kernel() -> None:
    made, goal = convolved((2, 5, 4, 12), (3, 3, 2, 12), group=6)
    assert read_convolution(Graph(goal.inputs, (made.goal(),))) is None


CHANNELS = 24


def block(batch: int | str = 2, dtype: str = "float16", dense: bool = False) -> Model:
    """relu(conv1x1), relu(grouped 3x3), conv1x1, the sum with the input, relu: twice, the second
    time with a convolution of the input; with `dense` the groups are one, with zeros."""
    rng = np.random.default_rng(0)
    weights: dict[str, StoredWeight] = {}
    x = variable("x", Tensor(dtype, (symbol(batch) if isinstance(batch, str) else batch, CHANNELS, 6, 5)))

    def conv(data: Node, name: str, side: int, group: int, relu: bool) -> Node:
        array = rng.normal(size=(CHANNELS, CHANNELS // group, side, side)) / (CHANNELS // group)
        if dense and group > 1:
            whole = np.zeros((CHANNELS, CHANNELS, side, side))
            each = CHANNELS // group
            for g in range(group):
                whole[g * each : (g + 1) * each, g * each : (g + 1) * each] = array[g * each : (g + 1) * each]
            array, group = whole, 1
        given = {f"w{name}": array, f"b{name}": rng.normal(size=CHANNELS) / 9}
        weights.update({n: StoredWeight(a.astype(dtype)) for n, a in given.items()})
        w, b = (weight(n, Tensor(dtype, a.shape)) for n, a in given.items())
        attrs = {"strides": (1, 1), "pads": (side // 2,) * 4, "dilations": (1, 1), "group": group}
        made = term("conv", data, w, b, **attrs)
        return term("relu", made) if relu else made

    y: Node = x
    for i in range(2):
        inner = conv(conv(y, f"{i}a", 1, 1, True), f"{i}b", 3, 6, True)
        y = conv(y, "s", 1, 1, False) if i else y
        y = term("relu", term("add", conv(inner, f"{i}c", 1, 1, False), y))
    made = standalone(Graph((x,), (y,)), {"": 20}, weights)
    return from_ir(from_proto(onnx.load_from_string(serialize(made))))


@pytest.mark.parametrize("dense", [False, True])
def test_a_model_with_channels_last_is_the_model(dense: bool) -> None:
    model = block(dense=dense)
    made = with_convolutions(model)
    read = [found for graph in fragments(made.model, {}, 4, prepared=GPU_GOALS) if (found := read_convolution(graph))]
    found = sorted((each.group, each.merged, each.z is not ABSENT) for each in read)
    assert found == [(1, 1, False), (1, 1, False), (1, 1, True), (6, 6 if dense else 1, False)]
    same_model(made, model)


def test_what_a_model_says_elsewhere_stays() -> None:
    """Double precision, weights of the run, values that are read twice: no sum or relu goes with
    it."""
    model = block(dtype="float64")
    assert with_convolutions(model).model.graph == model.graph
    x, w = variable("x", Tensor("float16", (1, 8, 5, 5))), variable("w", Tensor("float16", (8, 4, 3, 3)))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 2}
    given = standalone(Graph((x, w), (term("conv", x, w, **attrs),)), {"": 20}, {})
    assert with_convolutions(given).model.graph == given.graph
    known = weight("k", w.tensor)
    made = term("conv", x, known, **attrs)
    outputs = (made, term("relu", made))
    arrays = {"k": StoredWeight(np.ones((8, 4, 3, 3), np.float16))}
    twice = with_convolutions(standalone(Graph((x,), outputs), {"": 20}, arrays)).model
    assert twice.graph.outputs[1].op == "relu"
    assert twice.graph.outputs[1].args[0] is twice.graph.outputs[0]


def test_a_name_that_the_model_has_stays_its_own() -> None:
    x, w = variable("x", Tensor("float16", (1, 8, 5, 5))), weight("k", Tensor("float16", (8, 8, 3, 3)))
    own = weight("channels_last_1_1_k", Tensor("float16", (8, 1, 1)))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    rng = np.random.default_rng(0)
    shapes = {"k": (8, 8, 3, 3), "channels_last_1_1_k": (8, 1, 1)}
    arrays = {n: StoredWeight(rng.normal(size=shape).astype(np.float16)) for n, shape in shapes.items()}
    model = standalone(Graph((x,), (term("mul", term("conv", x, w, **attrs), own),)), {"": 20}, arrays)
    made = with_convolutions(model)
    same_model(made, model)


# ---------------------------------------------------------------- the stage

CONFIG = Config(budget=1000.0, seconds=0.0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """All but the clocks and the GPU is real."""
    without_a_gpu(monkeypatch, tmp_path)
    monkeypatch.setattr(ChannelsLastConvolution, "_forms", lambda self: iter([_form(self)]))
    return monkeypatch


def _form(made: ChannelsLastConvolution) -> Form:
    return (2 if made.group % 2 == 0 else 1), (32, 32, 32, 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("batch", "dense"), [*(pytest.param(2, dense, marks=pytest.mark.slow) for dense in (False, True)), ("batch", True)]
)
def test_all_convolutions_of_a_block_become_kernels(
    batch: int | str, dense: bool, stand_in: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    together(stand_in)
    model = block(batch, dense=dense)
    result = unchanged(model, CUDA, CONFIG)
    found = fused(result, CONFIG, "search", trying=TRYING)
    assert found.changed, found.notes
    kinds = [(("conv",), 1), (("conv", "add", "relu"), 2), (("conv", "relu"), 2), (("conv", "relu"), 2)]
    assert sorted(found.kernels[0].kinds) == kinds
    assert any("kernel for conv relu in 2 places and for" in note for note in found.notes)
    assert all(d.passed for d in found.differences)
    proto = saved_proto(found.model, tmp_path)
    operators = Counter(n.op_type for n in proto.graph.node if n.domain == "")
    assert operators == {"Transpose": 2}  # around the whole chain
    assert made_of(serialize(found.model), tmp_path) == made_of(serialize(result.original), tmp_path)
    same_outputs(found.model, result.original, rtol=5e-3, atol=5e-3)


def made_of(content: bytes, folder: Path) -> Counter[str]:
    """The operators that the runtime makes of a model where no kernels run: the layout and the
    order of the weights are no work then."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "made.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return Counter(n.op_type for n in onnx.load(folder / "made.onnx").graph.node if n.op_type != "Cast")


def test_what_gets_no_kernel_is_as_it_was(stand_in: pytest.MonkeyPatch) -> None:
    """Weights, groups and layout, where only the grouped convolutions are faster as kernels."""
    stand_in.setattr(ChannelsLastConvolution, "_forms", lambda self: iter([_form(self)] if self.group > 1 else []))
    model = block(dense=True)
    result = unchanged(model, CUDA, CONFIG)
    found = fused(result, CONFIG, "search")
    assert [each.kinds for each in found.kernels] == [((("conv", "relu"), 2),)]
    nodes = found.model.nodes()
    convolutions = [n for n in nodes if n.op == "conv"]
    assert len(convolutions) == 5
    assert all(n.args[1].op == "weight" for n in convolutions)
    assert sum(n.op == "transpose" for n in nodes) == 4
    names = {n for n in found.model.weights if n.startswith("channels_last")}
    assert len(names) == 2


def test_a_free_number_of_images_is_measured_at_several() -> None:
    """Each size has a goal of its own, which the tuner compares with."""
    made, written = convolved((2, 6, 5, 8), (3, 3, 2, 8), dtype="float16", group=4)
    goal = Graph(written.inputs, (made.goal(),))
    free = FreeSizes(((N, 6, 5, 8), (3, 3, 2, 8), (8,)), ((N, 6, 5, 8),))
    for n in (1, 5):
        at = cuda._at_sizes(goal, free, {"n0": n})
        assert read_convolution(at) == convolved((n, 6, 5, 8), (3, 3, 2, 8), dtype="float16", group=4)[0]
    found = [replace(each, free=with_free_names(each.graph, free)) for each in made.mugraphs(goal, H100)]
    record = GPU.fastest(goal, found[:2], 1e9, [{"n0": 2}, {"n0": 1}, {"n0": 4}])
    assert from_json(record["mugraph"]).inputs[0].shape == (N, 6, 5, 8)
    assert "n0" in GPU.kernel(record).plan


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
@pytest.mark.parametrize("batch", [2, "batch"])
@pytest.mark.parametrize("variant", [0, 1])
def test_they_run_on_the_gpu(batch: int | str, variant: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With both of the runtime's layouts; nothing but the choice of the kept kernels is made up."""
    every_kernel_kept(monkeypatch, tmp_path)
    target = CUDA.variants[variant]
    config = replace(CONFIG, target=target, seconds=0.2)
    result = replace(
        optimize_model(block(batch, dense=True), replace(config, measure=False, budget=0.0)), target=target
    )
    found = fused(result, config, "search")
    assert found.kernels, found.notes
    assert not [note for note in found.notes if "report it" in note]
    assert all(d.passed for d in found.differences)
    session = Session(Trusted(serialize(found.model)), target)
    assert session.captures
    inputs = random_inputs(result.original, 0, {"batch": 3})
    (wanted,) = run(serialize(result.original), dict(inputs))
    np.testing.assert_allclose(session.run(inputs)[0], wanted, rtol=1e-2, atol=1e-2)


def gpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for name, ((made, goal), form) in FORMS.items():
        yield f"implicit gemm/{name}", Graph(goal.inputs, (made.mugraph(*form),))
