"""Convolutions in single precision as kernels for a GPU: they compute the convolution and its
epilogue, in the field, in numbers and in Triton's interpreter; how a model has them; and the stage,
without a GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from followed_terms import with_convolutions
from form_programs import (
    Case,
    convolved,
    every_kernel_kept,
    program_errors,
    same_model,
    same_outputs,
    same_results,
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
from taso_mirage.emit.gpu.program import IEEE, TF32_PARTS, TF32_ROUNDED, LaunchSchedule
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.forms.base.form import GPU_GOALS
from taso_mirage.forms.base.in_operators import nearest_tf32
from taso_mirage.forms.shifted import BLOCK, ShiftedConvolution
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, StoredWeight, random_inputs
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, substitute, variable, weight
from taso_mirage.lowering.exact import Float64Oracle
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.checkpoint import from_json
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io import from_ir, from_proto, save, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators import interpret as meaning
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, stage
from taso_mirage.search.config import Config
from taso_mirage.targets.cuda.target import CUDA_TF32
from taso_mirage.targets.protocol import Trusted
from taso_mirage.verdicts import Evidence

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")
N = symbol("n0")
Block = tuple[int, int, int, int]
OWN_NAMES = ("sum_1", "x_tile", "sum_1_tile", "kernel_0_block")
"""Names of inputs that a program has itself, or makes of those of inputs."""


def is_followed(node: Node) -> bool:
    return node.op in ("shifted_conv", "depthwise_conv")


FORMS: dict[str, tuple[tuple[ShiftedConvolution, Graph], Block]] = {
    "plain": (convolved((2, 5, 9, 11), (3, 3), 7), (32, 16, 16, 3)),
    "pads": (convolved((2, 5, 9, 11), (3, 3), 20, "bias, mish", pads=(1, 1, 1, 1)), (32, 16, 16, 3)),
    "wide pads": (convolved((1, 3, 4, 5), (2, 3), 17, "scale", pads=(3, 4, 0, 5)), (32, 16, 16, 3)),
    "parts of a row": (convolved((1, 16, 7, 15), (2, 5), 7, "bias, sum", pads=(0, 2, 1, 2)), (32, 16, 16, 3)),
    "dilations": (convolved((1, 16, 12, 15), (3, 3), 7, dilations=(2, 2), pads=(1, 2, 0, 1)), (32, 16, 16, 3)),
    "strides": (convolved((2, 3, 12, 15), (3, 5), 7, "mish", strides=(2, 3), pads=(1, 2, 0, 1)), (32, 16, 16, 1)),
    "a volume": (convolved((2, 3, 5, 6, 7), (3, 3, 3), 7, "bias, scale", pads=(1, 0, 1, 1, 1, 1)), (32, 16, 16, 3)),
    "a line": (convolved((2, 3, 50), (4,), 7, "bias"), (32, 16, 16, 4)),
    "one element": (convolved((2, 32, 6, 7), (1, 1), 7, "scale, sum, mish"), (32, 16, 16, 1)),
    "one pixel": (convolved((3, 5, 3, 2), (3, 2), 7, "bias, scale, sum"), (32, 16, 16, 2)),
    "transposed": (convolved((2, 5, 6, 7), (3, 3), 7, "bias", pads=(1, 0, 1, 0), extra=(0, 0)), (32, 16, 16, 3)),
    "phases": (
        convolved((2, 5, 6, 7), (3, 3), 7, "bias, sum", strides=(2, 2), pads=(1, 1, 1, 1), extra=(1, 1)),
        (32, 16, 16, 3),
    ),
    "phases of a volume": (
        convolved((1, 16, 3, 4, 5), (4, 3, 3), 17, "bias", strides=(2, 2, 2), pads=(1,) * 6, extra=(0, 1, 0)),
        (32, 16, 16, 3),
    ),
    "transposed with wide pads": (
        convolved((2, 5, 8, 9), (3, 5), 7, strides=(2, 1), pads=(7, 4, 7, 4), extra=(1, 0)),
        (32, 16, 16, 5),
    ),
    "transposed with dilations": (
        convolved((2, 5, 6, 7), (3, 4), 7, "bias", dilations=(2, 3), pads=(1, 2, 2, 4), extra=(0, 0)),
        (32, 16, 16, 4),
    ),
    "phases and dilations": (
        convolved((2, 5, 4, 5), (4, 3), 7, "bias", strides=(3, 5), dilations=(2, 2), pads=(2, 1, 3, 2), extra=(1, 2)),
        (32, 16, 16, 3),
    ),
    "phases that see nothing": (
        convolved((1, 5, 3, 4, 5), (3, 4, 3), 7, "bias, sum", strides=(2, 4, 2), dilations=(2, 6, 2), extra=(0, 1, 0)),
        (32, 16, 16, 3),
    ),
    "a kernel shorter than the stride": (
        convolved((2, 5, 4, 5), (2, 2), 7, "mish", strides=(3, 3), pads=(1, 0, 0, 1), extra=(0, 0)),
        (32, 16, 16, 2),
    ),
    "phases that differ": (
        convolved((2, 5, 6, 7), (4, 5), 7, "scale, mish", strides=(2, 3), extra=(0, 2)),
        (32, 16, 16, 5),
    ),
}


def program(made: ShiftedConvolution, goal: Graph, block: Block, precision: str = IEEE) -> Any:
    found = triton.program(Graph(goal.inputs, (made.mugraph(block),)))
    return tune.scheduled(found, 0, replace(found.launches[0].schedule, precision=precision))


WRONG = (
    ("a row further", r"\[None, :\] - 1 \+ tap", "[None, :] + tap"),
    ("above the image", r"\(row_x >= 0\) & ", ""),
    ("beside the image", r"\(pixel_x >= 0\) & ", ""),
    ("a shift too much", r"rows \+ 1,", "rows + 2,"),
    ("no second part", r"w_tile \+ w_low", "w_tile"),
    ("an element too far", r"\(2 \* 20 \+ column\)", "(1 * 20 + column)"),
    ("a channel too few", r"begin \+ depth < inner", "begin + depth < inner - 1"),
    ("no bias", r"bias_tile = tl.load\(bias .*\n", "bias_tile = column * 0.0\n"),
    ("a column short", r"\(pixel < 11\)", "(pixel < 10)"),
    ("no mish", r"tl.tanh|1.0 - 2.0 / ", "0.5 - 2.0 / "),
)
"""Changes of the program of `pads`, which make it wrong."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The errors of all forms, of wrong programs, and of one with a free number of images at
    several, from one process."""
    cases: list[Case] = []
    for name, ((made, goal), block) in FORMS.items():
        cases.append((name, program(made, goal, block).source, [goal]))
    (made, goal), block = FORMS["pads"]
    cases += wrong_cases(program(made, goal, block).source, WRONG, goal)
    made, goal = convolved((2, 5, 6, 7), (3, 3), 7, "bias, sum")
    names = FreeSizes(((N, 5, 6, 7), (2, 3, 7, 3, 5), (1, 7, 1, 1), (N, 7, 4, 5)), ((N, 7, 4, 5),))
    other = dict(
        zip(goal.inputs, [variable(n, x.tensor) for n, x in zip(OWN_NAMES, goal.inputs, strict=True)], strict=True)
    )
    renamed = Graph(tuple(other.values()), substitute(goal.outputs, other))
    (node,) = substitute((made.mugraph((32, 16, 16, 3)),), other)
    source = triton.program(Graph(renamed.inputs, (node,)))
    source = tune.scheduled(source, 0, replace(source.launches[0].schedule, precision=IEEE))
    cases.append(("names", source.source, [renamed]))
    graph = Graph(goal.inputs, (made.mugraph((32, 16, 16, 3)),))
    turns = triton.program(graph, [LaunchSchedule(4, 2, persistent=3)])
    assert turns.launches[0].grid == (3,)
    cases.append(("turns", turns.source, [goal]))
    free = triton.program(with_free_names(graph, names))
    free = tune.scheduled(free, 0, replace(free.launches[0].schedule, precision=IEEE))
    goals = [convolved((n, 5, 6, 7), (3, 3), 7, "bias, sum")[1] for n in (1, 3)]
    cases.append(("free", free.source, goals))
    return program_errors(cases, tmp_path_factory.mktemp("shifted"))


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", [*FORMS, "free", "names", "turns"])
def test_the_kernel_computes_the_convolution(name: str, errors: dict[str, list[float]]) -> None:
    """At odd sizes: tiles that are not full, channels that are no powers of two."""
    assert len(errors[name]) == (2 if name == "free" else 1)
    assert max(errors[name]) < 3e-6


@pytest.mark.sampled(3, together=True)
def test_what_is_wrong_in_a_program_is_seen(errors: dict[str, list[float]]) -> None:
    given, block = FORMS["pads"]
    assert unseen_changes(program(*given, block).source, WRONG, errors) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMS)
def test_the_definition_is_the_convolution(name: str) -> None:
    """With the epilogue, at these sizes, and as the evidence has it."""
    (made, goal), block = FORMS[name]
    small, leaves = made.small()
    for mine, wanted in ((small.mugraph(BLOCK), leaves), (made.mugraph(block), goal)):
        found = verified_mugraph(Graph(wanted.inputs, (mine,)), wanted)
        assert isinstance(found, Evidence)
        assert found.tests >= 8
    assert min(small.node.shape[2:]) >= 2


def test_every_mutant_is_refused() -> None:
    """The mutants have other strides, pads, dilations, operands, and another body."""
    made, goal = convolved((2, 3, 7, 8), (3, 3), 4, "bias, sum", pads=(1, 0, 1, 1))
    right = made.mugraph(BLOCK)
    assert verified_mugraph(Graph(goal.inputs, (right,)), goal)
    x, w, b, z = right.args
    attrs: dict[str, Any] = dict(right.attrs)
    body = attrs["body"]
    y, _, z_leaf = body.inputs
    turned = term("transpose", w, perm=(0, 3, 2, 1, 4))
    changes: list[tuple[str, tuple[Node, ...], dict[str, Any]]] = [
        ("pads", right.args, {"pads": (0, 0, 2, 1)}),
        ("dilations", right.args, {"dilations": (2, 1), "pads": (2, 0, 2, 1)}),
        ("strides", right.args, {"strides": (2, 2), "pads": (4, 3, 5, 6)}),
        ("data", (term("add", x, x), w, b, z), {}),
        ("weights", (x, turned, b, z), {}),
        ("bias", (x, w, term("add", b, b), z), {}),
        ("no bias", right.args, {"body": Graph(body.inputs, (term("add", y, z_leaf),))}),
        ("transposed", right.args, {"extra": (0, 0), "pads": (1, 2, 1, 1)}),
    ]
    refused = Counter[str]()
    for kind, args, change in changes:
        try:
            mutant = term("shifted_conv", *args, **{**attrs, **change})
        except IllTyped:
            refused["ill typed"] += 1
            continue
        assert not verified_mugraph(Graph(goal.inputs, (mutant,)), goal), kind
        refused[kind] += 1
    assert refused["ill typed"] <= 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", [TF32_PARTS, TF32_ROUNDED])
def test_tensor_cores_multiply_what_is_loaded_ahead(precision: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made, goal = convolved((2, 32, 64, 64), (3, 3), 64, "bias, mish")
    found = program(made, goal, (128, 64, 32, 3), precision)
    (kernel,) = compiled(found, 90, (found.launches[0].schedule,))
    assert "wgmma.mma_async" in kernel.ptx
    assert ("cvt.rna.tf32.f32" in kernel.ptx) == (precision == TF32_ROUNDED)
    assert len(re.findall(r"cp\.async\.cg", kernel.ptx)) >= 6  # the weights, 16 bytes a thread
    assert "st.local" not in kernel.ptx


def test_results_of_a_phase_are_stored_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of a thread are as far apart as the stride, also where one row has one pixel."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made, goal = convolved((2, 32, 64, 1), (1, 4), 32, strides=(1, 4), extra=(0, 0))
    found = program(made, goal, (128, 32, 16, 4), TF32_PARTS)
    (kernel,) = compiled(found, 90, (found.launches[0].schedule,))
    assert "st.global.b32" in kernel.ptx
    assert "st.global.v" not in kernel.ptx


def test_what_has_no_form_says_why() -> None:
    made, goal = convolved((1, 5, 5, 4), (3, 3), 4)
    with pytest.raises(Unsupported, match="powers of two"):
        program(made, goal, (24, 16, 16, 3))
    strided, of_strided = convolved((1, 5, 9, 9), (3, 3), 4, strides=(2, 2))
    with pytest.raises(Unsupported, match="stride 2"):
        program(strided, of_strided, (32, 16, 16, 3))
    narrow, of_narrow = convolved((1, 1, 1 << 29, 1), (1, 7), 1, pads=(0, 3, 0, 3))
    with pytest.raises(Unsupported, match="positions of a plane, which 32 bits count"):
        program(narrow, of_narrow, (32, 16, 16, 7))
    assert [each for each in strided.mugraphs(of_strided, H100) if each.graph.outputs[0].attr("block")[3] != 1] == []


@pytest.mark.parametrize("name", FORMS)
def test_a_result_is_compared_with_float64(name: str) -> None:
    """PyTorch's convolution, and the epilogue by its definition; weights are given as a model has
    them."""
    (made, goal), _ = FORMS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*x.shape, generator=generator) for x in goal.inputs]
    right = Float64Oracle(Graph(goal.inputs, (made.node,)))
    right.prepare(inputs)
    high, low = inputs[1]
    assert np.array_equal(nearest_tf32(high.numpy()), high.numpy())
    assert float(low.abs().max()) <= float(high.abs().max()) * 2.0**-11
    values = dict(zip(goal.inputs, [each.double().numpy() for each in inputs], strict=True))
    wanted = torch.from_numpy(meaning.interpret(goal.outputs, EXACT, values)[goal.outputs[0]]).float()
    assert right(inputs, [wanted])
    assert not right(inputs, [wanted * 1.0001])
    rounding = Float64Oracle(Graph(goal.inputs, (made.node,)), rounds=True)
    assert not rounding(inputs, [wanted * 1.001])
    values[goal.inputs[0]] = nearest_tf32(inputs[0].numpy()).astype(np.float64)
    values[goal.inputs[1]][1] = 0
    (rounded,) = meaning.interpret(goal.outputs, EXACT, values).values()
    assert rounding(inputs, [torch.from_numpy(rounded * 1.0001).float()])
    assert not rounding(inputs, [torch.from_numpy(rounded * 1.0005).float()])


def test_what_is_convolved_may_be_added_too() -> None:
    x, w = variable("x", Tensor("float32", (2, 4, 5, 5))), variable("w", Tensor("float32", (2, 3, 4, 3, 4)))
    y, z = (variable(name, Tensor("float32", (1, 4, 5, 5))) for name in "yz")
    body = Graph((y, z), (term("add", y, z),))
    how = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    node = term("shifted_conv", x, w, x, body=body, **how)
    inputs = [torch.randn(*each.shape, generator=torch.Generator().manual_seed(0)) for each in (x, w)]
    natural = inputs[1].sum(0).permute(1, 3, 2, 0)
    wanted = torch.nn.functional.conv2d(inputs[0], natural, padding=1) + inputs[0]
    assert Float64Oracle(Graph((x, w), (node,)))(inputs, [wanted])


# ---------------------------------------------------------------- how a model has them


def model(batch: int | str = 2) -> Model:
    """relu(conv(x) + scale), whose sum with a convolution of a residual is read twice; then a
    transposed one, whose bias and activation follow."""
    rng = np.random.default_rng(0)
    weights: dict[str, StoredWeight] = {}
    x = variable("x", Tensor("float32", (symbol(batch) if isinstance(batch, str) else batch, 6, 7, 8)))

    def stored(name: str, *shape: int) -> Node:
        weights[name] = StoredWeight((rng.normal(size=shape) / 4).astype(np.float32))
        return weight(name, Tensor("float32", shape))

    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    first = term("conv", x, stored("wa", 6, 6, 3, 3), stored("ba", 6), **attrs, group=1)
    first = term("relu", term("mul", first, stored("scale", 6, 1, 1)))
    second = term("conv", first, stored("wb", 6, 6, 3, 3), **attrs, group=1)
    both = term("add", second, first)
    grown = term(
        "conv_transpose",
        both,
        stored("wc", 6, 4, 2, 2),
        stored("bc", 4),
        **{**attrs, "strides": (2, 2)},
        output_padding=(0, 0),
        group=1,
    )
    last = term("mul", term("tanh", grown), term("sigmoid", grown))
    made = standalone(Graph((x,), (last, term("reduce_max", both, axes=(2, 3), keepdims=0))), {"": 20}, weights)
    return from_ir(from_proto(onnx.load_from_string(serialize(made))))


def test_a_model_with_shifted_convolutions_is_the_model() -> None:
    given = model()
    made = with_convolutions(given)
    shifted = [n for n in made.model.nodes() if is_followed(n)]
    inside = [sorted(n.op for n in each.attr("body") if n.args) for each in shifted]
    assert inside == [["add", "mul", "relu"], ["add"], ["add", "mul", "sigmoid", "tanh"]]
    assert [n.op for n in made.model.nodes() if n.args and not is_followed(n)] == ["reduce_max"]
    same_model(made, given)


@pytest.mark.parametrize("columns", [4, 5])
def test_forms_of_weights_have_names_of_their_own(columns: int) -> None:
    """One weight of a convolution and of a transposed one, one bias of an image and of a line, and
    names that the model has for others."""
    rng = np.random.default_rng(0)
    shapes = {
        "w": (columns, 4, 3, 3),
        "v": (4, columns, 3),
        "b": (4,),
        "bias_b": (1, 4, 1, 1),
        "shifted_v": (2, 3, 4, columns),
        "shifted_w": (7,),
    }
    arrays = {name: StoredWeight(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    w, v, b, *others = (weight(name, Tensor("float32", shape)) for name, shape in shapes.items())
    x, line = variable("x", Tensor("float32", (2, 4, 6, 6))), variable("y", Tensor("float32", (2, columns, 6)))
    plane: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    along: dict[str, Any] = {"strides": (1,), "pads": (1, 1), "dilations": (1,), "group": 1}
    tied = term("conv_transpose", term("conv", x, w, **plane), w, b, **plane, output_padding=(0, 0))
    sums = [term("reduce_sum", each, axes=(0,), keepdims=0) for each in others]
    outputs = (tied, term("conv", line, v, b, **along), term("add", term("exp", x), others[0]), *sums)
    given = standalone(Graph((x, line), outputs), {"": 20}, arrays)
    made = with_convolutions(given)
    assert sum(map(is_followed, made.model.nodes())) == 3
    same_model(made, given)
    same_results(made.without_rest(made.model), given)


@pytest.mark.parametrize("kind", ["plain", "transposed", "depthwise", "half precision"])
@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_a_bias_of_equal_numbers_is_a_constant(kind: str, bias: float) -> None:
    """Exporters write zeros where there is no bias; so no such convolution got a kernel."""
    dtype = "float16" if kind == "half precision" else "float32"
    x, group = variable("x", Tensor(dtype, (2, 4, 6, 7))), 4 if kind == "depthwise" else 1
    array = np.random.default_rng(0).normal(size=(4, 4 // group, 3, 3)).astype(dtype)
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": group}
    w, b = weight("w", Tensor(dtype, array.shape)), np.full(4, bias, dtype)
    op, extra = ("conv_transpose", {"output_padding": (0, 0)}) if kind == "transposed" else ("conv", {})
    node = term(op, x, w, constant(b), **attrs, **extra)
    given = standalone(Graph((x,), (node,)), {"": 20}, {"w": StoredWeight(array)})
    made = with_convolutions(given)
    inside = [n for n in made.model.nodes() if is_followed(n) or n.op == "implicit_gemm"]
    assert len(inside) == 1
    assert any(
        bool(n.op == "weight" and n.tensor.shape != w.shape and size(n.tensor) == b.nbytes) for n in inside[0].args
    ) == bool(bias)
    back = made.without_rest(made.model)
    assert back.graph.outputs == ((node,) if bias else (term(op, x, w, **attrs, **extra),))
    for each in (made.model, back):
        same_results(each, given)


def test_a_convolution_of_pytorch_without_a_bias_is_such() -> None:
    pytest.importorskip("onnxscript")
    from taso_mirage.torch.export import to_onnx

    model = to_onnx(torch.nn.Conv2d(3, 4, 3, bias=False).eval(), [torch.randn(2, 3, 8, 8)], [frozenset()]).model
    given = from_ir(model)
    assert [n.op for n in with_convolutions(given).model.nodes() if n.args] == ["shifted_conv"]


def test_what_a_model_says_elsewhere_stays() -> None:
    """Groups, images of free sizes, weights of the run, and weights that are not finite in TF32."""
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    x, w = variable("x", Tensor("float32", (1, 8, 5, 5))), variable("w", Tensor("float32", (8, 8, 3, 3)))
    free = variable("x", Tensor("float32", (1, 8, symbol("h"), 5)))
    known, grouped = weight("k", w.tensor), weight("g", Tensor("float32", (8, 4, 3, 3)))
    large = np.full((8, 8, 3, 3), np.finfo(np.float32).max, np.float32)
    plain = np.ones((8, 8, 3, 3), np.float32)
    for leaves, kernel, group, array in (
        ((x, w), w, 1, plain),
        ((free,), known, 1, plain),
        ((x,), grouped, 2, plain[:, :4]),
        ((x,), known, 1, large),
    ):
        arrays = {} if kernel is w else {kernel.attr("name"): StoredWeight(array)}
        given = standalone(Graph(leaves, (term("conv", leaves[0], kernel, **attrs, group=group),)), {"": 20}, arrays)
        assert with_convolutions(given).model.graph == given.graph
    arrays = {"k": StoredWeight(plain)}
    given = standalone(Graph((x,), (term("conv", x, known, **attrs, group=1),)), {"": 20}, arrays)
    assert is_followed(with_convolutions(given).model.graph.outputs[0])


def test_what_two_read_ends_what_follows() -> None:
    """A value that is a result, and a mean over the image, end it too."""
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    x, k = variable("x", Tensor("float32", (1, 8, 5, 5))), weight("k", Tensor("float32", (8, 8, 3, 3)))
    conv = term("conv", x, k, **attrs)
    relu = term("relu", conv)
    arrays = {"k": StoredWeight(np.ones((8, 8, 3, 3), np.float32))}
    mean = term("reduce_mean", conv, axes=(2, 3), keepdims=1)
    for outputs, inside in (
        ((conv, relu), []),
        ((relu, term("exp", relu)), ["relu"]),
        ((term("mul", conv, mean),), []),
        ((term("mul", relu, term("sigmoid", relu)),), ["mul", "relu", "sigmoid"]),
    ):
        made = with_convolutions(standalone(Graph((x,), outputs), {"": 20}, arrays)).model
        (found,) = [n for n in made.nodes() if is_followed(n)]
        assert sorted(n.op for n in found.attr("body") if n.args) == inside


# ---------------------------------------------------------------- the stage

CONFIG = Config(budget=1000.0, seconds=0.0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """All but the clocks and the GPU is real."""
    without_a_gpu(monkeypatch, tmp_path)
    own = ShiftedConvolution.blocks
    monkeypatch.setattr(ShiftedConvolution, "blocks", lambda self: iter([(32, 32, 16, next(own(self))[3])]))
    return monkeypatch


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("batch", "target"), [*(pytest.param(n, CUDA, marks=pytest.mark.slow) for n in (2, "batch")), (2, CUDA_TF32)]
)
def test_all_convolutions_become_kernels(
    batch: int | str, target: Any, stand_in: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where operands may be rounded the kernels round them, and the check compares those that do
    not."""
    result = unchanged(model(batch), target, CONFIG)
    compared: list[list[dict[str, Any]]] = []
    without = stage.rounding_nothing

    def noted(kept: Any, backend: Any) -> Any:
        found = without(kept, backend)
        compared.append([each for kind in found or kept for each in kind.record["schedules"]])
        return found

    stand_in.setattr(stage, "rounding_nothing", noted)
    found = fused(result, CONFIG, "search")
    assert found.changed, found.notes
    kinds = [kind for each in found.kernels for kind, _ in each.kinds]
    assert sum("conv" in kind or "conv_transpose" in kind for kind in kinds) == 3, found.notes
    assert all(d.passed for d in found.differences)
    proto = saved_proto(found.model, tmp_path)
    assert not [n.op_type for n in proto.graph.node if n.domain == ""]
    sources = [p.value for p in proto.metadata_props if p.key.startswith("taso_mirage.triton")]
    precise, coarse = (
        sum(f"'PRECISION': '{p}'" in each.replace('"', "'") for each in sources) for p in (TF32_PARTS, TF32_ROUNDED)
    )
    assert (precise, coarse) == ((0, 3) if target is CUDA_TF32 else (3, 0))
    assert all(each["precision"] != TF32_ROUNDED for each in compared[0])
    same_outputs(found.model, result.original, rtol=1e-4, atol=1e-5)


