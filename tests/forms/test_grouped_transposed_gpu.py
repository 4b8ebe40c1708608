"""Transposed convolutions in groups as kernels for a GPU: they compute the convolution and its
epilogue, in the field, in numbers and in Triton's interpreter; and how a model has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from followed_terms import followed, with_convolutions
from form_programs import Case, program_errors, same_model, unseen_changes, wrong_cases

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.forms.base.form import GPU_GOALS
from taso_mirage.forms.grouped_transposed import GroupedTransposed
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Tensor, variable, weight
from taso_mirage.lowering.exact import Float64Oracle
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators import interpret as meaning
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Evidence

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")
N = symbol("n0")
Goal = tuple[GroupedTransposed, Graph]


def grouped(
    image: tuple[int, ...], kernel: tuple[int, ...], results: int, each: int, follows: str = "", **attrs: Any
) -> Goal:
    """A transposed convolution of an image (n,c,h,w) in groups of `each` channels with so many
    results, and its goal in operators of ONNX."""
    count = len(kernel)
    how: dict[str, Any] = {"strides": (1,) * count, "pads": (0,) * 2 * count, "dilations": (1,) * count}
    how |= {"extra": (0,) * count, "each": each} | attrs
    x, w = variable("x", Tensor("float32", image)), variable("w", Tensor("float32", (image[1], results, *kernel)))
    columns = image[1] // each * results
    node, goal = followed(GroupedTransposed, "grouped_conv_transpose", x, w, columns, follows, how)
    return GroupedTransposed(node), goal


FORMS: dict[str, tuple[Goal, tuple[int, int]]] = {
    "each channel alone": (grouped((2, 5, 6, 7), (3, 3), 1, 1, "bias", strides=(2, 2), pads=(1, 0, 1, 1)), (2, 32)),
    "groups": (
        grouped((2, 6, 5, 4), (4, 3), 3, 2, "bias, sum, mish", strides=(2, 2), pads=(1, 1, 1, 1), extra=(0, 1)),
        (4, 32),
    ),
    "other strides": (grouped((1, 4, 5, 6), (3, 5), 2, 2, strides=(1, 3), pads=(2, 4, 1, 3), extra=(0, 2)), (8, 16)),
    "dilations": (
        grouped((1, 4, 6, 5), (3, 2), 1, 2, "scale", strides=(3, 2), dilations=(2, 3), pads=(1, 2, 0, 1)),
        (2, 64),
    ),
    "a volume": (grouped((1, 4, 3, 4, 3), (3, 2, 3), 1, 1, "bias", strides=(2, 1, 2), extra=(1, 0, 1)), (1, 128)),
    "a line": (grouped((2, 3, 20), (4,), 1, 1, "sum", strides=(2,), pads=(1, 1)), (4, 16)),
}


def program(goal: Goal, block: tuple[int, int]) -> Any:
    return triton.program(Graph(goal[1].inputs, (goal[0].mugraph(block),)))


WRONG = (
    ("a row further", r"top_x = top \+ 1\n", "top_x = top + 2\n"),
    ("another stride", r"top_x // 2", "top_x // 3"),
    ("between the elements", r" & \(pixel_x % 2 == 0\)", ""),
    ("another group", r"channel // 3 \* 2", "channel // 2 * 2"),
    ("another channel's weights", r"channel % 3\)", "channel % 2)"),
    ("another element", r"\* 12 \+ 5,", "* 12 + 4,"),
    ("one channel of a group", r"range\(2\)", "range(1)"),
    ("no bias", r"bias_tile = tl.load\(bias .*\n", "bias_tile = channel * 0.0\n"),
)
"""Changes of the program of `groups`, which make it wrong."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The errors of all forms, of wrong programs, and of one with a free number of images at
    several, from one process."""
    cases: list[Case] = [(name, program(goal, block).source, [goal[1]]) for name, (goal, block) in FORMS.items()]
    goal, block = FORMS["groups"]
    cases += wrong_cases(program(goal, block).source, WRONG, goal[1])
    made, whole = grouped((2, 4, 5, 6), (3, 3), 2, 2, "bias", strides=(2, 2))
    names = FreeSizes(((N, 4, 5, 6), (4, 2, 3, 3), (1, 4, 1, 1)), ((N, 4, 11, 13),))
    free = triton.program(with_free_names(Graph(whole.inputs, (made.mugraph((2, 32)),)), names)).source
    goals = [grouped((n, 4, 5, 6), (3, 3), 2, 2, "bias", strides=(2, 2))[1] for n in (1, 3)]
    cases.append(("free", free, goals))
    return program_errors(cases, tmp_path_factory.mktemp("transposed"))


@pytest.mark.sampled(3, together=True)
@pytest.mark.parametrize("name", [*FORMS, "free"])
def test_the_kernel_computes_the_convolution(name: str, errors: dict[str, list[float]]) -> None:
    """The sizes are odd: tiles that are not full, channels that are no powers of two."""
    assert len(errors[name]) == (2 if name == "free" else 1)
    assert max(errors[name]) < 1e-6


@pytest.mark.sampled(3, together=True)
def test_what_is_wrong_in_a_program_is_seen(errors: dict[str, list[float]]) -> None:
    assert unseen_changes(program(*FORMS["groups"]).source, WRONG, errors) == []


@pytest.mark.parametrize("name", FORMS)
def test_the_definition_is_the_convolution(name: str) -> None:
    (made, _), block = FORMS[name]
    small, goal = made.small()
    found = verified_mugraph(Graph(goal.inputs, (small.mugraph(block),)), goal)
    assert isinstance(found, Evidence)
    assert found.tests >= 8
    assert found.bound < 1e-30


def test_every_mutant_is_refused() -> None:
    small, goal = grouped((1, 4, 5, 6), (3, 3), 2, 2, strides=(2, 2), pads=(1, 1, 1, 1))[0].small()
    x, w = goal.inputs
    attrs = dict(small.node.attrs)
    for other in ({"strides": (1, 2)}, {"pads": (0, 1, 2, 1)}, {"extra": (1, 0), "pads": (2, 1, 1, 1)}, {"each": 1}):
        try:
            made = term(small.node.op, x, w, **{**attrs, **other})
        except IllTyped:  # other sizes of the result than the epilogue has
            continue
        assert not isinstance(verified_mugraph(Graph((x, w), (made,)), goal), Evidence), other


@pytest.mark.parametrize("name", FORMS)
def test_a_result_is_compared_with_float64(name: str) -> None:
    """By PyTorch's own convolution: a wrong result is seen."""
    (made, goal), _ = FORMS[name]
    rng = np.random.default_rng(0)
    inputs = [torch.tensor(rng.normal(size=[int(n) for n in x.shape]).astype(np.float32)) for x in goal.inputs]
    arrays = {x: EXACT.load(each.numpy()) for x, each in zip(goal.inputs, inputs, strict=True)}
    (wanted,) = meaning.interpret(goal.outputs, EXACT, arrays).values()
    result = torch.tensor(np.asarray(wanted, np.float32))
    check = Float64Oracle(Graph(goal.inputs, (made.node,)))
    assert check(inputs, (result,))
    result[(0,) * result.dim()] += 1e-2 * float(result.abs().max())
    assert not check(inputs, (result,))


