"""Elementwise activations."""

import math

import numpy as np

from op_specs.arithmetic import add, div, max_, min_, mul, real
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import ABSENT, Node, constant
from taso_mirage.meanings.functions import ERROR_FUNCTION
from taso_mirage.operators.ops import Call, op


@op(onnx="Relu", since=6)
def relu(xp, x):
    """x -> max(x, 0)"""
    return xp.maximum(x, xp.literal(0, x))


@op(onnx="LeakyRelu", since=6)
def leaky_relu(xp, x, *, alpha: float = 0.01):
    """x -> x if x >= 0 else alpha * x"""
    return _where_negative(xp, x, xp.mul(x, xp.literal(alpha, x)), x)


@op(onnx="PRelu", since=7)
def prelu(xp, x, slope):
    """x, a -> x if x >= 0 else a * x; `slope` broadcasts to x"""
    return _where_negative(xp, x, xp.mul(x, xp.expand(slope, xp.shape(x))), x)


@op(onnx="ThresholdedRelu", since=10)
def thresholded_relu(xp, x, *, alpha: float = 1.0):
    """x -> x if x > alpha else 0"""
    return xp.map(np.where, xp.map(np.greater, x, xp.literal(alpha, x)), x, xp.literal(0, x))


@op(onnx="Shrink", since=9, rounds=True)
def shrink(xp, x, *, bias: float = 0.0, lambd: float = 0.5):
    """x -> x + bias below -lambd, x - bias above lambd, else 0"""
    above = xp.map(
        np.where, xp.map(np.greater, x, xp.literal(lambd, x)), xp.sub(x, xp.literal(bias, x)), xp.literal(0, x)
    )
    return xp.map(np.where, xp.map(np.less, x, xp.literal(-lambd, x)), xp.add(x, xp.literal(bias, x)), above)


@shrink.traits.exactness
def _(numbers, below: int) -> bool:
    return False  # a fraction is taken off


@op(onnx="Clip", since=6)
def clip(xp, x, low=None, high=None):
    """x, low, high -> min(max(x, low), high)"""
    raised = x if low is None else max_(xp, x, low)
    return raised if high is None else min_(xp, raised, high)


@clip.importer
def _(call: Call) -> Node:
    x = call.arg(0)
    if call.opset >= 11:
        return clip.term(x, call.arg(1), call.arg(2))
    bounds = [constant(call.attrs[k], x.dtype) if k in call.attrs else ABSENT for k in ("min", "max")]
    return clip.term(x, *bounds)


@clip.exporter
def _(node: Node, opset: int) -> Call:
    if opset >= 11:
        return Call("Clip", node.args, {}, opset)
    bounds = {k: v for k, v in zip(("min", "max"), node.args[1:], strict=False) if v is not ABSENT}
    if any(v.op != "constant" for v in bounds.values()):
        raise Unsupported("Clip before opset 11 takes constant bounds")
    attrs = {k: float(v.attr("value").numpy().reshape(())) for k, v in bounds.items()}
    return Call("Clip", node.args[:1], attrs, opset)


@op(onnx="Sigmoid", since=6, resolution=1.0)
def sigmoid(xp, x):
    """x -> 1 / (1 + e^-x)"""
    one = xp.literal(1, real(xp, x))
    return xp.div(one, xp.add(one, xp.map(np.exp, xp.map(np.negative, x))))


@op(onnx="HardSigmoid", since=6, resolution=1.0)
def hard_sigmoid(xp, x, *, alpha: float = 0.2, beta: float = 0.5):
    """x -> max(0, min(1, alpha * x + beta))"""
    line = xp.add(xp.mul(real(xp, x), xp.literal(alpha, x)), xp.literal(beta, x))
    return xp.maximum(xp.literal(0, x), xp.map(np.minimum, xp.literal(1, x), line))


@op(onnx="HardSwish", since=7)
def hard_swish(xp, x):
    """x -> x * min(max(x + 3, 0), 6) / 6"""
    clipped = min_(xp, max_(xp, add(xp, x, xp.literal(3, x)), xp.literal(0, x)), xp.literal(6, x))
    return div(xp, mul(xp, x, clipped), xp.literal(6, x))


@hard_swish.exporter
def _(node: Node, opset: int) -> Call:
    """Write the operator before opset 14 as its ONNX function body, which ONNX Runtime also fuses
    into a convolution."""
    if opset >= 14:
        return Call("HardSwish", node.args, {}, opset)
    (x,) = node.args
    return Call("Mul", (x, hard_sigmoid.term(x, alpha=1 / 6, beta=0.5)), {}, opset)


@op(onnx="Tanh", since=6)
def tanh(xp, x):
    """x -> tanh x"""
    return xp.map(np.tanh, real(xp, x))


