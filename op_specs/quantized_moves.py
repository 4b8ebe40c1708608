"""Laws that move quantization and dequantization through other operators, bit by bit, and cancel
pairs of them.

Both sides of each law have the same bits in single precision: elements that only move, a maximum
(both are increasing if the scale is positive), numbers that rounding preserves. An equality over
the reals alone (a factor that is merged into a scale, a sum that is quantized) would change
roundings, and is no law.
"""

from op_specs.families import each
from op_specs.quantize import quantize

PARTS = 3
"""The largest number of parts of a split for which there are laws."""
_ONE = "size(s) == 1 and size(z) == 1"
_AXIS = "size(s) > 1 and rank(s) == 1"
_UP = "value(s) > 0"
HELD = "value(s) > 1e-30 and value(s) < 1e30"
"""A scale s with which (q - z) * s is finite, and normal also where q is the least number of 8-bit
floats, so that the quotient by s rounds to q - z."""
_WINDOW = "a: {kernel: (2, 3), strides: (2, 1), pads: (0, 1, 1, 0), dilations: (1, 1)}"


WAYS = ("quantize", "dequantize")


def _through(before: str, after: str, guard: str) -> None:
    """`before` of a quantized value is `after` of it: in both directions, with a zero and
    without."""
    quantize.laws(each(WAYS, f"{before} == {after}  where {guard}"))


# a quantizer with one scale and zero point moves through operators that only move elements
for _moved in (
    "transpose(@, perm=p)",
    "reshape(@, shape=t)",
    "slice(@, **b)",
    "gather(@, j, axis=i)",
    "expand(@, shape=t)",
    "depth_to_space(@, **b)",
    *(f"item(split(@, axis=i, split=t), index={k})" for k in range(PARTS)),
):
    _inside, _outside = f"f({_moved.replace('@', 'x')}, s, *z, **a)", _moved.replace("@", "f(x, s, *z, **a)")
    if _moved.startswith("gather"):  # rows are gathered as integers, so the table is not dequantized in each run
        quantize.laws(each(WAYS[:1], f"{_inside} == {_outside}  where {_ONE}"))
        quantize.laws(each(WAYS[1:], f"{_outside} == {_inside}  where {_ONE}"))
    else:
        _through(_inside, _outside, _ONE)
_through(
    "f(pad(x, pads=p, mode=m), s, *z, **a)", "pad(f(x, s, *z, **a), pads=p, mode=m)", f"{_ONE} and m != 'constant'"
)
for _names in ("xy", "xyw"):
    _each = ", ".join(f"f({n}, s, *z, **a)" for n in _names)
    _through(f"concat({_each}, axis=i)", f"f(concat({', '.join(_names)}, axis=i), s, *z, **a)", _ONE)

# scales along an axis move with the axis
_through("f(transpose(x, perm=p), s, *z, axis=i, **a)", "transpose(f(x, s, *z, axis=p[i], **a), perm=p)", _AXIS)
_through(
    "transpose(f(x, s, *z, axis=i, **a), perm=p)", "f(transpose(x, perm=p), s, *z, axis=inverse(p)[i], **a)", _AXIS
)
for _way, _dtypes in zip(WAYS, (("float32", "uint8", "saturate: 1, "), ("uint8", "float32", "")), strict=True):
    quantize.laws(f"""
        {_way}(reshape(x, shape=t), s, *z, axis=i, **a) \
            == reshape({_way}(x, s, *z, axis=i, **a), shape=t) \
            where {_AXIS} and i >= 0 and t[:i + 1] == shape(x)[:i + 1]
        given x: {_dtypes[0]} (n, c, h, k), s: (c), z: uint8 (c) \
            | t: (n, c, h*k), i: 1, a: {{{_dtypes[2]}block_size: 0, dtype: '{_dtypes[1]}'}}
    """)

# padding with 0 is padding with the zero point
quantize.laws("""
    pad(dequantize(x, s, z, **a), pads=p) == dequantize(pad(x, pads=p, value=value(z)), s, z, **a)  where is_constant(z)
    given x: int8 (m, n), s: (), z: int8 () | p: (0, 1, 1, 0), a: {dtype: 'float32', axis: 1, block_size: 0}
    pad(dequantize(x, s, **a), pads=p) == dequantize(pad(x, pads=p), s, **a)
    given x: int8 (m, n), s: () | p: (0, 1, 1, 0), a: {dtype: 'float32', axis: 1, block_size: 0}
    quantize(pad(x, pads=p), s, z, **a) == pad(quantize(x, s, z, **a), pads=p, value=value(z))  where is_constant(z) and value(s) > 0
    given x: (m, n), s: (), z: int8 () | p: (0, 1, 1, 0), a: {dtype: 'int8', axis: 1, block_size: 0, saturate: 1}
    quantize(pad(x, pads=p), s, **a) == pad(quantize(x, s, **a), pads=p)  where value(s) > 0
    given x: (m, n), s: () | p: (0, 1, 1, 0), a: {dtype: 'int8', axis: 1, block_size: 0, saturate: 1}
""")

