"""Blocks of channels as blocks of pixels, and back."""

from op_specs.families import ELEMENTWISE, each
from op_specs.reshape import reshape
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.operators.ops import Call, op


@op(onnx="DepthToSpace", since=1, layout=True)
def depth_to_space(xp, x, *, blocksize: int, mode: str = "DCR"):
    """(n,b*b*c,h,w) -> (n,c,b*h,b*w); the channels are (b,b,c) in the mode DCR, (c,b,b) in the mode
    CRD"""
    n, channels, h, w = xp.shape(x)
    b = blocksize
    c = channels // (b * b)
    if mode == "DCR":
        blocks, perm = reshape(xp, x, shape=(n, b, b, c, h, w)), (0, 3, 4, 1, 5, 2)
    elif mode == "CRD":
        blocks, perm = reshape(xp, x, shape=(n, c, b, b, h, w)), (0, 1, 4, 2, 5, 3)
    else:
        raise IllTyped(f"no mode {mode} of depth_to_space")
    return reshape(xp, transpose(xp, blocks, perm=perm), shape=(n, c, h * b, w * b))


@depth_to_space.exporter
def _(node, opset: int) -> Call:
    mode = node.attr("mode")
    if opset < 11 and mode != "DCR":
        raise Unsupported(f"DepthToSpace of mode {mode} begins at opset 11")
    given = {"mode": mode} if opset >= 11 else {}
    return Call("DepthToSpace", node.args, {"blocksize": node.attr("blocksize"), **given}, opset)


depth_to_space.example("float32[1,8,2,3]", blocksize=2)
depth_to_space.example("float32[2,8,2,3]", blocksize=2, mode="CRD")
depth_to_space.example("float32[1,9,1,2]", blocksize=3, mode="CRD")


@op(onnx="SpaceToDepth", since=1, layout=True)
def space_to_depth(xp, x, *, blocksize: int, mode: str = "DCR"):
    """(n,c,b*h,b*w) -> (n,b*b*c,h,w); the channels are (b,b,c) in the mode DCR, (c,b,b) in the mode
    CRD"""
    n, c, height, width = xp.shape(x)
    b = blocksize
    h, w = height // b, width // b
    if mode not in ("DCR", "CRD"):
        raise IllTyped(f"no mode {mode} of space_to_depth")
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    blocks = transpose(xp, reshape(xp, x, shape=(n, c, h, b, w, b)), perm=perm)
    return reshape(xp, blocks, shape=(n, b * b * c, h, w))


@space_to_depth.exporter
def _(node, opset: int) -> Call:
    mode = node.attr("mode")
    if opset < 28 and mode != "DCR":
        raise Unsupported(f"SpaceToDepth of mode {mode} begins at opset 28")
    given = {"mode": mode} if opset >= 28 else {}
    return Call("SpaceToDepth", node.args, {"blocksize": node.attr("blocksize"), **given}, opset)


space_to_depth.example("float32[1,2,4,6]", blocksize=2)
space_to_depth.example("float32[2,1,3,3]", blocksize=3)

depth_to_space.laws("""
    depth_to_space(space_to_depth(x, **a), **a) == x
    space_to_depth(depth_to_space(x, **a), **a) == x
""")
depth_to_space.laws(each(ELEMENTWISE, "f(depth_to_space(x, **c), **a) == depth_to_space(f(x, **a), **c)"))