def test_what_has_no_form_says_why() -> None:
    with pytest.raises(Unsupported, match="powers of two"):
        program(grouped((1, 4, 5, 5), (3, 3), 1, 1), (3, 32))
    with pytest.raises(Unsupported, match="at most 64 have a form"):
        program(grouped((1, 4, 9, 9), (9, 8), 1, 1), (1, 32))
    with pytest.raises(IllTyped, match="in groups of 3"):
        grouped((1, 4, 5, 5), (3, 3), 1, 3)


# ---------------------------------------------------------------- in a model


def model(group: int, channels: int = 8) -> Model:
    """A transposed convolution in groups with a bias and a relu."""
    rng = np.random.default_rng(0)
    each = channels // group
    arrays = {"w": rng.normal(size=(channels, each, 4, 4)), "b": rng.normal(size=(channels,))}
    weights = {name: StoredWeight((a / 9).astype(np.float32)) for name, a in arrays.items()}
    x = variable("x", Tensor("float32", (2, channels, 5, 6)))
    w, b = (weight(name, Tensor("float32", a.shape)) for name, a in arrays.items())
    attrs = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "output_padding": (0, 0), "group": group}
    return standalone(Graph((x,), (term("relu", term("conv_transpose", x, w, b, **attrs)),)), {"": 20}, weights)


@pytest.mark.parametrize("group", [2, 4, 8])
def test_a_model_with_such_convolutions_is_the_model(group: int) -> None:
    given = model(group)
    made = with_convolutions(given)
    (node,) = [n for n in made.model.nodes() if n.op == "grouped_conv_transpose"]
    assert [n.op for n in node.attr("body") if n.args] == ["add", "relu"]
    assert made.model.graph.outputs == (node,)
    same_model(made, given)
    goal = Graph(node.args, (node,))
    assert isinstance(GPU_GOALS.prepared(goal, node.args), GroupedTransposed)


def test_other_transposed_convolutions_stay() -> None:
    """One group has another form; libraries are good at groups of many channels."""
    assert not any(n.op == "grouped_conv_transpose" for n in with_convolutions(model(1)).model.nodes())
    many = with_convolutions(model(2, 32)).model
    assert [n.op for n in many.nodes() if n.args] == ["conv_transpose", "relu"]


def test_muGraphs_are_ranked_by_the_devices_model() -> None:
    made, _ = grouped((16, 64, 28, 28), (4, 4), 1, 1, "bias", strides=(2, 2), pads=(1, 1, 1, 1))
    found = made.mugraphs(Graph(made.node.args, (made.node,)), H100)
    assert len(found) > 2
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)


def gpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for name, ((made, goal), block) in FORMS.items():
        yield f"grouped transposed/{name}", Graph(goal.inputs, (made.mugraph(block),))
