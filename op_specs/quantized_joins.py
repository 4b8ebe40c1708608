"""Products of quantized numbers that become one, or an operator of the runtime, bit by bit.

Sums of whole numbers are exact, so they may be cut, joined, and shifted. A float that an element
is multiplied by must be the same float on both sides: the scale of a column is multiplied by that
of the activations first, as the runtime does.

The runtime's own operators stand here where its arithmetic is that of the nodes that they replace
(`tests/operators/test_quantized_laws.py` compares them). It is not for QLinearConv, QLinearMatMul
and QGemm, which multiply a sum of whole numbers by one float where the nodes sum rounded floats;
nor for QLinearAdd, QLinearMul, QLinearSigmoid, QLinearSoftmax and the means, which are one step off
where a result is near the middle between two.
"""

from op_specs.quantize import dynamic_quantize
from op_specs.quantized_elementwise import qlinear_concat, qlinear_leaky_relu
from op_specs.quantized_moves import HELD
from op_specs.quantized_products import (
    conv_integer,
    dynamic_quantize_matmul,
    matmul_integer,
    matmul_integer_to_float,
    qlinear_conv,
)

_FLOAT = 'mul(cast(matmul_integer(x, {w}, y, z), to="float32"), mul(s, {t}))'
_SCALES = "size(s) == 1 and rank(s) < 2 and rank(y) == 0"


def _joined(count: int) -> str:
    """Products of the same activations with several weights, with biases and without."""
    parts = list(zip("uvw"[:count], "eof"[:count], "bcd"[:count], strict=True))
    before = [f"add({_FLOAT.format(w=w, t=t)}, *{b})" for w, t, b in parts]
    weights = f"concat({', '.join(w for w, _, _ in parts)}, axis=1)"
    scales = f"concat({', '.join(f'expand({t}, shape=(dim({w}, 1),))' for w, t, _ in parts)}, axis=0)"
    biases = f"concat({', '.join(f'*{b}' for _, _, b in parts)}, axis=0)"
    sizes = ", ".join(f"dim({w}, 1)" for w, _, _ in parts)
    whole = f"split(add({_FLOAT.format(w=weights, t=scales)}, {biases}), axis=rank(x) - 1, split=({sizes}))"
    after = [f"item({whole}, index={i})" for i in range(count)]
    guard = " and ".join(f"rank({w}) == 2 and is_weight({w}) and rank({t}) < 2" for w, t, _ in parts)
    biased = " and ".join(f"shape({b}) == (dim({w}, 1),)" for w, _, b in parts)
    given = ", ".join(f"{w}: int8 (k, {b}), {t}: (), {b}: ({b})" for w, t, b in parts)
    return f"""
        ({", ".join(before)}) == ({", ".join(after)})  where {guard} and {_SCALES} and rank(z) == 0 and {biased}
        given x: uint8 (m, k), {given}, y: uint8 (), z: int8 (), s: ()
    """


for _count in (2, 3):
    matmul_integer.laws(_joined(_count))

# the zero of the activations is a constant that is added
_ZERO = "where is_weight(w) and is_weight(c) and is_weight(z) and size(z) == 1"
matmul_integer.laws(f"""
    add(matmul_integer(x, w, z), c) \
        == add(matmul_integer(x, w), sub(c, mul(cast(z, to="int32"), \
            reduce_sum(cast(w, to="int32"), axes=(0,), keepdims=0)))) \
        {_ZERO} and rank(w) == 2
    given x: uint8 (m, k), w: int8 (k, n), z: uint8 (), c: int32 (n)
""")
for _op, _call in (
    (conv_integer, "conv_integer({x}, w, z, *y, pads={q}, **a)"),
    (qlinear_conv, "qlinear_conv({x}, s, z, w, t, o, u, k, *b, pads={q}, **a)"),
):
    _padded = _call.format(x="pad(x, pads=p, value=v)", q="q")
    _within = _call.format(x="x", q="plus(q, p[2:rank(x)] + p[rank(x) + 2:])")
    _types = "y: int8 ()" if _op is conv_integer else "s: (), t: (), o: int8 (), u: (), k: uint8 (), b: int32 (o)"
    _op.laws(f"""
        {_padded} == {_within}  where value(z) == v and p[:2] == (0, 0) and p[rank(x):rank(x) + 2] == (0, 0)
        given x: uint8 (n, c, 4, 5), w: int8 (o, c, 3, 2), z: uint8 (), {_types} \
            | p: (0, 0, 1, 0, 0, 0, 2, 1), q: (0, 1, 1, 0), v: 3.0, a: {{strides: (1, 2), dilations: (1, 1), group: 1}}
    """)

