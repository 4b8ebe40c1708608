"""1-D convolutions as 2-D convolutions of height 1, for which runtimes have faster implementations:
ONNX Runtime's blocked layout is for images only. It computes groups of 1-D convolutions one after
the other, so the rewrite mostly gains for groups."""

from op_specs.conv import conv

CASE = "x: (n, 2*c, m), w: (2*o, c, 3), b: (2*o) | s: (2,), p: (1, 0), d: (1,), g: 2"


def _law(groups: str) -> str:
    return f"""
    conv(x, w, *b, strides=s, pads=p, dilations=d, group=g) \
        == squeeze(conv(unsqueeze(x, axes=(2,)), unsqueeze(w, axes=(2,)), *b, strides=(1, s[0]), \
            pads=(0, p[0], 0, p[1]), dilations=(1, d[0]), group=g), axes=(2,)) \
        where rank(x) == 3 and {groups} and is_weight(w)
    given {CASE if groups == "g > 1" else CASE.replace("2*", "").replace("g: 2", "g: 1")}
"""


conv.laws(_law("g == 1"))
conv.laws(_law("g > 1"), together=True)
