"""The check against wrong rewrites of quantized graphs: zeros off by one, scales of a wrong axis,
truncation for rounding, wrong saturation and signedness, exchanged scales. It refuses each, and
none of the rewrites that are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from taso_mirage.ir.model import Model
from taso_mirage.measure.check import CheckCase, check_cases, compare
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_proto
from taso_mirage.onnx_io.read import from_ir

Array = NDArray[Any]
Change = Callable[[Array], Array]
U8, I8, F = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(7)


@dataclass(frozen=True)
class Graph:
    """A quantized graph in ONNX's text, with its initializers, and the change in it."""

    inputs: str
    outputs: str
    lines: str
    weights: dict[str, Array]
    wrong: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    right: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def proto(self, *changes: Any) -> onnx.ModelProto:
        """With changes in turn: (name, function) of an initializer, or (text, other text)."""
        lines, weights = self.lines, dict(self.weights)
        for old, new in changes:
            if callable(new):
                weights[old] = new(weights[old])
            else:
                assert old in lines
                lines = lines.replace(old, new)
        head = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
        made = onnx.parser.parse_model(f"{head} g ({self.inputs}) => ({self.outputs}) {{ {lines} }}")
        named = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items() if n in lines]
        made.graph.initializer.extend(named)
        return made


def plus(n: float) -> Change:
    return lambda a: (a.astype(np.float64) + n).astype(a.dtype)


def times(factor: float) -> Change:
    return lambda a: (a * factor).astype(a.dtype)


def as_type(dtype: Any) -> Change:
    return lambda a: a.view(dtype)


def moved(by: int, dtype: Any) -> Change:
    return lambda a: (a.astype(int) + by).astype(dtype)


def rolled(a: Array) -> Array:
    return np.roll(a, 1)


def mean(a: Array) -> Array:
    return np.full_like(a, a.mean())


def at(index: Any, by: int) -> Change:
    """One element off."""

    def change(a: Array) -> Array:
        found = a.copy()
        found[index] += by
        return found

    return change


def scales(n: int, typical: float) -> Array:
    return (typical * np.exp(RNG.normal(0, 0.4, n))).astype(F)


def before(quantizer: str, x: str, function: str) -> tuple[str, str]:
    """The quotient goes through a function before it is quantized."""
    new = f"d0 = Div ({x}, s) d1 = {function} (d0) d2 = Mul (d1, s) "
    return quantizer, new + quantizer.replace(f"({x},", "(d2,")


PAIR = Graph(
    "float[6,8] x",
    "float[6,8] y, uint8[6,8] q",
    "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s2, z2)",
    {n: np.asarray(a) for n, a in {"s": F(0.013), "z": U8(121), "s2": F(0.013), "z2": U8(121)}.items()},
    wrong={
        "zero of both": (("z", plus(1)), ("z2", plus(1))),
        "zero to integers, one up": (("z", plus(1)),),
        "zero to integers, one down": (("z", plus(-1)),),
        "zero to floats, one up": (("z2", plus(1)),),
        "zero to floats, one down": (("z2", plus(-1)),),
        "scale to integers": (("s", times(1.01)),),
        "scale to floats": (("s2", times(1.0001)),),
        "scale of both": (("s", times(1.01)), ("s2", times(1.01))),
        "no quantization": (("y = DequantizeLinear (q, s2, z2)", "y = Identity (x)"),),
        "truncation": (before("q = QuantizeLinear (x, s, z)", "x", "Floor"),),
        "rounding up": (before("q = QuantizeLinear (x, s, z)", "x", "Ceil"),),
        "7 bits": (
            (
                "q = QuantizeLinear (x, s, z)",
                "p = QuantizeLinear (x, s, z) m = Constant <value = uint8 {127}> ()  q = Min (p, m)",
            ),
        ),
        "saturated one below": (
            (
                "q = QuantizeLinear (x, s, z)",
                "p = QuantizeLinear (x, s, z) m = Constant <value = uint8 {254}> ()  q = Min (p, m)",
            ),
        ),
        "saturated one above 0": (
            (
                "q = QuantizeLinear (x, s, z)",
                "p = QuantizeLinear (x, s, z) m = Constant <value = uint8 {1}> ()  q = Max (p, m)",
            ),
        ),
    },
    right={
        "flat": (
            (
                "q = QuantizeLinear (x, s, z)",
                "h = Constant <value_ints = [48]> () k = Constant <value_ints = [6, 8]> () "
                "e = Reshape (x, h) p = QuantizeLinear (e, s, z) q = Reshape (p, k)",
            ),
        ),
        "transposed": (
            (
                "q = QuantizeLinear (x, s, z)",
                "e = Transpose (x) p = QuantizeLinear (e, s, z) q = Transpose (p)",
            ),
        ),
        "scales of rows that are equal": (
            ("s", lambda a: np.full(6, a, F)),
            ("z", lambda a: np.full(6, a, U8)),
            ("QuantizeLinear (x", "QuantizeLinear <axis = 0> (x"),
        ),
        "once more": (
            (
                "q = QuantizeLinear (x, s, z)",
                "p = QuantizeLinear (x, s, z) e = DequantizeLinear (p, s, z) q = QuantizeLinear (e, s, z)",
            ),
        ),
    },
)

