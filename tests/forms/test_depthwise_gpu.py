"""Convolutions of each channel alone as kernels for a GPU: they compute the
convolution and its epilogue, in the field, in numbers and in Triton's interpreter; how a model has
them; and the stage, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from followed_terms import followed, with_convolutions
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
from fused_models import GPU, run

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton, tune
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.program import LaunchSchedule
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.forms.base.form import GPU_GOALS
from taso_mirage.forms.depthwise import DepthwiseConvolution
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, StoredWeight, random_inputs
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, variable, weight
from taso_mirage.lowering.exact import Float64Oracle
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
from taso_mirage.pipeline.fuse import fused
from taso_mirage.search.config import Config
from taso_mirage.targets.cuda.target import CUDA_TF32
from taso_mirage.targets.protocol import Trusted
from taso_mirage.verdicts import Evidence

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")
N = symbol("n0")
Block = tuple[int, int, int]
Goal = tuple[DepthwiseConvolution, Graph]
OWN_NAMES = ("sum_1", "x_tile", "w_1", "beside_0")
"""Names of inputs that a program has itself."""


def depthwise(
    image: tuple[int, ...],
    kernel: tuple[int, ...],
    follows: str = "",
    each: int = 1,
    dtype: str = "float32",
    **attrs: tuple[int, ...],
) -> Goal:
    """A convolution of an image (n,c,h,w), with so many results of each channel, and its goal in
    operators of ONNX."""
    count, columns = len(kernel), each * image[1]
    how: dict[str, Any] = {"strides": (1,) * count, "pads": (0,) * 2 * count, "dilations": (1,) * count} | attrs
    x, w = variable("x", Tensor(dtype, image)), variable("w", Tensor(dtype, (columns, 1, *kernel)))
    node, goal = followed(DepthwiseConvolution, "depthwise_conv", x, w, columns, follows, how)
    return DepthwiseConvolution(node), goal


FORMS: dict[str, tuple[Goal, Block]] = {
    "plain": (depthwise((2, 5, 9, 11), (3, 3)), (1, 64, 2)),
    "pads": (depthwise((2, 5, 9, 11), (3, 3), "bias, mish", pads=(1, 1, 1, 1)), (2, 32, 4)),
    "wide pads": (depthwise((1, 3, 4, 5), (2, 3), "scale", pads=(3, 4, 0, 5)), (1, 16, 2)),
    "several of each channel": (depthwise((2, 3, 7, 6), (3, 2), "bias, sum", each=2, pads=(1, 0, 1, 1)), (4, 16, 2)),
    "strides": (depthwise((2, 4, 12, 15), (5, 3), "bias, sum", strides=(2, 3), pads=(2, 1, 2, 1)), (2, 16, 4)),
    "dilations": (depthwise((2, 4, 12, 15), (3, 3), dilations=(2, 3), pads=(1, 2, 0, 1)), (1, 32, 8)),
    "strides and dilations": (
        depthwise((1, 4, 17, 9), (3, 3), "mish", strides=(2, 1), dilations=(3, 1)),
        (1, 32, 4),
    ),
    "a volume": (
        depthwise((2, 3, 5, 6, 7), (3, 3, 3), "bias, scale", strides=(2, 1, 1), pads=(1, 0, 1, 1, 1, 1)),
        (2, 32, 2),
    ),
    "a volume without pads": (depthwise((1, 2, 5, 6, 4), (2, 3, 1), "sum"), (1, 16, 4)),
    "a line": (depthwise((2, 3, 50), (5,), "bias", pads=(4, 0)), (2, 32, 1)),
    "half precision": (
        depthwise((2, 5, 9, 11), (3, 3), "bias, sum", dtype="float16", pads=(1, 1, 1, 1)),
        (2, 32, 2),
    ),
    "one pixel": (depthwise((3, 5, 3, 2), (3, 2), "bias, scale, sum"), (4, 1, 1)),
    "many elements": (depthwise((1, 2, 11, 13), (9, 8), "bias", pads=(4, 4, 4, 3)), (1, 32, 4)),
    "many elements of volumes": (
        depthwise((1, 2, 4, 5, 30), (2, 3, 17), strides=(1, 2, 3), dilations=(1, 1, 1), pads=(1, 1, 6, 1, 0, 9)),
        (2, 8, 2),
    ),
}


def program(goal: Goal, block: Block) -> Any:
    return triton.program(Graph(goal[1].inputs, (goal[0].mugraph(block),)))


WRONG = (
    ("a row further", r"top_x = top - 1", "top_x = top"),
    ("above the image", r"\(top_x \+ 0 >= 0\) & ", ""),
    ("below the image", r" & \(top_x \+ 2 < 9\)", ""),
    ("beside the image", r"\(left \+ 0 >= 0\) & ", ""),
    ("another element", r"sum_0 = tl.fma\(x_tile, w_1", "sum_0 = tl.fma(x_tile, w_0"),
    ("another column", r"low \* 9 \+ 3 \+ 1", "low * 9 + 3 + 2"),
    ("a channel's weights", r"w \+ channel \* 9", "w + channel * 8"),
    ("no bias", r"bias_tile = tl.load\(bias .*\n", "bias_tile = channel * 0.0\n"),
    ("a row short", r"top \+ 0 < 9", "top + 0 < 8"),
    ("a result further", r"place = at_y \+ 11", "place = at_y + 12"),
    ("no mish", r"tl.tanh|1.0 - 2.0 / ", "0.5 - 2.0 / "),
)
"""Changes of the program of `pads`, which make it wrong."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The errors of all forms, of wrong programs, and of one with a free number of images at
    several, from one process."""
    cases: list[Case] = [(name, program(goal, block).source, [goal[1]]) for name, (goal, block) in FORMS.items()]
    goal, block = FORMS["pads"]
    cases += wrong_cases(program(goal, block).source, WRONG, goal[1])
    made, whole = depthwise((2, 5, 6, 7), (3, 3), "bias, sum")
    deep, of_deep = depthwise((1, 2, 3, 6, 7), (2, 3, 3), "bias, sum")
    for key, one, goal, own in (
        ("names", made, whole, OWN_NAMES),
        ("a renamed one's tile", made, whole, ("x", "w", "at", "at_2_tile")),
        ("a loop's", deep, of_deep, ("range", "low", "x", "w")),
    ):
        named = [variable(n, x.tensor) for n, x in zip(own, goal.inputs, strict=True)]
        other = dict(zip(goal.inputs, named, strict=True))
        renamed = Graph(tuple(other.values()), substitute(goal.outputs, other))
        (node,) = substitute((one.mugraph((2, 16, 2)),), other)
        cases.append((key, triton.program(Graph(renamed.inputs, (node,))).source, [renamed]))
    names = FreeSizes(((N, 5, 6, 7), (5, 1, 3, 3), (1, 5, 1, 1), (N, 5, 4, 5)), ((N, 5, 4, 5),))
    free = triton.program(with_free_names(Graph(whole.inputs, (made.mugraph((2, 16, 2)),)), names))
    goals = [depthwise((n, 5, 6, 7), (3, 3), "bias, sum")[1] for n in (1, 3)]
    cases.append(("free", free.source, goals))
    return program_errors(cases, tmp_path_factory.mktemp("depthwise"))


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", [*FORMS, "free", "names", "a renamed one's tile", "a loop's"])
def test_the_kernel_computes_the_convolution(name: str, errors: dict[str, list[float]]) -> None:
    """At odd sizes: tiles that are not full, rows and channels that are no powers of two."""
    assert len(errors[name]) == (2 if name == "free" else 1)
    assert max(errors[name]) < (1e-3 if name == "half precision" else 1e-6)


@pytest.mark.sampled(3, together=True)
def test_what_is_wrong_in_a_program_is_seen(errors: dict[str, list[float]]) -> None:
    assert unseen_changes(program(*FORMS["pads"]).source, WRONG, errors) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMS)
def test_the_definition_is_the_convolution(name: str) -> None:
    """With the epilogue, at these sizes, and as the evidence has it."""
    (made, goal), block = FORMS[name]
    small, leaves = made.small()
    for mine, wanted in ((small.mugraph(block), leaves), (made.mugraph(block), goal)):
        found = verified_mugraph(Graph(wanted.inputs, (mine,)), wanted)
        assert isinstance(found, Evidence)
        assert found.tests >= 8
    assert min(small.node.shape[2:]) >= 2
    assert {made.mugraph(each) for each in made.blocks()} >= {made.mugraph(min(made.blocks()))}


def test_every_mutant_is_refused() -> None:
    """The mutants have other strides, pads, dilations, operands, and another body."""
    made, goal = depthwise((2, 4, 7, 8), (3, 3), "bias, sum", pads=(1, 0, 1, 1))
    right = made.mugraph((1, 64, 2))
    assert verified_mugraph(Graph(goal.inputs, (right,)), goal)
    x, w, b, z = right.args
    attrs: dict[str, Any] = dict(right.attrs)
    body = attrs["body"]
    y, _, z_leaf = body.inputs
    changes: list[tuple[str, tuple[Node, ...], dict[str, Any]]] = [
        ("pads", right.args, {"pads": (0, 0, 2, 1)}),
        ("dilations", right.args, {"dilations": (2, 1), "pads": (2, 0, 2, 1)}),
        ("strides", right.args, {"strides": (2, 2), "pads": (4, 3, 5, 5)}),
        ("data", (term("add", x, x), w, b, z), {}),
        ("weights", (x, term("transpose", w, perm=(0, 1, 3, 2)), b, z), {}),
        ("bias", (x, w, term("add", b, b), z), {}),
        ("no bias", right.args, {"body": Graph(body.inputs, (term("add", y, z_leaf),))}),
    ]
    for kind, args, change in changes:
        mutant = term("depthwise_conv", *args, **{**attrs, **change})
        assert not verified_mugraph(Graph(goal.inputs, (mutant,)), goal), kind
    with pytest.raises(IllTyped, match="for a body of 1"):
        term("depthwise_conv", *right.args, **{**attrs, "body": Graph((y,), (y,))})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["rows of odd length", "rows of whole lines", "small planes", "rows with a stride"])
def test_threads_lie_along_a_row_and_nothing_is_exchanged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loads 4 bytes, whatever their address; sums stay where they are, and in registers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    image, block = {
        "rows of odd length": ((2, 32, 57, 57), (1, 256, 4)),
        "rows of whole lines": ((2, 32, 64, 64), (1, 512, 4)),
        "small planes": ((2, 96, 7, 7), (16, 16, 4)),
        "rows with a stride": ((2, 32, 64, 64), (1, 256, 4)),
    }[name]
    strides = (1, 2) if "stride" in name else (1, 1)
    goal = depthwise(image, (3, 3), "bias, sum, mish", pads=(1, 1, 1, 1), strides=strides)
    found = program(goal, block)
    (kernel,) = compiled(found, 90, (replace(found.launches[0].schedule, warps=4),))
    assert not re.findall(r"(?:ld|st)\.(?:shared|local)|bar\.sync", kernel.ptx)
    assert not re.findall(r"st\.global\.v", kernel.ptx)
    loads = re.findall(r"ld\.global(?:\.\w+)*\.b32", kernel.ptx)
    lanes = block[0] * block[1] // 128  # of a thread
    channels = lanes if name == "small planes" else 1  # of a thread
    assert len(loads) <= channels * (9 + 1) + lanes * (6 * 3 + 4)
    assert kernel.ptx.count("fma.rn.f32") >= 36 * lanes


def test_what_has_no_form_says_why() -> None:
    goal = depthwise((1, 5, 5, 4), (3, 3))
    for block in ((3, 16, 1), (1, 24, 1), (1, 16, 3)):
        with pytest.raises(Unsupported, match="powers of two"):
            program(goal, block)
    with pytest.raises(Unsupported, match="a kernel of 70 rows, for 4 of the result"):
        program(depthwise((1, 2, 99, 4), (70, 1)), (1, 64, 4))
    with pytest.raises(Unsupported, match="offsets within fixed dims are 32 bits wide"):
        program(depthwise((1, 2, 1 << 15, 1 << 15), (3, 3)), (1, 64, 2))
    shapes = {"x": (1, 4, 5, 5), "w": (4, 1, 3, 3), "y": (1, 4, 3, 3)}
    x, w, y = (variable(name, Tensor("float64", shape)) for name, shape in shapes.items())
    how = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    double = term("depthwise_conv", x, w, body=Graph((y,), (y,)), **how)
    with pytest.raises(Unsupported, match="of float64, which has no form"):
        triton.program(Graph((x, w), (double,)))


@pytest.mark.parametrize("name", FORMS)
def test_a_result_is_compared_with_float64(name: str) -> None:
    """PyTorch's convolution, and the epilogue by its definition."""
    (made, goal), _ = FORMS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*x.shape, generator=generator) for x in goal.inputs]
    for rounds in (False, True):  # such kernels never round
        right = Float64Oracle(Graph(goal.inputs, (made.node,)), rounds)
        before = [each.clone() for each in inputs]
        right.prepare(inputs)
        assert all(torch.equal(*pair) for pair in zip(inputs, before, strict=True))
        values = dict(zip(goal.inputs, [each.double().numpy() for each in inputs], strict=True))
        wanted = torch.from_numpy(meaning.interpret(goal.outputs, EXACT, values)[goal.outputs[0]]).float()
        assert right(inputs, [wanted])
        assert not right(inputs, [wanted * (1.1 if name == "half precision" else 1.0001)])


