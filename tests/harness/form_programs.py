"""Programs of forms in Triton's interpreter, models with forms in float64, and the stage of kernels
without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from followed_terms import followed
from free_programs import interpret
from fused_models import GPU, accepted, called, fresh_cache, on_the_cpu, quick, run

from taso_mirage.forms.shifted import ShiftedConvolution
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.lowering import cuda as cuda
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure import session as runtime
from taso_mirage.measure import timing
from taso_mirage.measure.target import Target
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.onnx_io import save, serialize
from taso_mirage.operators import interpret as meaning
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import region_times, stage
from taso_mirage.pipeline.fuse.form_terms import ModelInTerms
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config

Case = tuple[str, str, Sequence[Graph]]
"""A name, a program, and goals, of each of which the program is to compute the results."""
Change = tuple[str, str, str]
"""A name, a pattern in a program, and a text for it that makes the program wrong."""


def program_errors(cases: Sequence[Case], folder: Path) -> dict[str, list[float]]:
    """The errors of each program at its goals, relative to the largest element, by names; all from
    one process."""
    given = [[f"m{i}", [source], list(map(to_json, goals))] for i, (_, source, goals) in enumerate(cases)]
    names = [name for name, _, goals in cases for _ in goals]
    found: dict[str, list[float]] = {}
    for name, line in zip(names, interpret(given, folder), strict=True):
        found.setdefault(name, []).append(float(line[-1]))
    return found


def wrong_cases(source: str, changes: Sequence[Change], goal: Graph) -> Iterator[Case]:
    """The program with one change at a time."""
    for name, old, new in changes:
        yield f"wrong: {name}", re.sub(old, new, source), [goal]


def unseen_changes(
    source: str, changes: Sequence[Change], errors: dict[str, list[float]], bound: float = 1e-3
) -> list[str]:
    """The changes that change nothing in the program, or results by no more than `bound`."""
    return [
        name
        for name, old, new in changes
        if re.sub(old, new, source) == source or not errors[f"wrong: {name}"][0] > bound
    ]


def same_results(made: Model, given: Model) -> None:
    """Assert that two models compute the same in float64."""
    inputs = random_inputs(given, 0)
    for mine, wanted in zip(_exact(made, inputs), _exact(given, inputs), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-12, atol=1e-12)


def _exact(given: Model, inputs: dict[str, Any]) -> list[Any]:
    values = {n: EXACT.load(inputs[n.attr("name")]) for n in given.graph.inputs}
    values |= {n: EXACT.load(given.weights[n.attr("name")].numpy()) for n in given.nodes() if n.op == "weight"}
    found = meaning.interpret(given.graph.outputs, EXACT, values)
    return [found[o] for o in given.graph.outputs]


def same_model(made: ModelInTerms, given: Model) -> None:
    """Assert that a model with terms of forms computes the same as the given one, and that it is
    the given one where no term gets a kernel."""
    same_results(made.model, given)
    back = made.without_rest(made.model)
    assert back.graph == given.graph
    assert back.weights.keys() == given.weights.keys()


def without_a_gpu(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """The stage of kernels for an H100 where all but the clocks and the GPU is real."""
    fresh_cache(patch, folder)
    quick(patch)
    patch.setattr(stage, "here", lambda target: GPU)
    patch.setattr(cuda, "SHIPPED", (90,))
    patch.setattr(runtime, "open_in_child", on_the_cpu)


def every_kernel_kept(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """The stage of kernels on a GPU, where nothing but the choice of the kept kernels is made
    up."""
    fresh_cache(patch, folder)
    measured = region_times.models_in_turn
    patch.setattr(region_times, "models_in_turn", lambda *args: [max(measured(*args)) + 1.0, 1.0])
    patch.setattr(stage, "GAIN", 0.0)
    patch.setattr(timing.Timing, "verdict", timing.Verdict.FASTER)


def unchanged(model: Model, target: Target, config: Config) -> Result:
    """The model as it comes from the other stages, which changed nothing and measured nothing."""
    found = optimize_model(model, replace(config, measure=False, budget=0.0))
    return replace(found, target=target, model=found.original, steps=(), changed=False)


def saved_proto(model: Model, folder: Path) -> onnx.ModelProto:
    """A model as it is stored in a file, all of whose calls of kernels the library accepts."""
    save(model, folder / "model.onnx")
    proto = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(proto)
    assert all(map(accepted, called(folder / "model.onnx")))
    return proto


def same_outputs(made: Model, given: Model, rtol: float, atol: float) -> None:
    """Assert that two models compute the same in the runtime, at three images."""
    for seed in range(2):
        inputs = random_inputs(given, seed, {"batch": 3})
        for got, wanted in zip(*(run(serialize(m), dict(inputs)) for m in (made, given)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


def convolved(
    image: tuple[int, ...], kernel: tuple[int, ...], columns: int, follows: str = "", **attrs: tuple[int, ...]
) -> tuple[ShiftedConvolution, Graph]:
    """A convolution of an image (n,c,h,w) and weights in two parts, and its goal in operators of
    ONNX; `extra` makes a transposed one."""
    count = len(kernel)
    how: dict[str, Any] = {"strides": (1,) * count, "pads": (0,) * 2 * count, "dilations": (1,) * count, "extra": ()}
    how |= attrs
    x = variable("x", Tensor("float32", image))
    w = variable("w", Tensor("float32", (2, kernel[-1], columns, *kernel[:-1], image[1])))
    node, goal = followed(ShiftedConvolution, "shifted_conv", x, w, columns, follows, how)
    return ShiftedConvolution(node), goal