@op(onnx="Erf", since=9)
def erf(xp, x):
    """x -> erf x"""
    return xp.map(ERROR_FUNCTION, real(xp, x))


@op(onnx="Gelu", since=9)
def gelu(xp, x, *, approximate: str = "none"):
    """x -> x/2 * (1 + erf(x / sqrt 2)), or with `tanh` in place of erf"""
    half, one = xp.literal(0.5, x), xp.literal(1, x)
    if approximate == "none":
        inner = erf(xp, mul(xp, x, xp.literal(math.sqrt(0.5), x)))
    else:
        cube = mul(xp, mul(xp, mul(xp, x, x), x), xp.literal(0.044715, x))
        inner = tanh(xp, mul(xp, add(xp, x, cube), xp.literal(math.sqrt(2 / math.pi), x)))
    return mul(xp, mul(xp, x, half), add(xp, inner, one))


@gelu.exporter
def _(node: Node, opset: int) -> Call:
    """Write the operator before opset 20 in single precision as exporters write it; ONNX Runtime
    fuses this form into one operator, with the bias before it."""
    if opset >= 20:
        return Call("Gelu", node.args, dict(node.attrs), opset)
    (x,) = node.args
    if node.attr("approximate") != "none" or x.dtype != "float32":
        raise Unsupported(f"gelu of {x.dtype}, approximate={node.attr('approximate')}, begins at opset 20")
    half, one, root = (constant(number, x.dtype) for number in (0.5, 1.0, math.sqrt(2)))
    return Call("Mul", (mul.term(x, add.term(erf.term(div.term(x, root)), one)), half), {}, opset)


@op(onnx="Softplus", since=1)
def softplus(xp, x):
    """x -> ln(1 + e^x)"""
    small = xp.map(np.exp, xp.map(np.negative, xp.map(np.absolute, real(xp, x))))
    return xp.add(xp.maximum(x, xp.literal(0, x)), xp.map(np.log1p, small))


@op(onnx="Softsign", since=1)
def softsign(xp, x):
    """x -> x / (1 + |x|)"""
    return xp.div(x, xp.add(xp.literal(1, x), xp.map(np.absolute, x)))


@op(onnx="Elu", since=6)
def elu(xp, x, *, alpha: float = 1.0):
    """x -> x if x >= 0 else alpha * (e^x - 1)"""
    return _where_negative(xp, x, xp.mul(xp.literal(alpha, x), _exp_minus_one(xp, x)), x)


@op(onnx="Selu", since=6)
def selu(xp, x, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805):
    """x -> gamma * (x if x >= 0 else alpha * (e^x - 1))"""
    return xp.mul(xp.literal(gamma, x), elu.body(xp, x, alpha=alpha))


@op(onnx="Celu", since=12)
def celu(xp, x, *, alpha: float = 1.0):
    """x -> x if x >= 0 else alpha * (e^(x/alpha) - 1)"""
    scale, below = xp.literal(alpha, x), xp.map(np.minimum, real(xp, x), xp.literal(0, x))
    grown = xp.map(np.exp, xp.div(below, scale))
    return _where_negative(xp, x, xp.mul(scale, xp.sub(grown, xp.literal(1, x))), x)


@op(onnx="Swish", since=24)
def swish(xp, x, *, alpha: float = 1.0):
    """x -> x * sigmoid(alpha * x)"""
    return mul(xp, x, sigmoid(xp, x if alpha == 1 else mul(xp, x, xp.literal(alpha, x))))


@op(onnx="Mish", since=18)
def mish(xp, x):
    """x -> x * tanh(ln(1 + e^x))"""
    return mul(xp, x, tanh(xp, softplus(xp, x)))


def _where_negative(xp, x, yes, no):
    return xp.map(np.where, xp.map(np.less, x, xp.literal(0, x)), yes, no)


def _exp_minus_one(xp, x):
    """e^x - 1 for a negative x; the minimum keeps the unused half of a `where` finite."""
    return xp.sub(xp.map(np.exp, xp.map(np.minimum, real(xp, x), xp.literal(0, x))), xp.literal(1, x))


unary = (relu, leaky_relu, thresholded_relu, shrink, sigmoid, hard_swish, tanh, erf, gelu)
for each in (*unary, softplus, softsign, elu, selu, celu, swish, mish):
    each.example("float32[2,3]")