def test_blocks_cover_planes_of_any_size() -> None:
    """Several channels of small planes, several rows of planes that have some."""
    small, large, line = (
        DepthwiseConvolution(depthwise(image, kernel)[0].node)
        for image, kernel in (((1, 96, 9, 9), (3, 3)), ((1, 32, 114, 114), (3, 3)), ((1, 8, 400), (3,)))
    )
    assert all(beside * positions in (128, 256, 512, 1024) for beside, positions, _ in small.blocks())
    assert {rows for *_, rows in small.blocks()} == {1, 2, 4, 8}
    assert {beside for beside, *_ in large.blocks()} == {1}
    assert {rows for *_, rows in line.blocks()} == {1}
    for made in (small, large, line):
        goal = Graph(made.node.args, (made.node,))
        found = made.mugraphs(goal, H100)
        assert found
        assert [each.seconds for each in found] == sorted(each.seconds for each in found)


# ---------------------------------------------------------------- how a model has them


def model(batch: int | str = 2) -> Model:
    """An inverted residual block as of MobileNet: a product, a convolution of each channel with a
    clip behind each, and the sum with the input; then one with two results of each channel."""
    rng = np.random.default_rng(0)
    weights: dict[str, StoredWeight] = {}
    x = variable("x", Tensor("float32", (symbol(batch) if isinstance(batch, str) else batch, 4, 7, 8)))

    def stored(name: str, *shape: int) -> Node:
        weights[name] = StoredWeight((rng.normal(size=shape) / 2).astype(np.float32))
        return weight(name, Tensor("float32", shape))

    def clipped(y: Node) -> Node:
        return term("mul", y, term("hard_sigmoid", y, alpha=1 / 6, beta=0.5))

    one: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    around = {**one, "pads": (1, 1, 1, 1)}
    wide = clipped(term("conv", x, stored("expand", 12, 4, 1, 1), stored("be", 12), **one, group=1))
    each = clipped(term("conv", wide, stored("channels", 12, 1, 3, 3), stored("bc", 12), **around, group=12))
    both = term("add", term("conv", each, stored("project", 4, 12, 1, 1), **one, group=1), x)
    last = term("conv", both, stored("two", 8, 1, 5, 3), **{**around, "strides": (2, 1)}, group=4)
    made = standalone(Graph((x,), (term("relu", last),)), {"": 20}, weights)
    return from_ir(from_proto(onnx.load_from_string(serialize(made))))


