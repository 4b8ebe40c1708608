"""Random graphs of operators that fit each other, with small sizes: none is broken, so each must
come out equal."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import numpy_helper

from fuzz.seeds import ints, made, node, value

UNARY = "Relu Neg Abs Exp Sigmoid Tanh Erf Softplus Identity Sqrt LeakyRelu Elu Floor Sign Not Cast".split()
BINARY = "Add Sub Mul Div Max Min Pow Less Where".split()
DIMS = (1, 2, 3, 4)


class _Graph:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.numbers = np.random.default_rng(random.randrange(2**32))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        few = self.random.random() < 0.3
        array = self.random.choice((0, 1, -1, 0.5, 2)) * np.ones(shape) if few else self.numbers.normal(size=shape)
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add(self, op: str, inputs: str, shape: tuple[int, ...], **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attributes))
        self.shapes[name] = shape
        return name

    def numbers_of(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(ints(name, *values))
        return name

    def step(self) -> None:
        x, shape = self.random.choice(list(self.shapes.items()))
        match self.random.randrange(10):
            case 0 | 1:
                self.unary(x, shape)
            case 2 | 3:
                self.binary(x, shape)
            case 4 if len(shape) > 1:
                n = self.random.choice(DIMS)
                self.add("MatMul", f"{x} {self.weight(shape[-1], n)}", (*shape[:-1], n))
            case 5 if len(shape) > 1:
                perm = self.random.sample(range(len(shape)), len(shape))
                self.add("Transpose", x, tuple(shape[i] for i in perm), perm=perm)
            case 6 if shape:
                axis = self.random.randrange(len(shape))
                op = self.random.choice(("ReduceSum", "ReduceMean", "ReduceMax"))
                kept = tuple(1 if i == axis else d for i, d in enumerate(shape))
                self.add(op, f"{x} {self.numbers_of(axis)}" if op == "ReduceSum" else x, kept, **_axes(op, axis))
            case 7 if shape:
                axis = self.random.randrange(len(shape))
                doubled = tuple(2 * d if i == axis else d for i, d in enumerate(shape))
                self.add("Concat", f"{x} {x}", doubled, axis=axis)
            case 8:
                flat = (int(np.prod(shape)),)
                new = self.random.choice((flat, (1, *shape), (*shape, 1), (*shape[:-2], int(np.prod(shape[-2:])))))
                self.add("Reshape", f"{x} {self.numbers_of(*new)}", new)
            case _ if shape:
                self.add("Softmax", x, shape, axis=self.random.randrange(len(shape)))

    def unary(self, x: str, shape: tuple[int, ...]) -> None:
        op = self.random.choice(UNARY)
        if op == "Cast":
            x, attributes = self.add("Cast", x, shape, to=onnx.TensorProto.DOUBLE), {"to": onnx.TensorProto.FLOAT}
            del self.shapes[x]  # of another dtype
            self.add("Cast", x, shape, **attributes)
        elif op == "Sqrt":
            self.add("Sqrt", self.add("Abs", x, shape), shape)
        elif op == "Exp":
            self.add("Exp", self.add("Tanh", x, shape), shape)
        elif op != "Not":
            self.add(op, x, shape)

    def binary(self, x: str, shape: tuple[int, ...]) -> None:
        op = self.random.choice(BINARY)
        same = [name for name, other in self.shapes.items() if other == shape]
        cut = tuple(self.random.choice((1, d)) for d in shape)[self.random.choice((0, 0, 1)) :]
        y = self.random.choice([*same, self.weight(*cut)])
        if op in ("Div", "Pow"):
            y = self.weight()
            self.weights[-1].CopyFrom(numpy_helper.from_array(np.float32(self.random.choice((0.5, 2.0, 3.0))), y))
            x = self.add("Abs", x, shape)
        if op in ("Less", "Where"):
            c = self.add("Less", f"{x} {y}", shape)
            del self.shapes[c]
            self.add("Where", f"{c} {x} {y}", shape)
        else:
            self.add(op, f"{x} {y}", shape)


def _axes(op: str, axis: int) -> dict[str, object]:
    return {"keepdims": 1} if op == "ReduceSum" else {"keepdims": 1, "axes": [axis]}


def random_model(seed: int) -> bytes:
    """The model of a seed: three inputs, up to 25 operators, opset 13."""
    random = Random(seed)
    graph = _Graph(random)
    inputs = []
    for i in range(3):
        shape = tuple(random.choice(DIMS) for _ in range(random.choice((1, 2, 3, 3, 4))))
        graph.shapes[f"x{i}"] = shape
        inputs.append(value(f"x{i}", *shape))
    for _ in range(random.randint(2, 25)):
        graph.step()
    used = {name for n in graph.nodes for name in n.input}
    ends = [name for name in graph.shapes if name not in used and not name.startswith("x")][:4]
    ends = ends or [list(graph.shapes)[-1]]
    model = made(graph.nodes, inputs, [value(name, *graph.shapes[name]) for name in ends], graph.weights)
    model.opset_import[0].version = 13
    model.ir_version = 7
    return bytes(model.SerializeToString())
