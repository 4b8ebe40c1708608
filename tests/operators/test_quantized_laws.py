"""Laws of quantized operators keep every bit: in our arithmetic of single precision, and in the
runtime's. Equalities over the reals alone, and wrong ones, are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from stated_laws import stated

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_float, numpy_dtype, topological
from taso_mirage.meanings.field import Field, Residues, agree
from taso_mirage.meanings.reals import REALS
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get, traits
from taso_mirage.pipeline import optimize_model
from taso_mirage.prove.rules.fuzz import Typing, typings
from taso_mirage.prove.rules.hostile import legal
from taso_mirage.prove.rules.ladder import proved_at
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.library import parse_attributes, parse_given
from taso_mirage.rewriting.text import laws, parse_equation
from taso_mirage.search.config import Config
from taso_mirage.verdicts import Failure

Arrays = dict[Node, NDArray[Any]]
LAWS = [law for law in laws() if any(traits(n).quantized for n in (*law.lhs_terms, *law.rhs_terms) if n is not ABSENT)]
TYPINGS = 6
INPUTS = 8
OPSETS = {"": 21, "com.microsoft": 1}


def leaves(typing: Typing) -> list[Node]:
    return [n for n in topological((*typing.lhs, *typing.rhs)) if n.op in ("input", "weight")]


def scales(typing: Typing) -> set[Node]:
    """The leaves that are scales of a quantized operator."""
    terms = topological((*typing.lhs, *typing.rhs))
    return {a for n in terms if traits(n).quantized for a in n.args[1:] if a is not ABSENT and is_float(a.dtype)}


def drawn(node: Node, is_scale: bool, rng: np.random.Generator) -> NDArray[Any]:
    """All numbers of a small integer dtype; floats of which many are at the middle between two
    integers, or beyond all of them."""
    shape, dtype = tuple(int(n) for n in node.shape), numpy_dtype(node.dtype)
    if not is_float(node.dtype):
        span = np.iinfo(dtype)
        wide = span.bits <= 16
        return rng.integers(span.min if wide else 0, span.max + 1 if wide else 2, shape).astype(dtype)
    if is_scale:
        return np.exp(rng.normal(-2, 2, shape)).astype(dtype)
    halves = rng.integers(-600, 600, shape) / 2 * rng.choice((1.0, 0.5, 0.125))
    return np.where(rng.random(shape) < 0.5, halves, rng.normal(0, rng.choice((0.1, 3, 1e4)), shape)).astype(dtype)


def inputs(typing: Typing) -> Iterator[Arrays]:
    positive = scales(typing)
    for seed in range(INPUTS):
        rng = np.random.default_rng(seed)
        yield {n: drawn(n, n in positive, rng) for n in leaves(typing)}


def same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(left, right, strict=True))


def ours(outputs: tuple[Node, ...], arrays: Arrays) -> list[Any]:
    found = interpret(outputs, REALS, arrays)
    return [found[n] for n in outputs]


def keeps_bits(typing: Typing) -> bool:
    return all(same(ours(typing.lhs, arrays), ours(typing.rhs, arrays)) for arrays in inputs(typing))


def runs(typing: Typing) -> bool | None:
    """Whether the runtime gives the same bits for both sides; None where it does not take one."""
    named = leaves(typing)
    try:
        graphs = [Graph(tuple(named), tuple(map(in_bytes, side))) for side in (typing.lhs, typing.rhs)]
        both = [Session(serialize(standalone(graph, OPSETS))) for graph in graphs]
        for arrays in islice(inputs(typing), 3):
            given = {n.attr("name"): a for n, a in arrays.items()}
            if not same(*(session.run(given) for session in both)):
                return False
    except TasoMirageError:
        return None
    return True


def in_bytes(result: Node) -> Node:
    """A result that the runtime gives to Python: it does not give numbers of 4 bits."""
    return get("cast").term(result, to="int8") if result.dtype == "int4" else result


def cases(law: Equation, given: Any, attributes: Any, wanted: int) -> list[Typing]:
    found = typings(law, tries=4000, given=given, attributes=attributes)
    runnable = (t for t in found if legal(t) and all(n.dtype != "float64" for n in leaves(t)))
    return list(islice(runnable, wanted))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_keeps_every_bit(law: Equation) -> None:
    found = cases(law, *stated(law), TYPINGS)
    assert found
    tried = 0
    for typing in found:
        try:
            assert keeps_bits(typing), (typing.lhs, typing.rhs)
        except IndexError:  # an index beyond its dim
            continue
        tried += 1
    assert tried


@pytest.mark.sampled(5)
@pytest.mark.parametrize("count", [2, pytest.param(TYPINGS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_runtime_gives_the_same_bits(law: Equation, count: int) -> None:
    """The first typings that it takes."""
    tried = (runs(typing) for typing in cases(law, *stated(law), TYPINGS))
    found = list(islice((each for each in tried if each is not None), count))
    assert False not in found
    assert True in found


TO = "axis: 1, block_size: 0, saturate: 1"
FROM = "axis: 1, block_size: 0, dtype: 'float32'"
Q, DQ, BYTES = f"b: {{{TO}, dtype: 'uint8'}}", f"a: {{{FROM}}}", "x: uint8 (m, n), s: (), z: uint8 ()"
BOTH = f"{DQ}, {Q}"
INTO = f"x: (m, n), s: (), z: uint8 () | {Q}"
OUT = f"{BYTES} | {DQ}"
PADDED = "p: (0, 1, 1, 0)"
PRODUCT = 'mul(cast(matmul_integer(x, {}, y, z), to="float32"), mul(s, {}))'
JOINED = "split({}, axis=rank(x) - 1, split=(dim(v, 1), dim(w, 1)))"
TWINS = "x: uint8 (m, k), v: int8 (k, n), w: int8 (k, n), t: (), u: (), y: uint8 (), z: int8 (), s: ()"
WEIGHTS = "is_weight(v) and is_weight(w)"


def twins(first: str, second: str, weights: str = "v, w") -> str:
    """Two products as one with these scales."""
    scale = f"concat(expand({first}, shape=(dim(v, 1),)), expand({second}, shape=(dim(w, 1),)), axis=0)"
    whole = JOINED.format(PRODUCT.format(f"concat({weights}, axis=1)", scale))
    return (
        f"({PRODUCT.format('v', 't')}, {PRODUCT.format('w', 'u')}) == (item({whole}, index=0), item({whole}, index=1))"
    )


WRONG = {
    "rounding left out": ("dequantize(quantize(x, s, z, **b), s, z, **a) == x", f"x: (m, n), s: (), z: uint8 () | {BOTH}"),
    "truncation": ('quantize(x, s, dtype="uint8", **b) == cast(clip(div(x, s), 0, 255), to="uint8")', f"x: (m, n), s: () | b: {{{TO}}}"),
    "rounding up": ("quantize(x, s, **b) == quantize(mul(ceil(div(x, s)), s), s, **b)", f"x: (m, n), s: () | {Q}"),
    "another scale": (
        "quantize(dequantize(x, s, z, **a), t, z, **b) == x where value(s) > 0 and value(t) > 0 and value(s) != value(t)",
        f"{BYTES}, t: () | {BOTH}",
    ),
    "scale below zero": ("relu(dequantize(x, s, z, **a)) == dequantize(max(x, z), s, z, **a) where value(s) < 0", OUT),
    "another zero": ("quantize(dequantize(x, s, z, **a), s, o, **b) == x where value(s) > 0", f"{BYTES}, o: uint8 () | {BOTH}"),
    "zero left out": ("quantize(dequantize(x, s, z, **a), s, **b) == x where value(s) > 0", f"{BYTES} | {BOTH}"),
    "saturation left out": (
        "dequantize(quantize(dequantize(x, s, z, **a), s, o, **b), s, o, **a) == dequantize(x, s, z, **a)",
        f"{BYTES}, o: int8 () | {DQ}, b: {{{TO}, dtype: 'int8'}}",
    ),
    "saturation by one": (
        "quantize(x, s, z, **b) == min(quantize(x, s, z, **b), 254)",
        INTO,
    ),
    "relu at the number 0": ("relu(dequantize(x, s, z, **a)) == dequantize(max(x, 0), s, z, **a) where value(s) > 0", OUT),
    "no relu": ("relu(dequantize(x, s, z, **a)) == dequantize(x, s, z, **a) where value(s) > 0", OUT),
    "relu to the number 0": ("quantize(relu(x), s, z, **b) == max(quantize(x, s, z, **b), 0) where value(s) > 0", INTO),
    "no relu before": ("quantize(relu(x), s, z, **b) == quantize(x, s, z, **b) where value(s) > 0", INTO),
    "relu one above": (
        "quantize(relu(x), s, z, **b) == quantize(x, s, z, **b) where value(s) > 0 and value(z) == lowest(z) + 3", INTO
    ),
    "clipped a step within": (
        "quantize(clip(x, l, h), s, z, **b) == quantize(x, s, z, **b) where value(s) > 0 "
        "and value(l) <= (lowest(z) - value(z) + 1.51) * value(s) and value(h) >= (highest(z) - value(z) - 1.51) * value(s)",
        f"x: (m, n), l: (), h: (), s: (), z: int4 () | b: {{{TO}, dtype: 'int4'}}",
    ),
    "clipped more than half a step above the end": (
        "quantize(max(x, l), s, z, **b) == quantize(x, s, z, **b) "
        "where value(s) > 0 and value(l) > (lowest(z) - value(z) + 0.51) * value(s)",
        f"x: (m, n), l: (), s: (), z: uint8 () | {Q}",
    ),
    "clipped by the zero's negative": (
        "quantize(min(x, h), s, z, **b) == quantize(x, s, z, **b) "
        "where value(s) > 0 and value(h) >= (highest(z) + value(z) - 0.49) * value(s)",
        f"x: (m, n), h: (), s: (), z: int8 () | b: {{{TO}, dtype: 'int8'}}",
    ),
    "the other bound": (
        "quantize(clip(x, l, h), s, z, **b) == quantize(max(x, l), s, z, **b) where value(s) > 0 "
        "and value(l) <= (lowest(z) - value(z) + 0.49) * value(s)",
        f"x: (m, n), l: (), h: (), s: (), z: uint8 () | {Q}",
    ),
    "clipped with a scale below zero": (
        "quantize(max(x, l), s, z, **b) == quantize(x, s, z, **b) "
        "where value(s) < 0 and value(l) <= (lowest(z) - value(z) + 0.49) * value(s)",
        f"x: (m, n), l: (), s: (), z: uint8 () | {Q}",
    ),
    "integers clipped at the floats": (
        "quantize(clip(dequantize(x, s, z, **a), l, h), s, z, **b) == clip(x, cast(l, to='uint8'), cast(h, to='uint8')) "
        "where value(s) > 0 and value(l) >= 0 and value(h) >= 0",
        f"{BYTES}, l: (), h: () | {BOTH}",
    ),
    "bounds exchanged": (
        "quantize(clip(dequantize(x, s, z, **a), l, h), s, z, **b) == clip(x, quantize(h, s, z, **b), quantize(l, s, z, **b)) "
        "where value(s) > 0",
        f"{BYTES}, l: (), h: () | {BOTH}",
    ),
    "padding with the number 0": ("quantize(pad(x, pads=p), s, z, **b) == pad(quantize(x, s, z, **b), pads=p)", f"{INTO}, {PADDED}"),
    "padding one off": (
        "quantize(pad(x, pads=p), s, z, **b) == pad(quantize(x, s, z, **b), pads=p, value=value(z) - 1) where value(z) > 0",
        f"{INTO}, {PADDED}",
    ),
    "padding of floats with the zero": (
        "pad(dequantize(x, s, z, **a), pads=p, value=value(z)) == dequantize(pad(x, pads=p, value=value(z)), s, z, **a) where value(z) > 0",
        f"{OUT}, {PADDED}",
    ),
    "two scales": (
        "concat(quantize(x, s, z, **b), quantize(y, t, z, **b), axis=i) == quantize(concat(x, y, axis=i), s, z, **b)",
        f"x: (m, n), y: (m, k), s: (), t: (), z: uint8 () | {Q}, i: 1",
    ),
    "two zeros": (
        "concat(dequantize(x, s, z, **a), dequantize(y, s, o, **a), axis=i) == dequantize(concat(x, y, axis=i), s, z, **a)",
        f"x: uint8 (m, n), y: uint8 (m, k), s: (), z: uint8 (), o: uint8 () | {DQ}, i: 1",
    ),
    "scales of the axis before": (
        "dequantize(transpose(x, perm=p), s, axis=i, **a) == transpose(dequantize(x, s, axis=i, **a), perm=p)",
        "x: int8 (m, m), s: (m) | p: (1, 0), i: 0, a: {block_size: 0, dtype: 'float32'}",
    ),
    "scales of the inverse": (
        "quantize(transpose(x, perm=p), s, axis=i, **b) == transpose(quantize(x, s, axis=inverse(p)[i], **b), perm=p)",
        "x: (m, m, m), s: (m) | p: (1, 2, 0), i: 0, b: {block_size: 0, saturate: 1, dtype: 'uint8'}",
    ),
    "scales of another axis of the same size": (
        "dequantize(reshape(x, shape=t), s, axis=i, **a) == reshape(dequantize(x, s, axis=i, **a), shape=t) where size(s) > 1",
        "x: int8 (m, 2*m), s: (m) | t: (m, m, 2), i: 1, a: {block_size: 0, dtype: 'float32'}",
    ),
    "a sum": ("quantize(add(x, y), s, **b) == add(quantize(x, s, **b), quantize(y, s, **b))", f"x: (m, n), y: (m, n), s: () | {Q}"),
    "a mean": (
        "reduce_mean(dequantize(x, s, **a), axes=(0,)) == dequantize(reduce_max(x, axes=(0,)), s, **a)",
        f"x: uint8 (m, n), s: () | {DQ}",
    ),
    "scales exchanged": (twins("u", "t"), TWINS),
    "weights exchanged": (twins("t", "u", "w, v"), TWINS),
    "the sum of rows": (
        'add(matmul_integer(x, w, z), c) == add(matmul_integer(x, w), sub(c, mul(cast(z, to="int32"), '
        'reduce_sum(cast(w, to="int32"), axes=(1,), keepdims=0))))',
        "x: uint8 (m, k), w: int8 (k, k), z: uint8 (), c: int32 (k)",
    ),
    "the zero added": (
        'add(matmul_integer(x, w, z), c) == add(matmul_integer(x, w), add(c, mul(cast(z, to="int32"), '
        'reduce_sum(cast(w, to="int32"), axes=(0,), keepdims=0))))',
        "x: uint8 (m, k), w: int8 (k, n), z: uint8 (), c: int32 (n)",
    ),
    "no zero of activations": ("matmul_integer(x, w, z) == matmul_integer(x, w)", "x: uint8 (m, k), w: int8 (k, n), z: uint8 ()"),
    "padding that is no zero": (
        "conv_integer(pad(x, pads=p), w, z, pads=q, **a) == conv_integer(x, w, z, pads=plus(q, p[2:rank(x)] + p[rank(x) + 2:]), **a) "
        "where value(z) == 3",
        "x: uint8 (n, c, 4, 5), w: int8 (o, c, 3, 2), z: uint8 () "
        "| p: (0, 0, 1, 0, 0, 0, 2, 1), q: (0, 1, 1, 0), a: {strides: (1, 2), dilations: (1, 1), group: 1}",
    ),
    "scales of parts exchanged": (
        "quantize(concat(dequantize(x, s, z, **a), dequantize(y, t, z, **a), axis=i), s, z, **b) "
        "== qlinear_concat(s, z, x, t, z, y, s, z, axis=i)",
        f"x: uint8 (m, n), y: uint8 (m, k), s: (), t: (), z: uint8 () | {BOTH}, i: 1",
    ),
    "a function of the integers": (
        "quantize(leaky_relu(dequantize(x, s, z, **a), alpha=c), s, z, **b) == x where value(s) > 0", f"{BYTES} | {BOTH}, c: 0.1"
    ),
}  # fmt: skip


def wrong_cases(text: str, typing: str, wanted: int = 40) -> list[Typing]:
    given, _, attributes = typing.partition("|")
    return cases(parse_equation(text), parse_given(given), parse_attributes(attributes), wanted)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("most", [3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_law_is_told_and_not_proved(name: str, most: int) -> None:
    differ = list(islice((typing for typing in wrong_cases(*WRONG[name]) if not keeps_bits(typing)), most))
    assert differ
    for typing in differ:
        assert isinstance(proved_at(typing.lhs, typing.rhs), Failure), (typing.lhs, typing.rhs)


ROUNDS_OTHERWISE = {
    "a factor in the scale": ("quantize(mul(x, c), s, **b) == quantize(x, div(s, c), **b)", f"x: (m, n), c: (), s: () | {Q}"),
    "scales of products in another order": (
        f"{PRODUCT.format('w', 't')} == mul(mul(cast(matmul_integer(x, w, y, z), to='float32'), s), t)",
        "x: uint8 (m, k), w: int8 (k, n), t: (), y: uint8 (), z: int8 (), s: ()",
    ),
    "a sum of floats as one of integers": (
        "matmul(dequantize(x, s, **a), dequantize(w, t, **a)) "
        "== mul(cast(matmul_integer(x, w), to='float32'), mul(s, t))",
        f"x: uint8 (m, k), w: int8 (k, n), s: (), t: () | {DQ}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDS_OTHERWISE)
def test_what_is_equal_over_the_reals_alone_is_told(name: str) -> None:
    """A proof is over the reals, so the comparison of bits must tell it."""
    assert any(not keeps_bits(typing) for typing in wrong_cases(*ROUNDS_OTHERWISE[name], wanted=200))


def test_the_field_keeps_small_whole_numbers_alone() -> None:
    """A rounding function is random at all other numbers: at halves, at large numbers, and at
    numbers that a dtype does not hold."""
    field = Field(trials=8)

    def through(function: Callable[[Residues], Residues], value: float) -> bool | None:
        x = field.load(np.asarray(value, np.float32))
        return agree(replace(function(x), dtype="float32"), x)

    def rounded(x: Residues) -> Residues:
        return field.map(np.rint, x)

    assert all(through(rounded, n) for n in (-256, -3, 0, 1, 255))
    assert not any(through(rounded, n) for n in (0.5, -0.5, 0.25, 1 / 3, 257, 1000, 1e6, 3.75))
    for dtype, held, missing in (("uint8", (0, 255), (-1, 256, 0.5)), ("int8", (-128, 127), (-129, 128, 0.5))):
        assert all(through(lambda x, to=dtype: field.cast(x, to), n) for n in held)
        assert not any(through(lambda x, to=dtype: field.cast(x, to), n) for n in missing)
    x = field.fresh(Tensor("float32", (3,)))
    assert agree(rounded(x), x) is False
    assert agree(rounded(field.map(np.add, x, x)), field.map(np.add, rounded(x), rounded(x))) is False


def test_laws_join_the_nodes_between_quantizers() -> None:
    """The nodes are as onnxruntime.quantization writes them: a concatenation becomes the runtime's,
    a pool works on integers, and no bit changes."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[1,4,8,8] x, float[1,3,8,8] y) => (float[1,7,4,4] r)
    <float s = {0.031}, float t = {0.017}, float v = {0.029}, uint8 a = {117}, uint8 b = {131}, uint8 c = {125}>
    { qx = QuantizeLinear(x, s, a) dx = DequantizeLinear(qx, s, a) qy = QuantizeLinear(y, t, b)
      dy = DequantizeLinear(qy, t, b) j = Concat <axis = 1>(dx, dy) qj = QuantizeLinear(j, v, c)
      dj = DequantizeLinear(qj, v, c) p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(dj)
      qp = QuantizeLinear(p, v, c) r = DequantizeLinear(qp, v, c) }"""
    model = from_ir(from_proto(onnx.parser.parse_model(text)))
    result = optimize_model(model, Config(measure=False, budget=60))
    assert result.failure is None
    count = Counter(node.op for node in result.model.nodes())
    assert (count["qlinear_concat"], count["max_pool"], count["quantize"], count["dequantize"]) == (1, 1, 2, 1)
    pool = next(node for node in result.model.nodes() if node.op == "max_pool")
    assert pool.dtype == "uint8"
    rng = np.random.default_rng(0)
    given = {n: rng.normal(0, 2, (1, k, 8, 8)).astype(np.float32) for n, k in (("x", 4), ("y", 3))}
    before, after = (Session(serialize(each)).run(given) for each in (model, result.model))
    assert same(before, after)


@pytest.mark.parametrize(
    ("zero", "scale", "low", "high", "left"),
    [
        ("int8 z = {-128}", 6 / 255, 0.0, 6.0, set()),
        ("uint8 z = {0}", 0.0231, 0.0, 6.0, set()),
        ("int8 z = {-100}", 0.026, 0.0, 6.0, {"max"}),
        ("int8 z = {-128}", 0.03, 0.0, 6.0, {"min"}),
        ("int8 z = {-100}", 0.04, 0.0, 6.0, {"clip"}),
    ],
)
def test_a_clip_that_saturation_implies_goes(zero: str, scale: float, low: float, high: float, left: set[str]) -> None:
    """Relu6 before a quantizer whose range ends there, at one end, and at none."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,300] x) => (float[2,300] r) <float s = {{{scale}}}, {zero}, float l = {{{low}}}, float h = {{{high}}}>
    {{ c = Clip(x, l, h) q = QuantizeLinear(c, s, z) r = DequantizeLinear(q, s, z) }}"""
    model = from_ir(from_proto(onnx.parser.parse_model(text)))
    result = optimize_model(model, Config(measure=False, budget=30))
    assert result.failure is None
    count = Counter(node.op for node in result.model.nodes())
    assert {op for op in ("clip", "max", "min") if count[op]} == left
    assert count["quantize"] == 1
    given = {"x": np.linspace(-9, 9, 600, dtype=np.float32).reshape(2, 300)}
    before, after = (Session(serialize(each)).run(given) for each in (model, result.model))
    assert same(before, after)


def test_a_clip_between_one_scale_is_one_of_integers() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (uint8[300] x) => (uint8[300] r) <float s = {0.05}, uint8 z = {7}, float l = {0.0}, float h = {6.0}>
    { d = DequantizeLinear(x, s, z) c = Clip(d, l, h) r = QuantizeLinear(c, s, z) }"""
    model = from_ir(from_proto(onnx.parser.parse_model(text)))
    result = optimize_model(model, Config(measure=False, budget=30))
    assert result.failure is None
    (clip,) = (n for n in result.model.nodes() if n.op == "clip")
    assert clip.args[0].op == "input"
    assert clip.args[1].args[0].op == clip.args[2].args[0].op == "constant"
    assert result.model.graph.outputs == (clip,)
    given = {"x": (np.arange(300) % 256).astype(np.uint8)}
    before, after = (Session(serialize(each)).run(given) for each in (model, result.model))
    assert same(before, after)