matmul_integer_to_float.laws(f"""
    {_FLOAT.format(w="w", t="t")} == matmul_integer_to_float(x, w, s, t, y, z)  where rank(t) < 2 and {_SCALES}
    given x: uint8 (m, k), w: int8 (k, n), y: uint8 (), z: int8 (), s: (), t: ()
    add(matmul_integer_to_float(x, w, s, t, y, z), b) \
        == matmul_integer_to_float(x, w, s, t, y, z, b) \
        where shape(b) == (dim(w, 1),) and rank(w) == 2
    given x: uint8 (m, k), w: int8 (k, n), y: uint8 (), z: int8 (), s: (), t: (), b: (n)
""")
_PART = "item(dynamic_quantize(x), index={})"
dynamic_quantize_matmul.laws(f"""
    matmul_integer_to_float({_PART.format(0)}, w, {_PART.format(1)}, t, {_PART.format(2)}, z, *b) \
        == dynamic_quantize_matmul(x, w, t, z, *b)
    given x: (m, k), w: int8 (k, n), t: (), z: int8 (), b: (n)
""")

qlinear_leaky_relu.laws("""
    quantize(leaky_relu(dequantize(x, s, z, **b), alpha=a), t, o, dtype=d, **c) \
        == qlinear_leaky_relu(x, s, z, t, o, alpha=a) \
        where dtype(x) == d
    given x: uint8 (m, n), s: (), z: uint8 (), t: (), o: uint8 () \
        | a: 0.1, d: 'uint8', b: {axis: 1, block_size: 0, dtype: 'float32'}, c: {axis: 1, block_size: 0, saturate: 1}
""")
for _names in ("xy", "xyw"):
    _parts = ", ".join(f"dequantize({n}, {n}s, {n}z, **b)" for n in _names)
    _own = ", ".join(f"{n}, {n}s, {n}z" for n in _names)
    _typed = ", ".join(f"{n}: uint8 (m, {n}), {n}s: (), {n}z: uint8 ()" for n in _names)
    qlinear_concat.laws(f"""
        quantize(concat({_parts}, axis=i), t, o, dtype=d, **c) == qlinear_concat(t, o, {_own}, axis=i)  where dtype(x) == d
        given {_typed}, t: (), o: uint8 () \
            | i: 1, d: 'uint8', b: {{axis: 1, block_size: 0, dtype: 'float32'}}, c: {{axis: 1, block_size: 0, saturate: 1}}
        qlinear_concat(s, z, {", ".join(f"{n}, s, z" for n in _names)}, axis=i) \
            == concat({", ".join(_names)}, axis=i) \
            where {HELD}
        given {", ".join(f"{n}: uint8 (m, {n})" for n in _names)}, s: (), z: uint8 () | i: 1
    """)

# the range of all elements does not change where they only move: heads are joined as bytes
_HEADS = "where t[:-1] == shape(x)[:len(t) - 1]"
for _moved, _guard, _typed in (
    ("transpose(@, perm=p)", "", "x: (n, c, h, k) | p: (0, 2, 1, 3)"),
    ("reshape(@, shape=t)", _HEADS, "x: (n, c, h, k) | t: (n, c, h*k)"),
):
    _before = [f"item(dynamic_quantize({_moved.replace('@', 'x')}), index={i})" for i in range(3)]
    _after = [_moved.replace("@", _PART.format(0)), _PART.format(1), _PART.format(2)]
    dynamic_quantize.laws(f"""
        ({", ".join(_before)}) == ({", ".join(_after)})  {_guard}
        given {_typed}
    """)
