"""Random models over values that are no tensors of numbers: strings, sequences, optional values and
maps, as inputs, between nodes, in bodies and as outputs. None is broken, so each must come out
equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
WORDS = ("a", "b", "", "A b", "ä ö", "12", "-3", "x" * 40)
FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


@dataclass(frozen=True)
class Kind:
    """The type of a value: a container (`tensor`, `sequence`, `optional` or `optional sequence`) of
    tensors of one dtype and shape; a sequence has `length` of them."""

    container: str
    dtype: int
    shape: tuple[int, ...]
    length: int = 0

    def proto(self) -> onnx.TypeProto:
        inner = helper.make_tensor_type_proto(self.dtype, self.shape)
        if "sequence" in self.container:
            inner = helper.make_sequence_type_proto(inner)
        return helper.make_optional_type_proto(inner) if "optional" in self.container else inner


class _Graph:
    """A graph as it grows: names with their kinds, nodes, and weights."""

    def __init__(self, random: Random, prefix: str = "v") -> None:
        self.random, self.prefix = random, prefix
        self.kinds: dict[str, Kind] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.used: set[str] = set()

    def add(self, op: str, inputs: list[str], kind: Kind, domain: str = "", **attributes: Any) -> str:
        name = f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attributes))
        self.kinds[name] = kind
        self.used.update(inputs)
        return name

    def weight(self, array: np.ndarray[Any, Any]) -> str:
        name = f"{self.prefix}w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def numbers(self, *values: int) -> str:
        return self.weight(np.array(values, np.int64))

    def number(self, value: int) -> str:
        return self.weight(np.array(value, np.int64))

    def any(self, container: str, *dtypes: int) -> str | None:
        """A value of a container, of one of the dtypes if some are given."""
        found = [n for n, k in self.kinds.items() if k.container == container and (not dtypes or k.dtype in dtypes)]
        return self.random.choice(found) if found else None


def _words(graph: _Graph) -> None:
    """An operator that only strings have."""
    x = graph.any("tensor", STRING)
    if x is None:
        return
    kind = graph.kinds[x]
    match graph.random.randrange(6):
        case 0:
            other = graph.weight(np.array([graph.random.choice(WORDS)], object))
            graph.add("StringConcat", [x, other], Kind("tensor", STRING, kind.shape or (1,)))
        case 1:
            graph.add("RegexFullMatch", [x], Kind("tensor", BOOL, kind.shape), pattern=r"[a-z ]*")
        case 2 if len(kind.shape) == 1:
            graph.add(
                "StringNormalizer", [x], kind, case_change_action=graph.random.choice(("LOWER", "UPPER")), locale="C"
            )
        case 3:
            keys, values = ["a", "b", "12"], [1, 2, 3]
            made = Kind("tensor", INT64, kind.shape)
            graph.add(
                "LabelEncoder", [x], made, "ai.onnx.ml", keys_strings=keys, values_int64s=values, default_int64=-1
            )
        case 4:
            other = graph.weight(np.array(graph.random.choice(WORDS), object))
            graph.add("Equal", [x, other], Kind("tensor", BOOL, kind.shape))
        case _:
            graph.add("Identity", [x], kind)


def _text_of_numbers(graph: _Graph) -> None:
    x = graph.any("tensor", INT64, BOOL)
    if x is not None and graph.kinds[x].dtype == INT64:
        text = graph.add("Cast", [x], Kind("tensor", STRING, graph.kinds[x].shape), to=STRING)
        graph.add("Cast", [text], graph.kinds[x], to=INT64)
    elif x is not None:
        graph.add("Not", [x], graph.kinds[x])


def _moved(graph: _Graph) -> None:
    """Add an operator that moves elements, of any dtype."""
    x = graph.any("tensor")
    if x is None or not graph.kinds[x].shape:
        return
    kind = graph.kinds[x]
    shape = kind.shape
    match graph.random.randrange(5):
        case 0:
            graph.add("Reshape", [x, graph.numbers(-1)], Kind("tensor", kind.dtype, (int(np.prod(shape)),)))
        case 1:
            perm = graph.random.sample(range(len(shape)), len(shape))
            graph.add("Transpose", [x], Kind("tensor", kind.dtype, tuple(shape[i] for i in perm)), perm=perm)
        case 2:
            graph.add("Concat", [x, x], Kind("tensor", kind.dtype, (2 * shape[0], *shape[1:])), axis=0)
        case 3:
            at = graph.random.randrange(-shape[0], shape[0])
            graph.add("Gather", [x, graph.numbers(at, 0)], Kind("tensor", kind.dtype, (2, *shape[1:])), axis=0)
        case _:
            graph.add("Unsqueeze", [x, graph.numbers(0)], Kind("tensor", kind.dtype, (1, *shape)))


def _arithmetic(graph: _Graph) -> None:
    x = graph.any("tensor", FLOAT)
    if x is None:
        return
    kind = graph.kinds[x]
    same = [n for n, k in graph.kinds.items() if k == kind]
    op = graph.random.choice("Relu Neg Tanh Add Mul Sub".split())
    graph.add(op, [x] if op in ("Relu", "Neg", "Tanh") else [x, graph.random.choice(same)], kind)


def _sequence(graph: _Graph) -> None:
    """A sequence from tensors, or from another one."""
    s = graph.any("sequence")
    if s is None or graph.random.random() < 0.3:
        x = graph.any("tensor", FLOAT, INT64, STRING)
        if x is None:
            return
        kind = graph.kinds[x]
        same = [n for n, k in graph.kinds.items() if k == kind]
        parts = [graph.random.choice(same) for _ in range(graph.random.randint(1, 3))]
        graph.add("SequenceConstruct", parts, Kind("sequence", kind.dtype, kind.shape, len(parts)))
        return
    _of_sequence(graph, s)


def _of_sequence(graph: _Graph, s: str) -> None:
    kind = graph.kinds[s]
    inner = Kind("tensor", kind.dtype, kind.shape)
    match graph.random.randrange(7):
        case 0 if kind.length:
            graph.add("SequenceAt", [s, graph.number(graph.random.randrange(-kind.length, kind.length))], inner)
        case 1:
            x = graph.random.choice([n for n, k in graph.kinds.items() if k == inner] or [""])
            at = [graph.number(graph.random.randint(0, kind.length))] * (graph.random.random() < 0.5)
            if x:
                graph.add("SequenceInsert", [s, x, *at], Kind("sequence", kind.dtype, kind.shape, kind.length + 1))
        case 2 if kind.length > 1:
            graph.add("SequenceErase", [s], Kind("sequence", kind.dtype, kind.shape, kind.length - 1))
        case 3:
            graph.add("SequenceLength", [s], Kind("tensor", INT64, ()))
        case 4 if kind.length and kind.shape:
            shape = (kind.length * kind.shape[0], *kind.shape[1:])
            graph.add("ConcatFromSequence", [s], Kind("tensor", kind.dtype, shape), axis=0)
        case 5 if kind.length:
            shape = (kind.length, *kind.shape)
            graph.add("ConcatFromSequence", [s], Kind("tensor", kind.dtype, shape), axis=0, new_axis=1)
        case _:
            graph.add("Identity", [s], kind)


def _split(graph: _Graph) -> None:
    x = graph.any("tensor", FLOAT)
    if x is not None and graph.kinds[x].shape:
        kind = graph.kinds[x]
        graph.add("SplitToSequence", [x], Kind("sequence", kind.dtype, (1, *kind.shape[1:]), kind.shape[0]), axis=0)


def _optional(graph: _Graph) -> None:
    o = graph.any("optional") or graph.any("optional sequence")
    if o is None or graph.random.random() < 0.3:
        x = graph.any(graph.random.choice(("tensor", "sequence")), FLOAT, INT64, STRING)
        if x is not None:
            kind = graph.kinds[x]
            container = "optional" if kind.container == "tensor" else "optional sequence"
            graph.add("Optional", [x], Kind(container, kind.dtype, kind.shape, kind.length))
        return
    kind = graph.kinds[o]
    if graph.random.random() < 0.5:
        graph.add("OptionalHasElement", [o], Kind("tensor", BOOL, ()))
    else:
        container = "tensor" if kind.container == "optional" else "sequence"
        graph.add("OptionalGetElement", [o], Kind(container, kind.dtype, kind.shape, kind.length))


def _branches(graph: _Graph) -> None:
    """An `If` of which both branches give a value of the same kind, one of them another one."""
    name = graph.random.choice(list(graph.kinds))
    kind = graph.kinds[name]
    if "optional" in kind.container:
        return
    condition = graph.any("tensor", BOOL)
    if condition is None or graph.kinds[condition].shape not in ((), (1,)):
        condition = graph.weight(np.array(graph.random.random() < 0.5))
    same = [n for n, k in graph.kinds.items() if k == kind]
    branches = []
    for place in ("yes", "no"):
        out = f"{graph.prefix}{len(graph.nodes)}{place}"
        node = helper.make_node("Identity", [graph.random.choice(same)], [out])
        graph.used.update(node.input)
        branches.append(helper.make_graph([node], place, [], [helper.make_value_info(out, kind.proto())]))
    graph.add("If", [condition], kind, then_branch=branches[0], else_branch=branches[1])


def _loop(graph: _Graph) -> None:
    """A `Loop` that puts a tensor into a sequence at each turn, or joins strings."""
    x = graph.any("tensor", FLOAT, INT64, STRING)
    s = graph.any("sequence")
    if (
        x is None
        or s is None
        or graph.kinds[s].dtype != graph.kinds[x].dtype
        or graph.kinds[s].shape != graph.kinds[x].shape
    ):
        return
    kind, turns = graph.kinds[s], graph.random.randint(0, 3)
    prefix = f"{graph.prefix}{len(graph.nodes)}"
    state = helper.make_value_info(f"{prefix}s", kind.proto())
    counted = helper.make_tensor_value_info(f"{prefix}i", INT64, ())
    go, on = (helper.make_tensor_value_info(f"{prefix}{n}", BOOL, ()) for n in ("go", "on"))
    nodes = [
        helper.make_node("Identity", [go.name], [on.name]),
        helper.make_node("SequenceInsert", [state.name, x], [f"{prefix}t"]),
    ]
    body = helper.make_graph(
        nodes, "body", [counted, go, state], [on, helper.make_value_info(f"{prefix}t", kind.proto())]
    )
    graph.used.add(x)
    graph.add(
        "Loop", [graph.number(turns), "", s], Kind("sequence", kind.dtype, kind.shape, kind.length + turns), body=body
    )


STEPS: tuple[Callable[[_Graph], None], ...] = (
    *(_words, _words, _text_of_numbers, _moved, _moved, _arithmetic, _arithmetic, _sequence, _sequence, _sequence),
    *(_split, _optional, _optional, _branches, _loop),
)


TENSORS = [Kind("tensor", FLOAT, (2, 3)), Kind("tensor", FLOAT, (2, 3)), Kind("tensor", FLOAT, (4,))]
TENSORS += [Kind("tensor", STRING, (3,)), Kind("tensor", INT64, (3,)), Kind("tensor", BOOL, ())]
OTHERS = [Kind("sequence", FLOAT, (2, 3), 2), Kind("sequence", STRING, (3,), 1)]
OTHERS += [Kind("optional", FLOAT, (2, 3)), Kind("optional sequence", FLOAT, (2, 3), 2)]
"""Kinds of inputs; a model with one of the others is kept as it is."""


def random_values(seed: int) -> tuple[bytes, Mapping[str, Any]]:
    """The model of a seed, and inputs for it."""
    random = Random(seed)
    graph = _Graph(random)
    chosen = random.sample(TENSORS, random.randint(2, 4)) + random.sample(OTHERS, int(random.random() < 0.15))
    inputs = {f"x{i}": kind for i, kind in enumerate(chosen)}
    graph.kinds.update(inputs)
    for _ in range(random.randint(3, 18)):
        random.choice(STEPS)(graph)
    ends = [n for n in graph.kinds if n not in graph.used and n not in inputs] or list(graph.kinds)[-1:]
    if not graph.nodes:
        ends = [graph.add("Identity", [ends[0]], graph.kinds[ends[0]])]
    infos = [helper.make_value_info(n, k.proto()) for n, k in inputs.items()]
    outputs = [helper.make_value_info(n, graph.kinds[n].proto()) for n in ends[:5]]
    made = helper.make_graph(graph.nodes, "values", infos, outputs, graph.weights)
    model = helper.make_model(made, opset_imports=OPSETS, ir_version=9)
    rng = np.random.default_rng(seed)
    return model.SerializeToString(), {n: _value(k, rng, random) for n, k in inputs.items()}


def _value(kind: Kind, rng: np.random.Generator, random: Random) -> Any:
    if kind.container == "tensor" or kind.container == "optional":
        return _array(kind, rng, random)
    return [_array(kind, rng, random) for _ in range(kind.length)]


def _array(kind: Kind, rng: np.random.Generator, random: Random) -> np.ndarray[Any, Any]:
    if kind.dtype == STRING:
        return np.array([random.choice(WORDS) for _ in range(int(np.prod(kind.shape)))], object).reshape(kind.shape)
    if kind.dtype == BOOL:
        return np.array(rng.random(kind.shape) < 0.5)
    if kind.dtype == INT64:
        return rng.integers(-5, 5, kind.shape)
    return rng.normal(size=kind.shape).astype(np.float32)
