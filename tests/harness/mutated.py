"""Models whose corrected mutants are faster."""

from __future__ import annotations

import numpy as np
from partial_programs import conv, image, kernel

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.search.partial.source import Tried, tried


class Given:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numpy(self) -> np.ndarray:
        return self.array


def model(x: Node, output: Node) -> Model:
    rng = np.random.default_rng(0)
    leaves = [n for n in Graph((x,), (output,)) if n.op == "weight"]
    weights = {n.attr("name"): Given(rng.normal(size=n.shape).astype(np.float32)) for n in leaves}
    return from_ir(to_ir(standalone(Graph((x,), (output,)), {"": 20}, weights)))


def side_by_side() -> Model:
    """A convolution of two images; the runtime of this test is bad at more than one image."""
    x = image(2, 3, 5, 7)
    return model(x, term("relu", conv(term("tanh", x), kernel(4, 3, 3, 3))))


def halved(program: Graph) -> Tried:
    costs = iter(0.5**i for i in range(900))
    made = tried(program, lambda g: next(costs))
    assert made is not None
    assert made.mutations
    return made
