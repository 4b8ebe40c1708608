"""Recurrences whose steps are written out, as text of ONNX; their loops, and the certificates of
these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from bodies import optimized, parse
from onnx_texts import run

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CaseJudge
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, substitute
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.search.loops.chain_loops import rerolled_chains
from taso_mirage.search.steps import RewriteStep

PROOFS = Proofs(None)
COUNT = 10
RNG = np.random.default_rng(0)
CELL = {
    "x": "Gather<axis = 1>(X, i{t})",
    "p": "MatMul(x{t}, W)",
    "q": "MatMul(h{s}, R)",
    "g": "Add(p{t}, q{t})",
    "f": "Sigmoid(g{t})",
    "k": "Mul(f{t}, c{s})",
    "n": "Tanh(g{t})",
    "c": "Add(k{t}, n{t})",
    "e": "Tanh(c{t})",
    "h": "Mul(f{t}, e{t})",
    "y": "MatMul(h{t}, O)",
    "u": "Unsqueeze(y{t}, one)",
}
"""The terms of a step `t`, after the step `s`."""
ARRAYS = {
    "W": RNG.normal(size=(3, 4)).astype(np.float32),
    "R": RNG.normal(size=(4, 4)).astype(np.float32),
    "O": RNG.normal(size=(4, 2)).astype(np.float32),
    "S": RNG.normal(size=(4, 4)).astype(np.float32),
    "T": RNG.normal(size=(4, 4)).astype(np.float32),
    "one": np.array([1]),
}
FEEDS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in (("h0", (2, 4)), ("c0", (2, 4)))}


def model(
    changes: Mapping[int, Mapping[str, str]] = {},
    cell: Mapping[str, str] = CELL,
    count: int = COUNT,
    order: tuple[int, ...] = (),
    outputs: str = "",
    sizes: str = "2",
) -> onnx.ModelProto:
    """A recurrence, where `changes` has other terms of single steps; `order`: the steps in the
    order of their outputs."""
    lines = []
    for t in range(1, count + 1):
        for name, made in {**cell, **changes.get(t, {})}.items():
            lines.append(f"{name}{t} = {made.format(t=t, s=t - 1)}")
    joined = ", ".join(f"u{t}" for t in order or range(1, count + 1))
    text = f"""
        g (float[{sizes}, {count}, 3] X, float[2, 4] h0, float[2, 4] c0) => (float[2, {count}, 2] Y{outputs}) {{
            {chr(10).join(lines)}
            Y = Concat<axis = 1>({joined})
        }}"""
    return parse(text, {**ARRAYS, **{f"i{t}": np.array(t - 1) for t in range(count + 2)}})


def stepped(proto: onnx.ModelProto) -> tuple[Model, Model, list[RewriteStep]]:
    """The model before and after, and the steps."""
    before = from_memory(proto)
    steps = [*rerolled_chains(before.graph.outputs, PROOFS)]
    outputs = before.graph.outputs
    for step in steps:
        outputs = substitute(outputs, step.table)
    return before, before.with_graph(outputs), steps


def rerolled(proto: onnx.ModelProto) -> tuple[Model, Model, list[RewriteStep]]:
    """The model before and after, and the steps; both compute the same."""
    before, after, steps = stepped(proto)
    made = onnx.load_from_string(serialize(after))
    onnx.checker.check_model(made, full_check=True)
    feeds = dict(FEEDS)
    feeds["X"] = RNG.normal(size=(2, proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value, 3)).astype("f")
    for a, b in zip(run(proto, **feeds), run(made, **feeds), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    return before, after, steps


def loops(model: Model) -> list[Node]:
    return [n for n in model.nodes() if n.op == "scan"]


def count_of(loop: Node) -> Any:
    return loop.args[loop.attr("states")].shape[0]


def followed(before: Model, after: Model, steps: list[RewriteStep], **changes: Any) -> Any:
    """The certificate of the steps, which is followed with a strict checker."""
    _, result = optimized(onnx.load_from_string(serialize(before)), budget=0.0)
    made = replace(result, original=before, model=after, steps=tuple(steps), changed=True)
    return follow(before, after, {**certificate(made, {}, PROOFS), **changes}, CaseJudge(strict=True))
