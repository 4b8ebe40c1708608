"""The loops of `recurrent.py` in PyTorch: a Python loop over steps, eager or with a compiled step.

A step has the operators of the loop's body, in their order. A compiled module of all steps would
contain each step as often as there are some, so the step is compiled and called for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.fx.experimental.proxy_tensor import make_fx

Values = dict[str, Any]
Step = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], tuple[Any, ...]]


def ints(x: Any) -> list[int]:
    """The numbers of a constant."""
    return [int(n) for n in np.asarray(x).reshape(-1)]


def unsqueezed(_: Mapping[str, Any], x: Any, axes: Any) -> Any:
    for axis in sorted(ints(axes), reverse=min(ints(axes)) < 0):
        x = x.unsqueeze(axis)
    return x


def squeezed(_: Mapping[str, Any], x: Any, axes: Any) -> Any:
    return x.squeeze(*ints(axes))


def part(_: Mapping[str, Any], x: Any, start: Any, end: Any, axes: Any) -> Any:
    return x.narrow(ints(axes)[0], ints(start)[0], ints(end)[0] - ints(start)[0])


def largest(attrs: Mapping[str, Any], x: Any) -> Any:
    return x.argmax(attrs["axis"], keepdim=bool(attrs["keepdims"]))


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": lambda _, x, y: x + y,
    "ArgMax": largest,
    "Concat": lambda attrs, *xs: torch.cat(xs, attrs["axis"]),
    "Exp": lambda _, x: torch.exp(x),
    "Gather": lambda _, x, i: x[i],
    "Identity": lambda _, x: x,
    "MatMul": lambda _, x, y: x @ y,
    "Mul": lambda _, x, y: x * y,
    "Neg": lambda _, x: -x,
    "ReduceSum": lambda attrs, x, axes: x.sum(ints(axes), keepdim=bool(attrs["keepdims"])),
    "Relu": lambda _, x: torch.relu(x),
    "Sigmoid": lambda _, x: torch.sigmoid(x),
    "Slice": part,
    "Softplus": lambda _, x: torch.nn.functional.softplus(x),
    "Squeeze": squeezed,
    "Sub": lambda _, x, y: x - y,
    "Tanh": lambda _, x: torch.tanh(x),
    "Unsqueeze": unsqueezed,
}


class Loop:
    """The only loop of a model."""

    def __init__(self, model: onnx.ModelProto, device: str = "cpu") -> None:
        nodes = model.graph.node
        (self.node,) = [n for n in nodes if n.op_type in ("Scan", "Loop")]
        constants = {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in nodes if n.op_type == "Constant"}
        self.constants = {
            k: torch.tensor(v, device=device) if v.dtype == np.float32 else v for k, v in constants.items()
        }
        attrs = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}
        self.body: onnx.GraphProto = attrs["body"]
        self.scan = self.node.op_type == "Scan"
        self.first = 0 if self.scan else 2
        self.states = len(self.node.input) - (attrs["num_scan_inputs"] if self.scan else 2)
        formal = {i.name for i in self.body.input}
        inside = {o for n in self.body.node for o in n.output}
        used = dict.fromkeys(i for n in self.body.node for i in n.input)
        self.captured = [i for i in used if i not in formal | inside and i not in self.constants]
        arrays = {w.name: numpy_helper.to_array(w).copy() for w in model.graph.initializer}
        self.weights = {name: torch.from_numpy(x).to(device) for name, x in arrays.items()}
        self.count = 0 if self.scan else ints(self.constants[self.node.input[0]])[0]

    def step(self, states: Sequence[Any], elements: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, ...]:
        """The new states, and the outputs of a step."""
        names = [i.name for i in self.body.input][self.first :]
        env: Values = dict(self.constants) | dict(zip(self.captured, captured, strict=True))
        env |= dict(zip(names, (*states, *elements), strict=True))
        for node in self.body.node:
            if all(i in env for i in node.input):  # the condition of a Loop has no value
                self._run(node, env)
        return tuple(env[o.name] for o in self.body.output[0 if self.scan else 1 :])

    def _run(self, node: onnx.NodeProto, env: Values) -> None:
        xs = [env[i] for i in node.input]
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Split":
            parts = torch.chunk(xs[0], len(node.output), attrs["axis"])
            env.update(zip(node.output, parts, strict=True))
        else:
            env[node.output[0]] = OPERATORS[node.op_type](attrs, *xs)

    def operands(self, feed: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The first states, the sequences, and the tensors that each step reads."""
        known = {**self.weights, **feed}
        given = [known[i] for i in self.node.input[self.first :]]
        return given[: self.states], given[self.states :], [known[i] for i in self.captured]

    def run(self, feed: Mapping[str, Any], step: Step) -> list[Any]:
        """The results of the loop, whose steps are calls of a function."""
        states, sequences, captured = self.operands(feed)
        outputs = []
        for i in range(len(sequences[0]) if sequences else self.count):
            made = step(states, [x[i] for x in sequences], captured)
            states = list(made[: self.states])
            outputs.append(made[self.states :])
        return [*states, *(torch.stack(each) for each in zip(*outputs, strict=True))]


class Runs:
    """A loop in PyTorch with the interface of a session."""

    def __init__(
        self, model: onnx.ModelProto, feed: Mapping[str, np.ndarray], compiled: bool, device: str = "cpu"
    ) -> None:
        self.device = device
        self.loop = Loop(model, device)
        states, sequences, captured = self.loop.operands(self.moved(feed))
        with torch.inference_mode():
            step = make_fx(lambda *given: self.loop.step(*given))(states, [x[0] for x in sequences], captured)
        self.step: Step = torch.compile(step, dynamic=False) if compiled else step

    def moved(self, feed: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Inputs on the device."""
        return {name: torch.from_numpy(x).to(self.device) for name, x in feed.items()}

    @torch.inference_mode()
    def results(self, given: Mapping[str, torch.Tensor]) -> list[Any]:
        """The results for inputs on the device."""
        return self.loop.run(given, self.step)

    def run(self, _: None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [each.cpu().numpy() for each in self.results(self.moved(feed))]