PRODUCT = Graph(
    "float[5,8] x",
    "float[5,8] y",
    "q = QuantizeLinear (x, s, z) a = DequantizeLinear (q, s, z) "
    "b = DequantizeLinear <axis = 1> (w, t, u) m = MatMul (a, b) r = Relu (m) "
    "p = QuantizeLinear (r, v, o) y = DequantizeLinear (p, v, o)",
    {
        "s": np.asarray(0.021, F),
        "z": np.asarray(117, U8),
        "w": RNG.integers(-128, 128, (8, 8)).astype(I8),
        "t": scales(8, 0.01),
        "u": RNG.integers(-9, 9, 8).astype(I8),
        "v": np.asarray(0.017, F),
        "o": np.asarray(3, U8),
    },
    wrong={
        "zero of activations": (("z", plus(1)),),
        "zeros of weights": (("u", plus(1)),),
        "one zero of weights": (("u", at(3, 1)),),
        "zeros of weights left out": (("u", lambda a: a * 0),),
        "zeros of weights, exchanged": (("u", rolled),),
        "scales of weights, exchanged": (("t", rolled),),
        "scales of the other axis": (("axis = 1", "axis = 0"),),
        "scales of weights, their mean": (("t", mean),),
        "scales backwards": (("t", lambda a: a[::-1].copy()),),
        "scales of activations and results exchanged": (
            ("s", lambda a: np.asarray(0.017, F)),
            ("v", lambda a: np.asarray(0.021, F)),
        ),
        "zero of results": (("o", plus(1)),),
        "weights unsigned": (("w", as_type(U8)), ("u", as_type(U8))),
        "one weight": (("w", lambda a: np.where(np.arange(64).reshape(8, 8) == 9, a ^ 3, a)),),
        "weights transposed": (("w", lambda a: a.T.copy()),),
        "no relu": (("r = Relu (m)", "r = Identity (m)"), ("o", plus(9))),
        "results not quantized": (("y = DequantizeLinear (p, v, o)", "y = Identity (r)"),),
        "activations not quantized": (("a = DequantizeLinear (q, s, z)", "a = Identity (x)"),),
    },
    right={
        "weights as unsigned numbers": (("w", moved(128, U8)), ("u", moved(128, U8))),
        "relu behind the zero": (
            ("r = Relu (m)", "r = Identity (m)"),
            ("y = DequantizeLinear (p, v, o)", "n = Max (p, o) y = DequantizeLinear (n, v, o)"),
        ),
        "activations transposed twice": (
            (
                "a = DequantizeLinear (q, s, z)",
                "c = Transpose (q) e = DequantizeLinear (c, s, z) a = Transpose (e)",
            ),
        ),
    },
)

