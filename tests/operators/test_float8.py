"""8-bit floats: conversions bit by bit as in ONNX Runtime, laws that keep every bit, the reference
and the check of models that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx_texts import NUMBERS, Array, built
from stated_laws import stated

from taso_mirage.ir.terms import (
    ABSENT,
    Node,
    Tensor,
    constant,
    is_computed,
    is_stored,
    numpy_dtype,
    topological,
    variable,
)
from taso_mirage.meanings.reals import EXACT, REALS
from taso_mirage.measure.check import check_cases, compare
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term, traits
from taso_mirage.pipeline import optimize_model
from taso_mirage.prove.machine import widens
from taso_mirage.prove.rules.fuzz import Typing, typings
from taso_mirage.prove.rules.hostile import legal
from taso_mirage.rewriting.equation import Equation, match
from taso_mirage.rewriting.text import laws
from taso_mirage.search.config import Config
from taso_mirage.verdicts import Failure

FLOATS = {"float32": 1, "float16": 10}
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
HALVES = HALVES[np.isfinite(HALVES)]


def stored(array: Any, dtype: str) -> Array:
    return np.asarray(array).astype(numpy_dtype(dtype))


def every(dtype: str) -> Array:
    """All numbers of a dtype of 8 bits."""
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))


def ran(proto: onnx.ModelProto, **inputs: Array) -> tuple[list[Array], list[Array], list[Array]]:
    """The runtime's results, the definition's, and the reference's."""
    model = from_ir(from_proto(proto))
    theirs = Session(serialize(model)).run(inputs)
    env = {n: inputs[n.attr("name")] for n in model.graph.inputs}
    env |= {n: model.weights[n.attr("name")].numpy() for n in model.nodes() if n.op == "weight"}
    ours = interpret(model.graph.outputs, REALS, env)
    exact = interpret(model.graph.outputs, EXACT, {n: EXACT.load(a) for n, a in env.items()})
    assert not any(n.op == "opaque" for n in model.nodes())
    return theirs, [ours[o] for o in model.graph.outputs], [exact[o] for o in model.graph.outputs]


def bits(array: Array) -> Array:
    """The bits of an array, of one that is no number."""
    assert array.dtype.name in NUMBERS
    return np.where(np.isnan(array.astype(np.float32)), np.uint8(127), array.view(np.uint8))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("of", FLOATS)