def kinds(given: Model) -> list[str]:
    return [n.op for n in given.nodes() if n.op in ("depthwise_conv", "shifted_conv")]


def test_a_model_with_such_convolutions_is_the_model() -> None:
    given = model()
    made = with_convolutions(given)
    assert kinds(made.model) == ["shifted_conv", "depthwise_conv", "shifted_conv", "depthwise_conv"]
    same_model(made, given)


def test_only_groups_of_one_channel_are_such() -> None:
    x = variable("x", Tensor("float32", (1, 8, 5, 5)))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    for group, found in ((8, ["depthwise_conv"]), (4, []), (2, [])):
        array = StoredWeight(np.ones((8, 8 // group, 3, 3), np.float32))
        w = weight("w", Tensor("float32", (8, 8 // group, 3, 3)))
        given = standalone(Graph((x,), (term("conv", x, w, **attrs, group=group),)), {"": 20}, {"w": array})
        assert kinds(with_convolutions(given).model) == found


def test_tall_kernels_are_such() -> None:
    """Each position has results in few rows, as the code for one more is as long."""
    x, w = variable("x", Tensor("float32", (1, 4, 90, 3))), weight("w", Tensor("float32", (4, 1, 70, 1)))
    conv = term("conv", x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=4)
    arrays = {"w": StoredWeight(np.ones((4, 1, 70, 1), np.float32))}
    (made,) = with_convolutions(standalone(Graph((x,), (conv,)), {"": 20}, arrays)).model.graph.outputs
    assert made.op == "depthwise_conv"
    found = DepthwiseConvolution(made).mugraphs(Graph((x, w), (made,)), H100)
    assert {each.graph.outputs[0].attr("block")[2] for each in found} == {1, 2}


# ---------------------------------------------------------------- the stage

CONFIG = Config(budget=1000.0, seconds=0.0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """All but the clocks and the GPU is real; of each kind one block is compiled."""
    without_a_gpu(monkeypatch, tmp_path)
    monkeypatch.setattr(DepthwiseConvolution, "blocks", lambda self: iter([(2, 32, 2)]))
    monkeypatch.setattr("taso_mirage.forms.shifted.ShiftedConvolution.blocks", lambda self: iter([(32, 32, 16, 1)]))
    return monkeypatch


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("batch", "target"), [("batch", CUDA), *(pytest.param(2, t, marks=pytest.mark.slow) for t in (CUDA, CUDA_TF32))]
)
def test_all_convolutions_become_kernels(
    batch: int | str, target: Any, stand_in: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = unchanged(model(batch), target, CONFIG)
    found = fused(result, CONFIG, "search")
    assert found.changed, found.notes
    assert all(d.passed for d in found.differences)
    proto = saved_proto(found.model, tmp_path)
    assert not [n.op_type for n in proto.graph.node if n.domain == ""]
    sources = [p.value for p in proto.metadata_props if p.key.startswith("taso_mirage.triton")]
    assert sum("= depthwise_conv(" in each for each in sources) == 2
    same_outputs(found.model, result.original, rtol=1e-4, atol=1e-5)


def test_more_images_are_measured_at_one_number() -> None:
    made, written = depthwise((2, 5, 6, 7), (3, 3), "bias")
    goal = Graph(written.inputs, (made.node,))
    assert GPU_GOALS.read(goal) == made
    free = FreeSizes(((N, 5, 6, 7), (5, 1, 3, 3), (1, 5, 1, 1)), ((N, 5, 4, 5),))
    found = [replace(each, free=with_free_names(each.graph, free)) for each in made.mugraphs(goal, H100)]
    record = GPU.fastest(goal, found[:2], 1e9, [{"n0": 2}, {"n0": 1}, {"n0": 4}])
    assert from_json(record["mugraph"]).inputs[0].shape == (N, 5, 6, 7)
    assert not record["before"]
    rounding = GPU.rounding()
    rounded = rounding.fastest(goal, found[:2], 1e9, [{"n0": 2}])
    assert rounding.fine(rounded) == rounded
    warps = tune.scheduled(program((made, written), (2, 16, 2)), 0, LaunchSchedule(8))
    assert warps.launches[0].options == {"num_warps": 8}


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
@pytest.mark.parametrize("batch", [2, "batch"])
def test_they_run_on_the_gpu(batch: int | str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing but the choice of the kept kernels is made up."""
    every_kernel_kept(monkeypatch, tmp_path)
    config = replace(CONFIG, target=CUDA, seconds=0.2)
    result = replace(optimize_model(model(batch), replace(config, measure=False, budget=0.0)), target=CUDA)
    found = fused(result, config, "search")
    assert found.kernels, found.notes
    assert not [note for note in found.notes if "report it" in note]
    assert all(d.passed for d in found.differences)
    session = Session(Trusted(serialize(found.model)), CUDA)
    inputs = random_inputs(result.original, 0, {"batch": 3})
    for got, wanted in zip(session.run(inputs), run(serialize(result.original), dict(inputs)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def gpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for name, ((made, goal), block) in FORMS.items():
        yield f"depthwise/{name}", Graph(goal.inputs, (made.mugraph(block),))