DYNAMIC = Graph(
    "float[5,8] x",
    "float[5,6] y",
    "q, s, z = DynamicQuantizeLinear (x) m = MatMulInteger (q, w, z, u) f = Cast <to = 1> (m) "
    "k = Mul (s, t) g = Mul (f, k) y = Add (g, b)",
    {
        "w": RNG.integers(-128, 128, (8, 6)).astype(I8),
        "t": scales(6, 0.01),
        "u": np.asarray(4, I8),
        "b": RNG.normal(size=6).astype(F),
    },
    wrong={
        "no zero of activations": (("(q, w, z, u)", '(q, w, "", u)'),),
        "zero of weights, one up": (("u", plus(1)),),
        "zero of weights, one down": (("u", plus(-1)),),
        "no zero of weights": (("(q, w, z, u)", "(q, w, z)"),),
        "weights unsigned": (("w", as_type(U8)), ("u", as_type(U8))),
        "scales exchanged": (("t", rolled),),
        "scales, their mean": (("t", mean),),
        "scale of activations twice": (("f, k", "f, k2"), ("g = Mul", "k2 = Mul (k, s) g = Mul")),
        "no scale of weights": (("g = Mul (f, k)", "g = Mul (f, s)"),),
        "one weight": (("w", at((2, 2), 1)),),
        "no quantization": (
            ("m = MatMulInteger (q, w, z, u)", "e = DequantizeLinear (w, one, u) n = MatMul (x, e)"),
            ("f = Cast <to = 1> (m)", "f = Div (n, s)"),
        ),
        "bias before scales": (("g = Mul (f, k) y = Add (g, b)", "g = Add (f, b) y = Mul (g, k)"),),
    },
    right={
        "scales in turn": (("k = Mul (s, t) g = Mul (f, k)", "k = Mul (f, s) g = Mul (k, t)"),),
        "weights as unsigned numbers": (("w", moved(128, U8)), ("u", moved(128, U8))),
    },
)
DYNAMIC.weights["one"] = np.asarray(1, F)

CONVOLUTION = Graph(
    "float[1,4,6,6] x",
    "float[1,4,6,6] y",
    "q = QuantizeLinear (x, s, z) "
    "p = QLinearConv <pads = [1, 1, 1, 1]> (q, s, z, w, t, u, v, o, b) y = DequantizeLinear (p, v, o)",
    {
        "s": np.asarray(0.021, F),
        "z": np.asarray(117, U8),
        "w": RNG.integers(-63, 64, (4, 4, 3, 3)).astype(I8),
        "t": scales(4, 0.01),
        "u": np.zeros(4, I8),
        "v": np.asarray(0.037, F),
        "o": np.asarray(128, U8),
        "b": RNG.integers(-900, 900, 4).astype(np.int32),
    },
    wrong={
        "zero of activations": (("z", plus(1)),),
        "padding with 0": (
            (
                "p = QLinearConv <pads = [1, 1, 1, 1]> (q,",
                "h = Constant <value_ints = [0, 0, 1, 1, 0, 0, 1, 1]> () e = Pad (q, h) p = QLinearConv (e,",
            ),
        ),
        "zero of results": (("o", plus(1)),),
        "zero of results in one place": (("y = DequantizeLinear (p, v, o)", "y = DequantizeLinear (p, v)"),),
        "scales exchanged": (("t", rolled),),
        "scales, their mean": (("t", mean),),
        "bias left out": (("o, b)", "o)"),),
        "bias of other channels": (("b", rolled),),
        "bias by one step of results": (("b", plus(150)),),
        "weights turned": (("w", lambda a: a[:, :, ::-1].copy()),),
        "channels exchanged": (("w", lambda a: a.transpose(1, 0, 2, 3).copy()),),
        "scale of activations": (("s", times(1.02)),),
        "scales of activations and results exchanged": (("(q, s, z, w, t, u, v,", "(q, v, z, w, t, u, s,"),),
        "scales off by one part of 50": (("t", times(1.02)),),
    },
    right={
        "padding with the zero": (
            (
                "p = QLinearConv <pads = [1, 1, 1, 1]> (q,",
                "h = Constant <value_ints = [0, 0, 1, 1, 0, 0, 1, 1]> () e = Pad (q, h, z) p = QLinearConv (e,",
            ),
        ),
    },
)

