"""The inputs of the bodies of a model's nodes in a run: the operands of every If, Loop and Scan,
and from these the inputs of a body in its first iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.bodies import Body, kind_of, scan_axes
from taso_mirage.onnx_io.build import observing

MOST_CASES, MOST_INPUTS = 12, 3
"""The number of runs of the model that are observed, and of the inputs of one body that are
kept."""
MOST_TRIPS = 1000
"""The largest assumed number of iterations of a loop; a model's bound is often the largest
integer."""

Operands = Mapping[Node, Any]
"""The values of terms in one run."""


@dataclass(frozen=True, slots=True)
class BodyRun:
    """One run of a body: its inputs, how often a run of the model runs it with such inputs, and
    whether the model runs it at all (a branch may not be chosen)."""

    inputs: Arrays
    trips: int
    reached: bool


def operands(model: Model, terms: Sequence[Node], runs: Sequence[Arrays]) -> list[Operands]:
    """The values of the operands of some terms, in every run that gives them."""
    asked = list(dict.fromkeys(a for t in terms for a in t.args if a is not ABSENT and a.op not in ("weight",)))
    if not asked:
        return [{} for _ in runs[:1]]
    session = Session(serialize(observing(model, asked)))
    found: list[Operands] = []
    for inputs in runs[:MOST_CASES]:
        try:
            found.append(dict(zip(asked, session.run(inputs), strict=True)))
        except TasoMirageError:
            continue
    return found


def body_runs(model: Model, term: Node, body: Body, seen: Sequence[Operands]) -> list[BodyRun]:
    """The runs of a body, runs of the model first; a few of each kind, of different sizes if there
    are some."""
    found = [run for values in seen for run in _runs(term, body, {**_weights(model, term), **values})]
    found.sort(key=lambda run: not run.reached)
    kept: list[BodyRun] = []
    shapes: list[Any] = []
    for run in found:
        shape = [np.shape(run.inputs[name]) for name in body.model.input_names], _whole(run.inputs)
        if shape not in shapes and len(kept) < MOST_INPUTS:
            kept.append(run)
            shapes.append(shape)
    return kept


def _whole(inputs: Arrays) -> list[Any]:
    """Small integers and booleans: runs that differ in them are different."""
    arrays = [np.asarray(a) for a in inputs.values()]
    return [a.tolist() for a in arrays if a.dtype.kind in "iub" and a.size <= 4]


def _weights(model: Model, term: Node) -> dict[Node, Any]:
    return {a: model.weights[a.attr("name")].numpy() for a in term.args if a.op == "weight"}


def _runs(term: Node, body: Body, values: Operands) -> Iterator[BodyRun]:
    captured = {name: values[arg] for name, arg in body.inputs.items()}
    if not all(isinstance(each, np.ndarray) for each in captured.values()):
        return
    kind = kind_of(term)
    if kind == "If":
        condition = bool(np.reshape(values[term.args[0]], -1)[0])
        yield BodyRun(captured, 1, condition == (body.attribute == "then_branch"))
        return
    steps = _Loop(term, body, values) if kind == "Loop" else _Scan(term, body, values)
    session = Session(serialize(body.model, source=True)) if steps.trips > 1 else None
    for _ in range(min(max(steps.trips, 1), MOST_INPUTS)):
        inputs = captured | dict(zip(body.formal, steps.formal(), strict=True))
        yield BodyRun(inputs, steps.trips, steps.trips > 0)
        if session is None or not steps.after(session.run(inputs)):
            return


class _Loop:
    """The formal inputs of a Loop's body, iteration by iteration."""

    def __init__(self, term: Node, body: Body, values: Operands) -> None:
        bound, go_on, *carried = (None if a is ABSENT else values[a] for a in _formal_operands(term))
        self.goes = go_on is None or bool(np.reshape(go_on, -1)[0])
        most = MOST_TRIPS if bound is None else int(np.reshape(bound, -1)[0])
        self.trips = min(most, MOST_TRIPS) if self.goes else 0
        self.carried, self.iteration = carried, 0

    def formal(self) -> list[Any]:
        return [np.array(self.iteration, np.int64), np.array(True), *self.carried]

    def after(self, outputs: Sequence[Any]) -> bool:
        """Whether there is another iteration after one that gave these outputs."""
        self.iteration += 1
        self.carried = list(outputs[1 : 1 + len(self.carried)])
        return self.iteration < self.trips and bool(np.reshape(outputs[0], -1)[0])


class _Scan:
    """The formal inputs of a Scan's body, element by element."""

    def __init__(self, term: Node, body: Body, values: Operands) -> None:
        node = term.attr("call").node
        count = int(node.attributes["num_scan_inputs"].as_int())
        given = [values[a] for a in _formal_operands(term)]
        self.states, self.scanned = given[:-count], given[-count:]
        self.axes, self.at = scan_axes(term, count), 0
        back = node.attributes.get("scan_input_directions")
        self.back = [0] * count if back is None else [int(d) for d in back.as_ints()]
        self.trips = int(self.scanned[0].shape[self.axes[0]])

    def formal(self) -> list[Any]:
        elements = [
            np.take(array, -1 - self.at if back else self.at, axis)
            if self.trips
            else np.zeros([n for i, n in enumerate(array.shape) if i != axis % array.ndim], array.dtype)
            for array, axis, back in zip(self.scanned, self.axes, self.back, strict=True)
        ]
        return [*self.states, *map(np.asarray, elements)]

    def after(self, outputs: Sequence[Any]) -> bool:
        """Whether there is another element after one that gave these outputs."""
        self.at += 1
        self.states = list(outputs[: len(self.states)])
        return self.at < self.trips


def _formal_operands(term: Node) -> Sequence[Node]:
    return term.args[: len(term.attr("call").node.inputs)]