# both are increasing
_FROM = "b: {dtype: 'float32', axis: 1, block_size: 0}"
_TO = "b: {dtype: 'uint8', axis: 1, block_size: 0, saturate: 1}"
quantize.laws(f"""
    max_pool(dequantize(x, s, *z, **b), **a) == dequantize(max_pool(x, **a), s, *z, **b)  where {_UP} and size(z) == 1
    given x: uint8 (n, c, 4, 5), s: (), z: uint8 () | {_WINDOW}, {_FROM}
    max_pool(quantize(x, s, *z, **b), **a) == quantize(max_pool(x, **a), s, *z, **b)  where {_UP} and size(z) == 1
    given x: (n, c, 4, 5), s: (), z: uint8 () | {_WINDOW}, {_TO}
    relu(dequantize(x, s, z, **b)) == dequantize(max(x, z), s, z, **b)  where {_UP} and size(z) == 1
    given x: uint8 (m, n), s: (), z: uint8 () | {_FROM}
    relu(dequantize(x, s, z, **b)) == dequantize(x, s, z, **b)  where {_UP} and value(z) == lowest(z)
    given x: uint8 (m, n), s: (), z: uint8 () | {_FROM}
    relu(dequantize(x, s, **b)) == dequantize(max(x, 0), s, **b)  where {_UP}
    given x: int8 (m, n), s: () | {_FROM}
    relu(dequantize(x, s, **b)) == dequantize(x, s, **b)  where {_UP} and lowest(x) == 0
    given x: uint8 (m, n), s: () | {_FROM}
    quantize(relu(x), s, z, **b) == max(quantize(x, s, z, **b), z)  where {_UP} and size(z) == 1
    given x: (m, n), s: (), z: uint8 () | {_TO}
    quantize(relu(x), s, z, **b) == quantize(x, s, z, **b)  where {_UP} and value(z) == lowest(z)
    given x: (m, n), s: (), z: uint8 () | {_TO}
    quantize(relu(x), s, dtype=d, **b) == quantize(x, s, dtype=d, **b)  where {_UP} and d in ("uint8", "uint16")
    given x: (m, n), s: () | d: 'uint8', b: {{axis: 1, block_size: 0, saturate: 1}}
    max(quantize(x, s, z, **b), z) == quantize(x, s, z, **b)  where value(z) == lowest(z)
    given x: (m, n), s: (), z: uint8 () | {_TO}
""")

# to floats and back with one scale: two roundings of single precision are far less than a half;
# e5m2 has infinities, which saturate
_BACK = "a: {axis: 1, block_size: 0}, b: {axis: 1, block_size: 0, saturate: 1, dtype: 'uint8'}"
quantize.laws(f"""
    quantize(dequantize(q, s, *z, dtype="float32", **a), s, *z, **b) == q  where {HELD} and size(z) == 1 and dtype(q) != 'float8_e5m2'
    given q: uint8 (m, n), s: (), z: uint8 () | {_BACK}
    dequantize(quantize(dequantize(q, s, z, dtype="float32", **a), s, o, **b), s, o, **c) \
        == dequantize(q, s, z, **c) \
        where {HELD} and lowest(q) - value(z) >= lowest(o) - value(o) and highest(q) - value(z) <= highest(o) - value(o)
    given q: uint8 (m, n), s: (), z: uint8 (), o: int16 () | a: {{axis: 1, block_size: 0}}, \
        b: {{axis: 1, block_size: 0, saturate: 1, dtype: 'int16'}}, c: {{axis: 1, block_size: 0, dtype: 'float32'}}
""")

# a clip beyond the range of the integers is a saturation anyway: more than half a step in it rounds
# to its end, also where the quotient is rounded
_LOW = "value(l) <= (lowest(z) - value(z) + 0.49) * value(s)"
_HIGH = "value(h) >= (highest(z) - value(z) - 0.49) * value(s)"
_CLIP = "quantize(clip(x, l, h), s, z, **b) == quantize({}, s, z, **b)  where {} and {}"
_OF_4_BITS = "z: int4 () | b: {axis: 1, block_size: 0, saturate: 1, dtype: 'int4'}"
quantize.laws(f"""
    {_CLIP.format("x", _UP, f"{_LOW} and {_HIGH}")}
    given x: (m, n), l: (), h: (), s: (), {_OF_4_BITS}
    {_CLIP.format("max(x, l)", _UP, f"{_HIGH} and is_constant(l)")}
    given x: (m, n), l: (), h: (), s: (), z: uint8 () | {_TO}
    {_CLIP.format("min(x, h)", _UP, f"{_LOW} and is_constant(h)")}
    given x: (m, n), l: (), h: (), s: (), z: uint8 () | {_TO}
    quantize(max(x, l), s, z, **b) == quantize(x, s, z, **b)  where {_UP} and {_LOW}
    given x: (m, n), l: (), s: (), z: uint8 () | {_TO}
    quantize(min(x, h), s, z, **b) == quantize(x, s, z, **b)  where {_UP} and {_HIGH}
    given x: (m, n), h: (), s: (), z: uint8 () | {_TO}
    quantize(clip(dequantize(q, s, z, dtype="float32", **a), l, h), s, z, **b) \
        == clip(q, quantize(l, s, z, **b), quantize(h, s, z, **b)) \
        where {HELD} and size(z) == 1 and is_constant(l) and is_constant(h)
    given q: uint8 (m, n), l: (), h: (), s: (), z: uint8 () | {_BACK}
""")