BLOCKS = Graph(
    "float[3,64] x",
    "float[3,8] y",
    "y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32> (x, w, s, z)",
    {
        "w": RNG.integers(0, 256, (8, 2, 16)).astype(U8),
        "s": scales(16, 0.02).reshape(8, 2),
        "z": RNG.integers(0, 256, (8, 1)).astype(U8),
    },
    wrong={
        "no zeros": ((", s, z)", ", s)"),),
        "one zero": (("z", at((1, 0), 1)),),
        "zeros of blocks exchanged": (("z", lambda a: (a >> 4) | (a << 4)),),
        "halves of bytes exchanged": (("w", lambda a: (a >> 4) | (a << 4)),),
        "scales of blocks exchanged": (("s", lambda a: a[:, ::-1].copy()),),
        "scales of columns exchanged": (("s", lambda a: np.roll(a, 1, axis=0)),),
        "scales transposed": (("s", lambda a: a.T.reshape(8, 2).copy()),),
        "one weight": (("w", at((0, 0, 0), 1)),),
    },
)

SUM = Graph(
    "float[6,8] x, float[6,8] k",
    "float[6,8] y",
    "a = QuantizeLinear (x, s, z) b = QuantizeLinear (k, t, u) "
    "p = com.microsoft.QLinearAdd (a, s, z, b, t, u, v, o) y = DequantizeLinear (p, v, o)",
    {
        **{"s": np.asarray(0.021, F), "z": np.asarray(117, U8), "t": np.asarray(0.013, F)},
        **{"u": np.asarray(130, U8), "v": np.asarray(0.029, F), "o": np.asarray(125, U8)},
    },
    wrong={
        "zero of one": (("z", plus(1)), ("a = QuantizeLinear (x, s, z)", "a = QuantizeLinear (x, s, u)")),
        "zero of results in one place": (("(p, v, o)", "(p, v, z)"),),
        "zeros exchanged": (("b, t, u,", "b, t, z,"), ("a, s, z,", "a, s, u,"), ("(p, v, o)", "(p, v, z)")),
        "scales exchanged": (("a, s, z, b, t, u", "a, t, z, b, s, u"),),
        "scale of results": (("(p, v, o)", "(p, s, o)"),),
        "another scale of results": (("v", times(1.03)),),
    },
    right={"exchanged": (("a, s, z, b, t, u", "b, t, u, a, s, z"),)},
)

GRAPHS = {
    "pair": PAIR,
    "product": PRODUCT,
    "dynamic": DYNAMIC,
    "convolution": CONVOLUTION,
    "blocks": BLOCKS,
    "sum": SUM,
}


def named(kind: str) -> list[Any]:
    return [
        pytest.param(name, changes, id=f"{name}: {each}")
        for name, graph in GRAPHS.items()
        for each, changes in getattr(graph, kind).items()
    ]


@cache
def prepared(name: str) -> tuple[Model, list[CheckCase]]:
    proto = GRAPHS[name].proto()
    model = from_ir(from_proto(proto))
    assert not model.opaque, model.opaque
    return model, list(check_cases(model, Session(proto.SerializeToString()), {}))


def accepted(name: str, *changes: Any) -> bool:
    model, cases = prepared(name)
    found = compare(model, Session(GRAPHS[name].proto(*changes).SerializeToString()), cases)
    assert all(np.isfinite(d.error) or d.output == "q" for d in found), "it does not run"
    return all(d.passed for d in found)


@pytest.mark.parametrize(("name", "changes"), named("wrong"))
def test_a_wrong_rewrite_is_refused(name: str, changes: tuple[Any, ...]) -> None:
    assert not accepted(name, *changes)


@pytest.mark.parametrize(("name", "changes"), named("right"))
def test_a_right_rewrite_is_not_refused(name: str, changes: tuple[Any, ...]) -> None:
    assert accepted(name, *changes)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_original_is_what_its_definitions_say(name: str) -> None:
    """The bounds are therefore those of rounding: no decision of the original counts as turned."""
    model, cases = prepared(name)
    found = compare(model, Session(GRAPHS[name].proto().SerializeToString()), cases)
    assert all(d.passed and d.against == "float64" for d in found), list(map(str, found))


@pytest.mark.parametrize("name", GRAPHS)
def test_roundings_are_told_of_operators_of_several_results(name: str) -> None:
    """The parts of such operators were taken from terms as if these were tuples.

    DynamicQuantizeLinear has three.
    """
    _, cases = prepared(name)
    for case in cases[:1]:
        assert case.resolution is not None
        largest = max(float(np.abs(r).max()) for r in case.reference if r.dtype.kind == "f")
        assert all(0 <= moved < 1e-3 * largest for moved in case.resolution())