def test_more_images_are_measured_at_one_number() -> None:
    made, written_as = convolved((2, 5, 6, 7), (3, 3), 7, "bias")
    goal = Graph(written_as.inputs, (made.node,))
    assert GPU_GOALS.read(goal) == made
    assert GPU_GOALS.read(written_as) is None
    assert GPU_GOALS.prepared(goal, goal.inputs) is None  # its weights are none
    free = FreeSizes(((N, 5, 6, 7), (2, 3, 7, 3, 5), (1, 7, 1, 1)), ((N, 7, 4, 5),))
    found = [replace(each, free=with_free_names(each.graph, free)) for each in made.mugraphs(goal, H100)]
    record = GPU.fastest(goal, found[:2], 1e9, [{"n0": 2}, {"n0": 1}, {"n0": 4}])
    assert from_json(record["mugraph"]).inputs[0].shape == (N, 5, 6, 7)
    assert not record["before"]
    assert record["schedules"][0]["precision"] == TF32_PARTS
    rounding = GPU.rounding()
    rounded = rounding.fastest(goal, found[:2], 1e9, [{"n0": 2}])
    assert rounded["schedules"][0]["precision"] == TF32_ROUNDED
    assert rounding.fine(rounded)["schedules"][0]["precision"] == TF32_PARTS
    assert rounding.key != GPU.key


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize(("batch", "target"), [(2, CUDA), ("batch", CUDA), (2, CUDA_TF32), ("batch", CUDA_TF32)])
def test_they_run_on_the_gpu(
    batch: int | str, target: Any, stays: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing but the choice of the kept kernels is made up; with weights that stay where they
    can."""
    every_kernel_kept(monkeypatch, tmp_path)
    forms = triton.program_forms
    monkeypatch.setattr(triton, "program_forms", lambda *args: forms(*args)[-1:] if stays else forms(*args)[:1])
    config = replace(CONFIG, target=target, seconds=0.2)
    result = replace(optimize_model(model(batch), replace(config, measure=False, budget=0.0)), target=target)
    found = fused(result, config, "search")
    assert found.kernels, found.notes
    assert not [note for note in found.notes if "report it" in note]
    assert all(d.passed for d in found.differences)
    save(found.model, tmp_path / "model.onnx")
    stored = onnx.load(tmp_path / "model.onnx").metadata_props
    assert any("rounded_tile(" in each.value for each in stored) == (stays and target is CUDA_TF32)
    session = Session(Trusted(serialize(found.model)), target)
    inputs = random_inputs(result.original, 0, {"batch": 3})
    bound = 2e-2 if target is CUDA_TF32 else 1e-4
    for got, wanted in zip(session.run(inputs), run(serialize(result.original), dict(inputs)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound)


def gpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for name, ((made, goal), block) in FORMS.items():
        yield f"shifted/{name}", Graph(goal.inputs, (made.mugraph(block),))