relu.example("float16[2,3]")
sigmoid.example("float64[2,3]")
leaky_relu.example("float32[2,3]", alpha=0.3)
prelu.example("float32[2,3,4]", "float32[3,1]")
prelu.example("float32[2,3]", "float32[1]")
prelu.example("float32[2,3]", "float32[2,3]")
thresholded_relu.example("float32[2,3]", alpha=2.0)
shrink.example("float32[2,3]", bias=0.25, lambd=1.0)
clip.example("float32[2,3]", "float32[()]", "float32[()]")
clip.example("float32[2,3]", "float32[()]")
clip.example("float32[2,3]", None, "float32[()]")
clip.example("float32[2,3]")
hard_sigmoid.example("float32[2,3]", alpha=2.0, beta=-1.0)
gelu.example("float32[2,3]", approximate="tanh")
elu.example("float32[2,3]", alpha=0.5)
selu.example("float32[2,3]", alpha=2.0, gamma=3.0)
celu.example("float32[2,3]", alpha=2.0)
celu.example("float32[2,3]", alpha=-2.0)
swish.example("float32[2,3]", alpha=1.5)

relu.laws("""
    relu(relu(x)) == relu(x)
    max(x, 0) == relu(x)  where dtype(x) in ("float32", "float64", "float16")
    relu(abs(x)) == abs(x) where is_float(x)
    max(relu(x), relu(y)) == relu(max(x, y))
    min(relu(x), c) == clip(x, 0, c)  where shape(c) == ()
""")
clip.laws("""
    clip(x, 0) == relu(x)
    min(max(x, d), c) == clip(x, d, c)  where shape(c) == () and shape(d) == ()
    clip(relu(x), 0, c) == clip(x, 0, c)
    clip(min(x, c), d, *e) == expand(clip(c, d, *e), shape=shape(x))  where value(c) <= value(d) and shape(c) == ()
    clip(max(x, c), d, e) == expand(e, shape=shape(x))  where value(c) >= value(e) and shape(c) == ()
    clip(tanh(x), d, e) == tanh(x)  where value(d) <= -1 and value(e) >= 1
    clip(sigmoid(x), d, e) == sigmoid(x)  where value(d) <= 0 and value(e) >= 1
    clip(clip(x, c, d), l, u) \
        == clip(x, clip(c, l, u), clip(d, l, u)) \
        where value(c) <= value(d) and value(l) <= value(u) and shape(c) == () and shape(d) == ()
""")
leaky_relu.laws("""
    leaky_relu(x, alpha=0.0) == relu(x)
""")
sigmoid.laws("""
    reciprocal(add(exp(neg(x)), 1)) == sigmoid(x)
    mul(x, sigmoid(mul(x, c))) == swish(x, alpha=value(c))  where is_constant(c)
""")
hard_swish.laws("""
    div(mul(x, clip(add(x, 3), 0, 6)), 6) == hard_swish(x)
    mul(x, div(clip(add(x, 3), 0, 6), 6)) == hard_swish(x)
    mul(x, clip(div(add(x, 3), 6), 0, 1)) == hard_swish(x)
""")
gelu.laws("""
    mul(mul(x, 0.5), add(erf(mul(x, 0.7071067690849304)), 1)) == gelu(x)  where dtype(x) == "float32"
    mul(x, mul(add(erf(mul(x, 0.7071067690849304)), 1), 0.5)) == gelu(x)  where dtype(x) == "float32"
    mul(mul(x, 0.5), add(tanh(mul(add(x, mul(pow(x, 3), 0.044714998453855515)), 0.7978845834732056)), 1)) \
        == gelu(x, approximate="tanh") \
        where dtype(x) == "float32"
    mul(mul(x, 0.5), add(tanh(mul(add(x, mul(mul(mul(x, x), x), 0.044714998453855515)), 0.7978845834732056)), 1)) \
        == gelu(x, approximate="tanh") \
        where dtype(x) == "float32"
""")
_FACTOR = "div(reciprocal(1.4142135381698608), 0.7071067690849304)"
"""The factor between the two forms of x / sqrt 2. In single precision it is evaluated to 1, and the
product with it is removed."""
for _half in ("mul(mul(x, 0.5), {})", "mul(x, mul({}, 0.5))", "mul(mul(x, {}), 0.5)"):
    gelu.laws(f"""
        {_half.format("add(erf(div(x, 1.4142135381698608)), 1)")} \
            == div(gelu(mul(x, {_FACTOR})), {_FACTOR}) \
            where dtype(x) == "float32"
    """)
_POSITIVE = "value(c) > 0 and shape(c) == () and is_float(x)"
"""The condition on a scale that passes through to the operators into which it folds."""
for _scale in ("mul", "div"):
    clip.laws(f"""
        {_scale}(clip(x, d, *e), c) == clip({_scale}(x, c), {_scale}(d, c), {_scale}(*e, c))  where {_POSITIVE}
    """)
    relu.laws(f"{_scale}(relu(x), c) == relu({_scale}(x, c))  where {_POSITIVE}")
    leaky_relu.laws(f"""
        {_scale}(leaky_relu(x, **a), c) \
            == leaky_relu({_scale}(x, c), **a) \
            where {_POSITIVE} and dtype(x) != "float16"  # what is below 0 may be scaled out of its range
    """)
