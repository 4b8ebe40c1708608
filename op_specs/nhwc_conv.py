"""Convolution with channels last: the operator by which a part of a model takes that layout on a
GPU (`com.microsoft` domain).

ONNX Runtime's CUDA provider has it. The target's option `prefer_nhwc` selects the layout for all
convolutions of a model.
"""

from op_specs.conv import check_window, conv, kernel_shape, windows
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.operators.ops import Call, Ints, op

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations that bring the channels of an image to the front, and to the end."""


@op(onnx="NhwcConv", domain="com.microsoft", since=1, kernel=1, initializer=True, layout=True)
def nhwc_conv(xp, x, w, b=None, *, strides: Ints, pads: Ints, dilations: Ints, group: int = 1):
    """(n,h,w,g*c), (g*o,i,j,c), (g*o) -> (n,h',w',g*o); attributes as of conv"""
    if xp.rank(x) != 4:
        raise IllTyped(f"data of rank {xp.rank(x)}; the runtime takes images")
    image, kernel = (transpose(xp, each, perm=FIRST) for each in (x, w))
    check_window(xp, image, kernel, strides, pads, dilations)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    return transpose(xp, conv(xp, image, kernel, b, **attrs), perm=LAST)


@nhwc_conv.importer
def _(call: Call):
    x, w = call.arg(0), call.arg(1)
    kernel = w.shape[1:-1]
    if tuple(call.attrs.get("kernel_shape", kernel)) != kernel:
        raise Unsupported(f"NhwcConv with kernel_shape {call.attrs['kernel_shape']} and weights {w.shape}")
    attrs = windows(call, x.shape[1:-1], kernel)
    _check_pads(attrs["pads"])
    return nhwc_conv.term(x, w, call.arg(2), **attrs, group=call.attrs.get("group", 1))


def _check_pads(pads: Ints) -> None:
    if pads[:2] != pads[2:] or min(pads) < 0:
        raise Unsupported(f"NhwcConv with pads {pads}; the runtime takes the same on both sides")


@nhwc_conv.exporter
def _(node, opset: int) -> Call:
    _check_pads(node.attr("pads"))
    attrs = {**kernel_shape(node.args[1].shape[1:-1]), **dict(node.attrs)}
    return Call("NhwcConv", node.args, attrs, opset, nhwc_conv.domain)


nhwc_conv.example("float16[2,5,5,3]", "float16[4,3,3,3]", strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
nhwc_conv.example(
    "float32[2,5,6,3]", "float32[4,3,2,3]", "float32[4]", strides=(2, 1), pads=(0, 1, 0, 1), dilations=(1, 1)
)
nhwc_conv.example("float16[1,5,5,4]", "float16[6,3,3,2]", strides=(1, 1), pads=(2, 2, 2, 2), dilations=(2, 2), group=2)
nhwc_conv.example(
    "float32[2,3,3,4]", "float32[5,1,1,4]", "float32[5]", strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)
)

_AT_ONE = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
for _bias in ((), ("float16[4]",)):  # uses in half precision, for the laws below
    conv.example("float16[2,3,5,5]", "float16[4,3,3,3]", *_bias, **_AT_ONE)
    conv.example("float16[1,2,6,5]", "float16[4,2,3,3]", *_bias, **_AT_ONE)
    conv.example("float16[1,3,4,4]", "float16[4,3,1,1]", *_bias, strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))

# Measured on an H100 (docs/measured/gpu.md): channels last is slower by itself in single precision,
# and for groups.
nhwc_conv.laws("""
    conv(x, w, *b, group=1, **a) \
        == transpose(nhwc_conv(transpose(x, perm=(0, 2, 3, 1)), transpose(w, perm=(0, 2, 3, 1)), *b, group=1, **a), \
            perm=(0, 3, 1, 2)) \
        where rank(x) == 4 and dtype(x) == "float16" and is_weight(w)
""")
nhwc_conv.laws(
    """
    conv(transpose(x, perm=(0, 3, 1, 2)), w, *b, group=1, **a) \
        == transpose(nhwc_conv(x, transpose(w, perm=(0, 2, 3, 1)), *b, group=1, **a), perm=(0, 3, 1, 2)) \
        where rank(x) == 4 and dtype(x) == "float16" and is_weight(w)
""",
    moving=True,
)
