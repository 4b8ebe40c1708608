"""Where an attribute lets the runtime round activations to 8 bits, the check compares models
without that first: an error that rounding would hide is refused, and a model that rounds less is
right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from taso_mirage.ir.model import Model
from taso_mirage.measure.check import FINE_CASE, Difference, check_cases, compare
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import CPU
from taso_mirage.onnx_io import from_proto, serialize
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.pipeline import optimize_model
from taso_mirage.search.config import Config

K, N, SIZE = 256, 64, 32
RNG = np.random.default_rng(3)
WEIGHTS = {
    "q": RNG.integers(0, 256, (N, K // SIZE, SIZE // 2)).astype(np.uint8),
    "s": RNG.normal(1, 0.1, (N, K // SIZE)).astype(np.float32),
    "g": RNG.normal(1, 0.1, K).astype(np.float32),
    "b": RNG.normal(0, 0.1, N).astype(np.float32),
}
PRODUCT = f"com.microsoft.MatMulNBits <K = {K}, N = {N}, bits = 4, block_size = {SIZE}, accuracy_level = 4> (h, q, s)"
LINES = f"h = Mul (x, g) p = {PRODUCT} y = Add (p, b)"


def proto(lines: str = LINES, **others: Any) -> onnx.ModelProto:
    head = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
    made = onnx.parser.parse_model(f"{head} g (float[3,{K}] x) => (float[3,{N}] y) {{ {lines} }}")
    weights: Mapping[str, Any] = {**WEIGHTS, **others}
    made.graph.initializer.extend([numpy_helper.from_array(a, n) for n, a in weights.items() if n in lines])
    return made


def read(given: onnx.ModelProto) -> Model:
    return from_ir(from_proto(given))


def differences(changed: onnx.ModelProto) -> list[Difference]:
    """The differences of a changed model from the original, as the command has them."""
    plain = read(proto())
    cases = list(check_cases(plain, Session(serialize(plain, source=True)), {}))
    fine = Fine.of(plain)
    assert fine is not None
    made = read(changed)
    return compare(plain, Session(serialize(made)), cases, fine.opened(made, CPU))


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_every_level_is_read_and_written_as_it_was(level: int) -> None:
    lines = LINES.replace("accuracy_level = 4", f"accuracy_level = {level}")
    made = read(proto(lines))
    assert not made.opaque
    (node,) = [n for n in onnx.load_from_string(serialize(made)).graph.node if n.op_type == "MatMulNBits"]
    assert next(a.i for a in node.attribute if a.name == "accuracy_level") == level
    assert (Fine.of(made) is None) == (level < 2)


def test_the_runtime_rounds_more_than_single_precision_does() -> None:
    """Without this property the other tests of this file would prove nothing."""
    plain = read(proto())
    (case, *_) = check_cases(plain, Session(serialize(plain, source=True)), {})
    assert case.fine is not None
    rounded, fine = (np.abs(each[0] - case.reference[0]).max() for each in (case.original, case.fine))
    assert rounded > 100 * fine
    assert rounded > 4096 * np.finfo(np.float32).eps * np.abs(case.reference[0]).max()


RIGHT = {
    "the same": (LINES, {}),
    "without the rounding": (LINES.replace("accuracy_level = 4", "accuracy_level = 0"), {}),
    "a bias inside": (f"h = Mul (x, g) y = {PRODUCT.replace('s)', 's, , , b)')}", {}),
    "a product in other order": (LINES.replace("(x, g)", "(g, x)"), {}),
}
HIDDEN = {
    "no bias, which is less than a rounding": (f"h = Mul (x, g) y = {PRODUCT}", {}),
    "a bias that is twice as large": (LINES, {"b": 2 * WEIGHTS["b"]}),
    "one scale a thousandth off": (LINES, {"s": WEIGHTS["s"] * np.where(np.arange(N) == 5, 1.001, 1)[:, None]}),
    "one weight that is one off": (
        LINES,
        {"q": WEIGHTS["q"] ^ (np.arange(WEIGHTS["q"].size) == 77).reshape(WEIGHTS["q"].shape)},
    ),
    "a factor that is a little off": (LINES, {"g": WEIGHTS["g"] * np.float32(1.0003)}),
}
LARGE = np.where(np.arange(K) % SIZE == 0, 1000, 1).astype(np.float32)
"""Two products where a block of activations has one that is large beside the others: 8 bits do not
hold them."""


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(name: str) -> None:
    lines, weights = RIGHT[name]
    assert all(d.passed for d in differences(proto(lines, **weights)))


@pytest.mark.parametrize("name", HIDDEN)
def test_what_rounding_would_hide_is_refused(name: str) -> None:
    lines, others = HIDDEN[name]
    weights = {n: np.asarray(a).astype(WEIGHTS[n].dtype) for n, a in others.items()}
    found = differences(proto(lines, **weights))
    assert not all(d.passed for d in found if FINE_CASE in d.case)
    assert any(d.passed for d in found if FINE_CASE not in d.case), "rounding hides it"


def test_more_rounding_of_activations_is_refused() -> None:
    """Activations as a difference and a sum of large ones: right over the reals, but worse in 8
    bits."""
    halves = "h = Mul (x, g) t = Mul (h, l) a = com.microsoft.MatMulNBits" + PRODUCT.split("MatMulNBits")[1].replace(
        "(h,", "(t,"
    )
    rest = "u = Sub (h, t) c = com.microsoft.MatMulNBits" + PRODUCT.split("MatMulNBits")[1].replace("(h,", "(u,")
    found = differences(proto(f"{halves} {rest} p = Add (a, c) y = Add (p, b)", l=LARGE))
    assert not all(d.passed for d in found if FINE_CASE not in d.case)


def test_optimize_checks_both() -> None:
    """A law is applied, and the result passes; its kernels are checked so, too."""
    lines = LINES.replace(
        "h = Mul (x, g)", "a = Identity (x) d = Mul (a, g) o = Constant <value = float {1}> () h = Mul (d, o)"
    )
    result = optimize_model(read(proto(lines)), Config(measure=False, budget=100.0))
    assert result.changed
    assert any(FINE_CASE in d.case for d in result.differences)
    assert any(FINE_CASE not in d.case for d in result.differences)
    assert all(d.passed for d in result.differences)