def test_rows_of_a_table_are_taken_before_they_become_floats() -> None:
    """The embedding is as onnxruntime.quantization writes it: the table went to floats at each
    run."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (int64[5] i, float[4] b) => (float[5,4] r) <float s = {0.031}, int8 z = {3}, float t = {0.1}, int8 o = {0}>
    { table = Cast <to = 3> (numbers) d = DequantizeLinear(table, s, z) e = Gather <axis = 0>(d, i)
      q = QuantizeLinear(e, s, z) f = DequantizeLinear(q, s, z) a = Add(f, b) p = QuantizeLinear(a, t, o)
      r = DequantizeLinear(p, t, o) }"""
    proto = onnx.parser.parse_model(text)
    numbers = np.random.default_rng(0).integers(-128, 128, (300, 4)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, "numbers"))
    model = from_ir(from_proto(proto))
    result = optimize_model(model, Config(measure=False, budget=30))
    assert result.failure is None
    (taken,) = (node for node in result.model.nodes() if node.op == "gather")
    assert taken.dtype == "int8"
    assert Counter(node.op for node in result.model.nodes())["dequantize"] == 2
    given = {"i": np.array([0, 299, 7, 7, 42]), "b": numbers[0] / 100}
    before, after = (Session(serialize(each)).run(given) for each in (model, result.model))
    assert same(before, after)
