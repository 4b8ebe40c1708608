"""Activations in int8 as uint8 with a zero point that is 128 higher, which represent the same
floats.

On x86 ONNX Runtime multiplies uint8 by int8. It converts int8 activations itself, except those that
several operators read (a shortcut); then the convolutions around them run in floats. Changing only
one of several activations of an operator gains nothing.
"""

from op_specs.quantize import dequantize

_UNSIGNED = "cast(add(cast(z, to='int32'), 128), to='uint8')"
dequantize.laws(
    f"""
    dequantize(quantize(x, s, z, dtype='int8', **a), s, z, **b) \
        == dequantize(quantize(x, s, {_UNSIGNED}, dtype='uint8', **a), s, {_UNSIGNED}, **b)  where abs(value(z)) <= 128
    given x: (n, c), s: (), z: int8 () | a: {{axis: 1, block_size: 0, saturate: 1}}, \
        b: {{axis: 1, block_size: 0, dtype: 'float32'}}
""",
    together=True,
)
