"""A split of a convolution's channels as separate convolutions (YOLO splits its concatenations
again). A runtime that keeps its own layout between convolutions has no Split in that layout."""

from op_specs.microsoft import quick_gelu
from op_specs.split import split

ACTIVATIONS = {"": "", "relu": "", quick_gelu.name: ", **e"}
"""Operators that may be between the convolution and the split, with the text that captures their
attributes."""
PARTS = 2


def _law(activation: str, attributes: str, k: int) -> str:
    bounds = f"starts=(sum(s[:{k}]),), ends=(sum(s[:{k} + 1]),), axes=(0,), steps=(1,)"
    whole, part = "conv(x, w, *b, group=1, **a)", f"conv(x, slice(w, {bounds}), slice(*b, {bounds}), group=1, **a)"
    if activation:
        whole, part = (f"{activation}({each}{attributes})" for each in (whole, part))
    return f"""
    item(split({whole}, axis=1, split=s), index={k}) == {part}  where is_weight(w)
    given x: (n, c, h, k), w: (m + o, c, 3, 3), b: (m + o) \
        | s: (m, o), a: {{strides: (1, 1), pads: (1, 1, 1, 1), dilations: (1, 1)}}{", e: {alpha: 1.0}" if attributes else ""}
"""


for _activation, _attributes in ACTIVATIONS.items():
    for _k in range(PARTS):
        split.laws(_law(_activation, _attributes, _k), together=True)
