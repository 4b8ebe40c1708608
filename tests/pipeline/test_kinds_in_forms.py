"""Kinds of regions of a model for a GPU, some of whose operators become terms of forms."""

from __future__ import annotations

import numpy as np
from fused_models import GPU

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable, weight
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse.kinds import Kinds, find_kinds
from taso_mirage.runtime.embed import EmbeddedRegion

SIDE, CHANNELS = 8, 16


def image(name: str = "x") -> Node:
    return variable(name, Tensor("float16", (2, CHANNELS, SIDE, SIDE)))


def gated(x: Node) -> Node:
    """A gate over two axes, which is a region of a search, but no form."""
    return term("softmax", term("mul", x, term("sigmoid", x)), axis=3)


def convolved(x: Node) -> Node:
    w = weight("w", Tensor("float16", (CHANNELS, CHANNELS, 3, 3)))
    return term("conv", x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)


def kinds(*outputs: Node) -> tuple[Model, Kinds]:
    """The kinds of a model, in which there is no error."""
    weights = {"w": StoredWeight(np.ones((CHANNELS, CHANNELS, 3, 3), np.float16))}
    leaves = tuple(n for n in topological(outputs) if n.op == "input")
    used = {n.attr("name") for n in topological(outputs) if n.op == "weight"}
    model = standalone(Graph(leaves, outputs), {"": 20}, {k: v for k, v in weights.items() if k in used})
    failed: list[Exception] = []
    found = find_kinds(model, {}, GPU, lambda: False, lambda what, error: failed.append(error))
    assert found.places
    assert not failed
    return model, found


def test_a_model_without_convolutions_is_the_same_model() -> None:
    """The kernels are compared on the inputs of their regions."""
    model, found = kinds(gated(image()))
    assert found.layout is None
    assert found.model is model


def test_regions_apart_from_convolutions_have_places_in_the_model() -> None:
    """The region of a convolution has none: it reads its weights in another order."""
    model, found = kinds(convolved(image()), gated(image("y")))
    assert found.layout is not None
    planned = None  # the kernel plays no part
    places = [
        EmbeddedRegion.of(kind.goal, site.inputs, planned)  # type: ignore[arg-type]
        for kind, sites in found.places.items()
        for site in sites
    ]
    inside = [found.layout.in_original(each) for each in places]
    assert None in inside
    there = [each for each in inside if each is not None]
    assert there
    for region in there:
        leaves = {n for n in topological(region.inputs) if not n.args}
        assert {*region.outputs, *leaves} <= set(model.nodes())
        assert region.original.outputs in [each.original.outputs for each in places]
