"""A graph under construction: nodes are added by name, and their types are inferred."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.checker import ValidationError
from onnx.defs import OpSchema, SchemaError, get_schema
from onnx.shape_inference import InferenceError, infer_node_outputs

from fuzz.generated.kernels import runs
from fuzz.generated.values import (
    BOOL,
    FLOAT,
    FLOATS,
    HALF,
    INT64,
    INTEGERS,
    NUMBERS,
    STRING,
    TENSOR,
    Shape,
    Value,
    array,
)

T = TypeVar("T")
Operand = Value | np.ndarray | int | float | Sequence[int] | str | None
WORDS = ("", "a", "b c", "Az", " the ", "12", "ü", "λ")
LARGEST = 4096
"""Elements of a value, where a model is not a large one."""
OF_SHAPES = frozenset({"Shape", "Size", "EyeLike"})
"""Operators whose result is a constant for an operand of known sizes."""
MICROSOFT, MACHINE_LEARNING = "com.microsoft", "ai.onnx.ml"


class Impossible(Exception):
    """A step that the opset, the runtime or the values that exist do not allow."""


class RandomGraph:
    """Nodes, weights and inputs that fit each other; a graph inside of another one sees its values.
    `focus` is the probability that an operator reads the latest value that fits, `most` the number
    of elements of a value, `texts` whether inputs may be texts."""

    def __init__(self, random: Random, opset: int, dtype: int = FLOAT, outer: RandomGraph | None = None) -> None:
        self.random, self.opset, self.dtype, self.outer = random, opset, dtype, outer
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[Value] = []
        self.data: dict[str, onnx.TensorProto] = {} if outer is None else outer.data
        self.values: list[Value] = []
        self.functions: list[onnx.FunctionProto] = [] if outer is None else outer.functions
        self.counter: list[int] = [0] if outer is None else outer.counter
        self.steps: Sequence[Callable[[RandomGraph], object]] = () if outer is None else outer.steps
        self.focus: float = 0.0 if outer is None else outer.focus
        self.most: int = LARGEST if outer is None else outer.most
        self.texts: bool = False if outer is None else outer.texts
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.numbers = np.random.default_rng(random.randrange(2**32))

    def inside(self) -> RandomGraph:
        """A body of a node of this graph."""
        return RandomGraph(self.random, self.opset, self.dtype, self)

    def name(self, prefix: str = "t") -> str:
        self.counter[0] += 1
        return f"{prefix}{self.counter[0]}"

    def step(self) -> None:
        """One of the steps, or none where it does not fit."""
        with suppress(Impossible):
            self.choice(self.steps)(self)

    # ---------------------------------------------------------------- drawing

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def choice(self, of: Sequence[T]) -> T:
        return self.random.choice(of)

    def axis(self, x: Value, where: Callable[[Any], bool] = lambda d: True) -> int:
        """An axis of a value, from either end."""
        found = [i for i, d in enumerate(x.shape) if where(d)]
        if not found:
            raise Impossible
        chosen = self.choice(found)
        return chosen - x.rank if self.chance(0.4) else chosen

    def visible(self) -> Iterator[Value]:
        """Values that a node may read, the latest last; no infinite constants."""
        if self.outer is not None:
            yield from self.outer.visible()
        yield from (v for v in self.values if v.bound < math.inf)

    def some(self, *dtypes: int, where: Callable[[Value], bool] = lambda v: True, exact: bool = False) -> Value:
        """A tensor that exists, the later ones more often, or a new one if none fits."""
        found = [
            v
            for v in self.visible()
            if v.container == TENSOR and v.dtype in (dtypes or NUMBERS) and where(v) and (v.exact or not exact)
        ]
        if found and self.chance(self.focus):
            return found[-1]
        if found and self.chance(0.5):
            return found[-1 - int(len(found) * self.random.random() ** 2)]
        if found:
            return self.choice(found)
        for _ in range(20):
            dtype = self.dtype if self.dtype in (dtypes or NUMBERS) else self.choice(dtypes)
            shape = tuple(self.choice((1, 2, 3, 4, 4, 6)) for _ in range(self.choice((0, 1, 2, 3, 3, 4))))
            if where(Value("", dtype, shape)):
                return self.given(dtype, shape)
        raise Impossible

    def float(self, where: Callable[[Value], bool] = lambda v: True, exact: bool = False) -> Value:
        """A tensor of floats of the model's dtype; now and then of another one."""
        others = FLOATS if self.chance(0.1) else (self.dtype,)
        return self.some(*others, where=where, exact=exact)

    def ranked(self, *ranks: int, dtypes: Sequence[int] = (), static: int = 0) -> Value:
        """A tensor of floats of one of these ranks, of which the last `static` dims are numbers;
        a new one if none exists."""

        def fits(v: Value) -> bool:
            last = v.shape[v.rank - static :] if static else ()
            return v.rank in ranks and all(isinstance(d, int) and d > 0 for d in last)

        kinds = dtypes or (self.dtype,)
        if any(fits(v) and v.dtype in kinds and v.container == TENSOR for v in self.visible()):
            return self.some(*kinds, where=fits)
        shape = tuple(self.choice((2, 3, 4, 4, 6)) for _ in range(self.choice(ranks)))
        return self.given(self.choice(kinds), shape)

    def given(self, dtype: int, shape: Shape) -> Value:
        """A new input, or a weight inside of bodies and where there are many inputs. Strings are
        often the texts of integers."""
        if self.texts and dtype == STRING and not self.depth and len(self.inputs) < 5 and self.chance(0.5):
            return self.input(dtype, shape)
        if dtype == STRING and self.chance(0.7):
            return self.add("Cast", self.given(INT64, shape), to=STRING)
        if not self.depth and len(self.inputs) < 5 and dtype != STRING and self.chance(0.7):
            return self.input(dtype, shape)
        return self.weight(dtype, tuple(d if isinstance(d, int) else 1 for d in shape))

    def input(self, dtype: int, shape: Shape) -> Value:
        made = Value(self.name("x"), dtype, shape, 4.0 if dtype in FLOATS else 100.0)
        self.inputs.append(made)
        self.values.append(made)
        return made

    # ---------------------------------------------------------------- constants

    def weight(self, dtype: int, shape: Sequence[int], scale: float = 1.0, positive: bool = False) -> Value:
        """Random numbers, or simple ones that rules look for; now and then those of a weight that
        exists."""
        if not positive and self.chance(0.1):
            found = [v for v in self.visible() if v.name in self.data and (v.dtype, v.shape) == (dtype, tuple(shape))]
            if found and dtype in FLOATS:
                return self.choice(found)
        if dtype == STRING:
            words = [self.choice(WORDS) for _ in range(int(np.prod(shape)))]
            return self.constant(np.array(words, object).reshape(shape))
        if dtype == BOOL:
            return self.constant(self.numbers.random(shape) < 0.5)
        if dtype in INTEGERS:
            return self.constant(array(dtype, self.numbers.integers(0, 5, shape)))
        kind = self.random.random()
        numbers = self.numbers.normal(size=shape) * scale
        if kind < 0.2:
            numbers = np.full(shape, self.choice((0.0, 1.0, -1.0, 0.5, 2.0)))
        elif kind < 0.25 and len(shape) == 2:
            numbers = np.eye(*shape)
        return self.constant(array(dtype, np.abs(numbers) + 0.1 if positive else numbers))

    def constant(self, numbers: np.ndarray) -> Value:
        """An initializer, or the result of a node: Constant, now and then through another one."""
        tensor = numpy_helper.from_array(numbers, self.name("w"))
        bound = float(np.max(np.abs(numbers.astype(np.float64)), initial=0)) if numbers.dtype != object else 1.0
        made = Value(tensor.name, tensor.data_type, numbers.shape, bound, fixed=True)
        if self.chance(0.8):
            self.weights.append(tensor)
        else:
            self.nodes.append(helper.make_node("Constant", [], [made.name], value=tensor))
        self.values.append(made)
        self.data[made.name] = tensor
        if self.chance(0.05) and numbers.dtype != object:
            same = self.add("Identity", made, exact=True)
            self.data[same.name] = tensor
            return same
        return made

    def scalar(self, number: float, dtype: int = 0, exact: float = 0.85) -> Value:
        """A number of rank 0, or with axes of size 1; now and then a slightly different one."""
        if not self.chance(exact):
            number = self.choice((number * 1.01, number * (1 + 1e-4), -number, number + 1e-3))
        shape = self.choice(((), (), (), (1,), (1, 1)))
        return self.constant(array(dtype or self.dtype, np.full(shape, number)))

    def ints(self, *numbers: int) -> Value:
        return self.constant(np.array(numbers, np.int64))

    # ---------------------------------------------------------------- nodes

    def schema(self, op: str, domain: str = "") -> OpSchema:
        try:
            found = get_schema(op, self.opset if domain == "" else 3, domain)
        except SchemaError:
            raise Impossible from None
        if found.deprecated:
            raise Impossible
        return found

    def add(
        self,
        op: str,
        *operands: Operand,
        outputs: int = 1,
        shape: Shape | None = None,
        bound: float | None = None,
        exact: bool = False,
        at: int = 0,
        **attributes: Any,
    ) -> Value:
        """The result `at` of a new node of ONNX's own operators. An attribute that this opset has
        as an operand becomes one; a `shape` is stated where inference does not find it."""
        return self.all(op, *operands, outputs=outputs, shape=shape, bound=bound, exact=exact, **attributes)[at]

    def all(
        self,
        op: str,
        *operands: Operand,
        outputs: int = 1,
        shape: Shape | None = None,
        bound: float | None = None,
        exact: bool = False,
        domain: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """All results of a new node."""
        schema = self.schema(op, domain)
        given = [None if each is None else self._value(each) for each in operands]
        attributes = {name: each for name, each in attributes.items() if each is not None}
        for place, parameter in enumerate(schema.inputs):
            if parameter.name in attributes and parameter.name not in schema.attributes:
                given += [None] * (place + 1 - len(given))
                given[place] = self._value(attributes.pop(parameter.name))
        if set(attributes) - set(schema.attributes):
            raise Impossible
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(op, ["" if v is None else v.name for v in given], names, domain=domain, **attributes)
        self._check(schema, given)
        made = self._typed(schema, node, given, shape, bound, exact)
        self.nodes.append(node)
        self.values += made
        return made

    def state(
        self, op: str, domain: str, operands: Sequence[Operand], *results: Value, **attributes: Any
    ) -> list[Value]:
        """Results, of stated types, of a node that ONNX has no schema for."""
        given = [None if each is None else self._value(each) for each in operands]
        named = [
            Value(self.name(), v.dtype, v.shape, v.bound, v.exact, v.container, v.length, _fixed(given))
            for v in results
        ]
        names = ["" if v is None else v.name for v in given]
        made = helper.make_node(op, names, [v.name for v in named], domain=domain, **attributes)
        self.nodes.append(made)
        self.values += named
        return named

    def _value(self, given: Operand) -> Value:
        if isinstance(given, Value):
            return given
        if isinstance(given, np.ndarray | np.generic):
            return self.constant(np.asarray(given))
        if isinstance(given, float):
            return self.constant(array(self.dtype, given))
        return self.constant(np.array(given, object if isinstance(given, str) else np.int64))

    def _check(self, schema: OpSchema, given: Sequence[Value | None]) -> None:
        dtypes: dict[str, int] = {}
        for place, each in enumerate(given):
            parameter = schema.inputs[min(place, len(schema.inputs) - 1)]
            if each is not None and each.container == TENSOR:
                same = dtypes.setdefault(parameter.type_str, each.dtype)
                if same != each.dtype and parameter.is_homogeneous:
                    raise Impossible
        if not runs(schema, dtypes, self.opset):
            raise Impossible

    def _typed(
        self,
        schema: OpSchema,
        node: onnx.NodeProto,
        given: Sequence[Value | None],
        shape: Shape | None,
        bound: float | None,
        exact: bool,
    ) -> list[Value]:
        present = [v for v in given if v is not None]
        data = {v.name: self.data[v.name] for v in present if v.name in self.data}
        opsets = [helper.make_opsetid("", self.opset)]
        try:
            types = infer_node_outputs(
                schema, node, {v.name: v.proto() for v in present}, data, opset_imports=opsets, ir_version=10
            )
        except (InferenceError, ValidationError, ValueError, RuntimeError):
            raise Impossible from None
        largest = max((v.bound for v in present if v.dtype != BOOL), default=1.0) if bound is None else bound
        fit = exact and all(v.exact for v in present)
        fixed = _fixed(present) or (schema.name in OF_SHAPES and present[0].static)
        return [self._result(types.get(name), name, shape, largest, fit, fixed) for name in node.output]

    def _result(
        self, type: onnx.TypeProto | None, name: str, shape: Shape | None, bound: float, exact: bool, fixed: bool
    ) -> Value:
        if type is None:
            raise Impossible
        kind = str(type.WhichOneof("value")).removesuffix("_type")
        inner = type if kind == TENSOR else getattr(type, f"{kind}_type").elem_type
        if not inner.HasField("tensor_type") or not inner.tensor_type.elem_type:
            raise Impossible
        if shape is None and not inner.tensor_type.HasField("shape"):
            raise Impossible
        dims = inner.tensor_type.shape.dim
        found = tuple(d.dim_param or (d.dim_value if d.HasField("dim_value") else self.name("?")) for d in dims)
        dtype = inner.tensor_type.elem_type
        exact = exact or dtype not in FLOATS
        made = Value(name, dtype, found if shape is None else shape, bound, exact, kind, 0, fixed)
        if made.elements > self.most or (dtype == HALF and bound > 1e3) or bound > 1e6:
            raise Impossible
        return made

    # ---------------------------------------------------------------- numbers in a range

    def bounded(self, x: Value, most: float = 8.0) -> Value:
        """Numbers of a magnitude of at most `most`."""
        if x.bound <= most:
            return x
        return (
            self.add("Tanh", x, bound=1.0)
            if self.chance(0.6)
            else self.add("Mul", x, self.like(x, most / x.bound), bound=most)
        )

    def like(self, x: Value, number: float) -> Value:
        """A scalar of the dtype of a value."""
        return self.constant(array(x.dtype, number))

    def positive(self, x: Value) -> Value:
        """Numbers between 0.1 and 10."""
        x = self.bounded(x)
        match self.random.randrange(3):
            case 0:
                return self.add("Add", self.add("Abs", x), self.like(x, 0.5), bound=x.bound + 0.5)
            case 1:
                return self.add("Add", self.add("Sigmoid", x, bound=1.0), self.like(x, 0.25), bound=1.25)
            case _:
                return self.add("Exp", self.add("Tanh", x, bound=1.0), bound=3.0)

    def unit(self, x: Value) -> Value:
        """Numbers between -0.9 and 0.9."""
        y = self.add("Tanh", x, bound=1.0) if self.chance(0.5) else self.add("Sin", self.bounded(x), bound=1.0)
        return self.add("Mul", y, self.like(x, 0.9), bound=0.9)

    def body(self, inputs: Sequence[Value], outputs: Sequence[Value], name: str = "body") -> onnx.GraphProto:
        """This graph as a body with these inputs."""
        return helper.make_graph(
            self.nodes, name, [v.info() for v in inputs], [v.info() for v in outputs], self.weights
        )


def dim(x: Value, axis: int) -> int:
    """A dim that is a number."""
    found = x.shape[axis]
    if isinstance(found, str):
        raise Impossible
    return found


def _fixed(given: Sequence[Value | None]) -> bool:
    return all(v.fixed for v in given if v is not None)