def test_to_8_bits_every_bit_is_the_runtimes(of: str, dtype: str) -> None:
    """QuantizeLinear with one scale and several, with the zero that tells the dtype and with the
    attribute, and Cast."""
    rng = np.random.default_rng(0)
    x = np.resize(HALVES, (len(HALVES) // 8 + 1, 8)).astype(of)
    scales = np.exp(rng.normal(-3, 2, 8)).astype(of)
    low = dtype.replace("_", "")
    text = f"""({"float" if of == "float32" else of}[n,8] x) => ({low}[n,8] a, {low}[n,8] b, {low}[n,8] c)
    {{ a = QuantizeLinear (x, s, z) b = Cast <to = {NUMBERS[dtype]}>(x)
       c = QuantizeLinear <axis = 1>(x, t, w) }}"""
    zeros = {"z": np.zeros((), numpy_dtype(dtype)), "w": np.zeros(8, numpy_dtype(dtype))}
    theirs, ours, exact = ran(built(text, {"s": np.asarray(0.37, of), "t": scales, **zeros}), x=x)
    for a, b, c in zip(theirs, ours, exact, strict=True):
        assert np.array_equal(bits(a), bits(b))
        assert np.array_equal(bits(b), bits(c))
    assert len({a.tobytes() for a in theirs}) == 3


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("of", FLOATS)
def test_from_8_bits_every_bit_is_the_runtimes(of: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    low, kind = dtype.replace("_", ""), "float" if of == "float32" else of
    text = f"""({low}[4,64] x) => ({kind}[4,64] a, {kind}[4,64] b, {kind}[4,64] c)
    {{ a = DequantizeLinear(x, s) b = Cast <to = {FLOATS[of]}>(x) c = DequantizeLinear <axis = 1, block_size = 16>(x, t) }}"""
    scales = {"s": np.asarray(0.37, of), "t": np.exp(rng.normal(-3, 1, (4, 4))).astype(of)}
    theirs, ours, exact = ran(built(text, scales), x=every(dtype).reshape(4, 64))
    for a, b, c in zip(theirs, ours, exact, strict=True):
        assert np.array_equal(a, b, equal_nan=True)
        with np.errstate(over="ignore"):
            assert np.array_equal(c.astype(of), b, equal_nan=True)


def test_a_zero_must_be_0() -> None:
    text = "(float8e4m3fn[4] x) => (float[4] y) { y = DequantizeLinear(x, s, z) }"
    weights = {"s": np.float32(1), "z": stored(1, "float8_e4m3fn")}
    model = from_ir(from_proto(built(text, weights)))
    assert [n.op for n in model.nodes() if n.args] == ["opaque"]


@pytest.mark.parametrize("node", ["QuantizeLinear <saturate = 0>(x, s, z)", "Cast <to = 17, saturate = 0>(x)"])
def test_what_does_not_saturate_is_the_runtimes_own(node: str) -> None:
    weights = {"s": np.float32(1), "z": stored(0, "float8_e4m3fn")}
    model = from_ir(from_proto(built(f"(float[4] x) => (float8e4m3fn[4] y) {{ y = {node} }}", weights)))
    assert [n.op for n in model.nodes() if n.args] == ["opaque"]


@pytest.mark.parametrize("opset", [19, 21, 23])
def test_what_is_written_is_read_again(opset: int) -> None:
    text = """(float[2,4] x) => (float[2,4] y) { a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
        c = Cast <to = 19>(b) y = Cast <to = 1>(c) }"""
    weights = {"s": np.float32(0.25), "z": np.zeros((), ml_dtypes.float8_e4m3fn)}
    model = from_ir(from_proto(built(text, weights, opset)))
    again = from_ir(from_proto(onnx.load_model_from_string(serialize(model))))
    assert again.graph == model.graph
    kinds = [n.op_type for n in onnx.load_model_from_string(serialize(model)).graph.node]
    assert kinds == ["QuantizeLinear", "DequantizeLinear", "Cast", "Cast"]


# ---------------------------------------------------------------- laws

MOVED = ("quantize", "dequantize")
LAWS = [law for law in laws() if any(n.op in MOVED for n in (*law.lhs_terms, *law.rhs_terms) if n is not ABSENT)]


def of_8_bits(value: Any, dtype: str) -> Any:
    """A stated typing or attribute with floats of 8 bits in the place of integers."""
    if isinstance(value, Tensor):
        return Tensor(of_8_bits(value.dtype, dtype), value.shape)
    if isinstance(value, dict):
        return {k: of_8_bits(v, dtype) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return tuple(of_8_bits(v, dtype) for v in value)
    return dtype if value in ("uint8", "int8", "int16", "uint16") else value


def with_8_bits(law: Equation, dtype: str, wanted: int = 12, tries: int = 3000) -> list[Typing]:
    given, attributes = (of_8_bits(each, dtype) for each in stated(law))
    drawn = (t for t in typings(law, tries=tries, given=given, attributes=attributes) if legal(t))
    return list(islice((t for t in drawn if has(t, dtype)), wanted))


def has(typing: Typing, dtype: str) -> bool:
    nodes = topological((*typing.lhs, *typing.rhs))
    return any(isinstance(n.type, Tensor) and n.dtype == dtype for n in nodes)


def arrays(typing: Typing) -> Iterator[dict[Node, Array]]:
    """Any numbers of 8 bits, scales of any size, and floats beside them."""
    leaves = [n for n in topological((*typing.lhs, *typing.rhs)) if n.op in ("input", "weight")]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        found = {}
        for n in leaves:
            shape = tuple(int(d) for d in n.shape)
            if n.dtype in NUMBERS:
                found[n] = rng.choice(every(n.dtype), shape)
            elif "float" in n.dtype:
                draw = np.exp(rng.normal(-2, rng.choice((2.0, 9.0)), shape)) * rng.choice((1, 1, -1), shape)
                found[n] = np.clip(draw, -6e4, 6e4).astype(numpy_dtype(n.dtype))
            else:
                found[n] = rng.integers(0, 2, shape).astype(n.dtype)
        yield found


def keeps_bits(typing: Typing) -> bool:
    for env in arrays(typing):
        with np.errstate(all="ignore"):
            found = interpret([*typing.lhs, *typing.rhs], REALS, env)
        for a, b in zip(typing.lhs, typing.rhs, strict=True):
            left, right = (np.asarray(found[n]).astype(np.float64) for n in (a, b))
            if not np.array_equal(left, right, equal_nan=True):
                return False
    return True


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("dtype", "wanted"), [("float8_e4m3fn", 3), *(pytest.param(d, 6, marks=pytest.mark.slow) for d in NUMBERS)]
)
def test_laws_keep_every_bit(dtype: str, wanted: int) -> None:
    applied = []
    for law in LAWS:
        found = with_8_bits(law, dtype, wanted, tries=100 * wanted)
        assert all(map(keeps_bits, found)), law.name
        applied += [law.name] if found else []
    assert len(applied) >= 10, applied


TO, FROM = "b: {axis: 1, block_size: 0, saturate: 1, dtype: 'uint8'}", "a: {axis: 1, block_size: 0}"


@pytest.mark.parametrize("scale", [1e-44, 1e-40, 1e-20, 1.0, 1e29])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_there_and_back_with_one_scale(dtype: str, scale: float) -> None:
    """The law applies exactly where the values are equal: not with a scale so small that products
    lose digits, nor to infinities that saturate."""
    q, s = variable("q", Tensor(dtype, (256,))), constant(scale, "float32")
    back = term("quantize", term("dequantize", q, s, dtype="float32", axis=0), s, dtype=dtype, axis=0)
    with np.errstate(all="ignore"):
        found = interpret([back], REALS, {q: every(dtype)})[back]
    same = np.array_equal(bits(found), bits(every(dtype)))
    law = [
        each for each in LAWS if each.rhs.outputs == each.rhs.inputs[:1] and not isinstance(match(each, back), Failure)
    ]
    assert bool(law) == (dtype == "float8_e4m3fn" and scale >= 1e-30)
    assert same or not law
    assert scale > 1e-41 or not same


def test_floats_that_are_stored_alone() -> None:
    stored_alone = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float6_e2m3fn", "float4_e2m1fn")
    assert all(map(is_stored, stored_alone))
    assert not any(map(is_computed, (*stored_alone, "int8", "bool")))
    assert all(map(is_computed, ("float16", "bfloat16", "float32", "float64")))


def test_8_bits_widen_and_nothing_narrows_to_them() -> None:
    for dtype in NUMBERS:
        assert all(widens(dtype, wide) for wide in ("float16", "bfloat16", "float32", "float64"))
        assert not any(widens(other, dtype) for other in ("float16", "float32", *NUMBERS) if other != dtype)
    assert all(
        float(a) == float(a.astype(ml_dtypes.bfloat16)) for d in NUMBERS for a in every(d) if float(a) == float(a)
    )


# ---------------------------------------------------------------- models

PRODUCT = """(float16[8,64] x) => (float16[8,32] y)
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear <axis = 1>(w, t, o) y = MatMul(d, v) }"""
RNG = np.random.default_rng(3)
SCALES = np.exp(RNG.normal(-5, 0.3, 32)).astype(np.float16)


def weights(dtype: str = "float8_e4m3fn") -> dict[str, Array]:
    zero = np.zeros((), numpy_dtype(dtype))
    w = stored(RNG.normal(0, 60, (64, 32)), dtype)
    return {"w": w, "t": SCALES, "o": np.zeros(32, w.dtype), "s": np.asarray(0.011, np.float16), "z": zero}


FLIPPED = ((np.arange(2048) == 77) * 8).astype(np.uint8).reshape(64, 32)
WRONG: dict[str, Callable[[dict[str, Array]], dict[str, Array]]] = {
    "scales in another order": lambda w: {"t": w["t"][::-1].copy()},
    "another scale of the activations": lambda w: {"s": np.asarray(0.0112, np.float16)},
    "the other format of the weights": lambda w: {"w": w["w"].view(ml_dtypes.float8_e5m2), "o": np.zeros(32, ml_dtypes.float8_e5m2)},
    "the other format of the activations": lambda w: {"z": np.zeros((), ml_dtypes.float8_e5m2)},
    "the exponent of a weight": lambda w: {"w": (w["w"].view(np.uint8) ^ FLIPPED).view(w["w"].dtype)},
}  # fmt: skip


@pytest.mark.parametrize("dtype", NUMBERS)
def test_the_check_tells_wrong_models_of_8_bits(dtype: str) -> None:
    given = weights(dtype)
    original = from_ir(from_proto(built(PRODUCT, given)))
    cases = list(check_cases(original, Session(serialize(original)), {}))
    assert all(d.passed for d in compare(original, Session(serialize(original)), cases))
    for name, change in WRONG.items():
        changed = {**given, **change(given)}
        if dtype == "float8_e5m2" and "format" in name:
            continue
        other = from_ir(from_proto(built(PRODUCT, changed)))
        assert not all(d.passed for d in compare(original, Session(serialize(other)), cases)), name


def test_inputs_and_outputs_of_8_bits_are_optimized_and_checked() -> None:
    """Moves meet the conversions; a result in 8 bits has to be equal."""
    text = """(float8e4m3fn[4,6,8] k, float16[4,8,8] x) => (float8e5m2[4,8,6] q, float16[4,8,6] y)
    { d = DequantizeLinear(k, s, z) t = Transpose <perm = [0, 2, 1]>(d) u = Transpose <perm = [0, 2, 1]>(t)
      v = Transpose <perm = [0, 2, 1]>(u) y = MatMul(x, v) q = QuantizeLinear(y, s, o) }"""
    zeros = {"z": np.zeros((), ml_dtypes.float8_e4m3fn), "o": np.zeros((), ml_dtypes.float8_e5m2)}
    model = from_ir(from_proto(built(text, {"s": np.asarray(0.5, np.float16), **zeros})))
    result = optimize_model(model, Config(measure=False, budget=30))
    assert result.failure is None
    assert sum(n.op == "transpose" for n in result.model.nodes()) < 2
    rng = np.random.default_rng(0)
    given = {
        "k": stored(rng.normal(size=(4, 6, 8)), "float8_e4m3fn"),
        "x": rng.normal(size=(4, 8, 8)).astype(np.float16),
    }
    before, after = (Session(serialize(each)).run(given) for each in (model, result.model))
    assert before[0].dtype.name == "float8_e5m2"
    assert np.array_equal(bits(before[0]), bits(after[0]))
    assert np.array_equal(before[1], after[1])


def test_every_definition_takes_8_bits_that_it_states() -> None:
    for op in ("quantize", "dequantize"):
        assert traits(term(op, *_operands(op), dtype="float8_e4m3fn" if op == "quantize" else "float32")).quantized


def _operands(op: str) -> tuple[Node, Node]:
    dtype = "float32" if op == "quantize" else "float8_e4m3fn"
    return variable("x", Tensor(dtype, (3,))), variable("s", Tensor("float32", ()))
