"""Layouts of parts: the search decides which convolutions have channels last, where the target's
options do not."""

from __future__ import annotations

import numpy as np
import pytest

from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable, weight
from taso_mirage.measure.target import CPU, CUDA, Target, target_for
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.problem import after
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.available import Available
from taso_mirage.search.cost import Cost, Roofline
from taso_mirage.search.fusion_context import FusionContext
from taso_mirage.search.passes import Context, for_search, pass_order
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.rulesets import rules
from taso_mirage.search.search import Budget, SearchState, directions, search_model
from taso_mirage.search.steps import RewriteStep

CONTEXT = Context({"": 20, "com.microsoft": 1}, {}, target=CUDA)
CHANNELS_FIRST, CHANNELS_LAST = CUDA.variants


class Machine(Roofline):
    """A machine on which plain convolutions are faster with channels last; grouped ones take
    `grouped` seconds as they are."""

    def __init__(self, grouped: float) -> None:
        super().__init__(CONTEXT)
        self.grouped = grouped

    def seconds(self, fusion: FusionContext) -> float:
        known = {"conv": 100e-6, "nhwc_conv": 60e-6, "transpose": 15e-6, "relu": 5e-6}
        grouped = fusion.node.op == "conv" and fusion.node.attr("group") > 1
        return self.grouped if grouped else known.get(fusion.node.op, 1e-3)


def image(dtype: str = "float16") -> Node:
    return variable("x", Tensor(dtype, (1, 64, 56, 56)))


def conv(image: Node, name: str, group: int = 1, pads: tuple[int, ...] = (1, 1, 1, 1)) -> Node:
    """A convolution of 64 channels."""
    kernel = weight(name, Tensor(image.tensor.dtype, (64, 64 // group, 3, 3)))
    return term("conv", image, kernel, strides=(1, 1), pads=pads, dilations=(1, 1), group=group)


def path(
    output: Node, target: Target = CHANNELS_FIRST, grouped: float = 30e-6
) -> tuple[SearchState, list[RewriteStep]]:
    equations = rules().equations
    every = Rules(directions(for_search(equations, target)))
    return search_model((output,), every, pass_order(equations)[1], Cost(Machine(grouped)), CONTEXT, Budget(20))[:2]


def searched(output: Node, target: Target = CHANNELS_FIRST) -> SearchState:
    return path(output, target)[0]


def ops(outputs: SearchState) -> list[str]:
    """The operators that run."""
    return sorted(n.op for n in topological(outputs) if n.args and not is_weight(n))


def test_neighbours_share_their_changes_of_layout_and_the_grouped_one_stays() -> None:
    output = conv(conv(term("relu", conv(image(), "a")), "b"), "c", group=32)
    assert ops(searched(output)) == ["conv", "nhwc_conv", "nhwc_conv", "relu", "transpose", "transpose"]


@pytest.mark.parametrize(
    ("dtype", "target", "pads"),
    [
        ("float32", CHANNELS_FIRST, (1, 1, 1, 1)),
        ("float16", CHANNELS_LAST, (1, 1, 1, 1)),
        ("float16", CPU, (1, 1, 1, 1)),
        ("float16", CHANNELS_FIRST, (0, 0, 1, 1)),
    ],
    ids=["single precision", "made for all", "no GPU", "what the runtime has no kernel for"],
)
def test_no_layout_is_chosen(dtype: str, target: Target, pads: tuple[int, ...]) -> None:
    output = conv(term("relu", conv(image(dtype), "a", pads=pads)), "b", pads=pads)
    assert "nhwc_conv" not in ops(searched(output, target))


def test_a_kernel_is_an_initializer_though_it_grows() -> None:
    """ONNX Runtime refused one that the graph made of zeros and the kernel of a grouped
    convolution."""
    inputs = image()
    original = conv(inputs, "a", group=32)
    outputs, steps = path(original, grouped=300e-6)
    assert ops(outputs) == ["nhwc_conv", "transpose", "transpose"]
    weights = {"a": StoredWeight(np.ones((64, 2, 3, 3), np.float16))}
    model = standalone(Graph((inputs,), (original,)), {"": 20, "com.microsoft": 1}, weights)
    chosen = ModelCandidate("search", model, tuple(steps), 0.0, CHANNELS_FIRST)
    for k in range(len(steps) + 1):  # bisection tries models in the runtime's own layout
        made, steps_to_it = after(model, weights, chosen.steps[:k])
        assert [n.args[1].op for n in made.nodes() if n.op == "nhwc_conv"] in ([], ["weight"])
        assert len(steps_to_it) >= k


def test_both_layouts_are_measured_with_the_same_options() -> None:
    """A convolution was measured with cuDNN's own choice of algorithm, and the one with channels
    last without."""
    for target in CUDA.variants:
        assert target_for(target, ["conv"]) == target_for(target, ["nhwc_conv", "transpose"]) == target


def test_a_kernel_that_is_on_the_gpu_for_one_size_is_there_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a session for every convolution would take as long as measuring it."""
    tried: list[Node] = []
    answers = iter([False, True, True])
    monkeypatch.setattr(Available, "_tried", lambda self, node: tried.append(node) is None and next(answers))
    available = Available((), CONTEXT)
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    for channels, there in ((4, False), (8, True), (16, True), (32, True), (4, True)):
        kernel = weight("w", Tensor("float16", (channels, 3, 3, channels)))
        data = variable("x", Tensor("float16", (1, 9, 9, channels)))
        assert available(term("nhwc_conv", data, kernel, **attrs)) == there
    assert len(tried) == 2
