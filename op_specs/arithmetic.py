"""Elementwise arithmetic."""

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from taso_mirage.errors import IllTyped
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node, is_float, numpy_dtype
from taso_mirage.meanings.functions import TRUNCATED_DIVIDE
from taso_mirage.operators.ops import Call, op


@op(onnx="Add", since=7, commutative=True, sums=True)
def add(xp, a, b):
    """x, y -> x + y"""
    return xp.add(a, b)


@op(onnx="Sub", since=7, lowering=Lowering.SUBTRACT)
def sub(xp, a, b):
    """x, y -> x - y"""
    return xp.sub(a, b)


@op(onnx="Mul", since=7, commutative=True, lowering=Lowering.MULTIPLY)
def mul(xp, a, b):
    """x, y -> x * y"""
    return xp.mul(a, b)


@op(onnx="Div", since=7, truncates=True)
def div(xp, a, b):
    """x, y -> x / y; integers round towards zero"""
    if is_float(xp.dtype(a)):
        return xp.div(a, b)
    unsigned = numpy_dtype(xp.dtype(a)).kind == "u"
    return xp.map(np.floor_divide if unsigned else TRUNCATED_DIVIDE, a, b)


@div.traits.exactness
def _divides(numbers, below: int) -> bool:
    return 0 not in numbers[1] and max(max(map(abs, each)) for each in numbers) < below


@op(onnx="Neg", since=6)
def neg(xp, x):
    """x -> -x"""
    return xp.map(np.negative, x)


@op(onnx="Abs", since=6)
def abs_(xp, x):
    """x -> |x|"""
    return xp.map(np.absolute, x)


@op(onnx="Sign", since=9)
def sign(xp, x):
    """x -> -1, 0 or 1"""
    return xp.map(np.sign, x)


def real(xp, x):
    """x itself; IllTyped unless it holds floats"""
    if not is_float(xp.dtype(x)):
        raise IllTyped(f"an operand of dtype {xp.dtype(x)}; only floats are taken")
    return x


@op(onnx="Reciprocal", since=6, truncates=True)
def reciprocal(xp, x):
    """x -> 1 / x"""
    return xp.div(xp.literal(1, x), real(xp, x))


@op(onnx="Sqrt", since=6, truncates=True)
def sqrt(xp, x):
    """x -> sqrt(x)"""
    return xp.map(np.sqrt, real(xp, x))


@op(onnx="Exp", since=6)
def exp(xp, x):
    """x -> e^x"""
    return xp.map(np.exp, real(xp, x))


@op(onnx="Log", since=6)
def log(xp, x):
    """x -> ln x"""
    return xp.map(np.log, real(xp, x))


@op(onnx="Pow", since=7, truncates=True)
def pow_(xp, x, y):
    """x, y -> x^y in the dtype of x"""
    result = xp.map(np.power, x, y)
    return result if xp.dtype(y) == xp.dtype(x) else xp.cast(result, xp.dtype(x))


@pow_.traits.exactness
def _(numbers, below: int) -> bool:
    largest = [max(map(abs, each)) for each in numbers]
    return min(numbers[1]) >= 0 and product_below([largest[0]] * min(largest[1], 64), below) < below


def product_below(numbers: Sequence[int], enough: int) -> int:
    """The product of sizes without zeros; the computation ends once it reaches `enough`."""
    found = 1
    for number in numbers:
        found *= max(number, 1)
        if found >= enough:
            break
    return found


@op(onnx="Mod", since=10, truncates=True)
def mod(xp, a, b, *, fmod: int = 0):
    """x, y -> the remainder, with the sign of y; of x if fmod"""
    return xp.map(np.fmod if fmod else np.remainder, a, b)


mod.traits.exactness(_divides)


@op(onnx="Floor", since=6)
def floor(xp, x):
    """x -> the largest integer <= x"""
    return xp.map(np.floor, real(xp, x))


@op(onnx="Ceil", since=6)
def ceil(xp, x):
    """x -> the smallest integer >= x"""
    return xp.map(np.ceil, real(xp, x))


@op(onnx="Round", since=11)
def round_(xp, x):
    """x -> the nearest integer, halves to even"""
    return xp.map(np.rint, real(xp, x))


@op(onnx="Max", since=8, commutative=True, lowering=Lowering.MAXIMUM)
def max_(xp, a, b):
    """x, y -> the larger"""
    return xp.maximum(a, b)


@op(onnx="Min", since=8, commutative=True)
def min_(xp, a, b):
    """x, y -> the smaller"""
    return xp.map(np.minimum, a, b)


@op(onnx="Sum", since=8)
def sum_(xp, *xs):
    """x, y, ... -> x + y + ...; read as binary sums"""
    return reduce(lambda a, b: add(xp, a, b), xs)


@op(onnx="Mean", since=8, truncates=True)
def mean(xp, *xs):
    """x, y, ... -> (x + y + ...) / n"""
    total = sum_.body(xp, *xs)
    return div(xp, total, xp.literal(len(xs), total))


def _folded(binary: Callable[..., Node]) -> Callable[[Call], Node]:
    return lambda call: reduce(binary, call.args)


max_.importer(_folded(max_.term))
min_.importer(_folded(min_.term))
sum_.importer(_folded(add.term))

for each in (add, sub, mul, div, max_, min_):
    each.example("float32[2,3]", "float32[2,3]")
    each.example("float32[2,1,3]", "float32[4,1]")
    each.example("float32[2,3]", "float32[()]")
    each.example("int64[2,3]", "int64[3]")
    each.example("float16[5]", "float16[5]")
div.example([7, -7, 7, -7], "int64[4]")
for each in (neg, abs_, sign):
    each.example("float32[2,3]")
    each.example("int32[4]")
for each in (reciprocal, sqrt, exp, log, floor, ceil, round_):
    each.example("float32[2,3]")
    each.example("float64[3]")
pow_.example("float32[2,3]", "float32[()]")
pow_.example("float32[2,3]", [2, 3, 0])
mod.example([7, -7, 7, -7], "int64[4]")
mod.example([7, -7, 7, -7], "int64[4]", fmod=1)
mod.example("float32[2,3]", "float32[3]", fmod=1)
sum_.example("float32[2,3]", "float32[3]", "float32[2,1]")
mean.example("float32[2,3]", "float32[3]", "float32[2,1]")

add.laws("""
    add(x, 0) == x
    add(neg(x), neg(y)) == neg(add(x, y))
    add(add(x, c), d) == add(x, add(c, d))  where is_weight(c) and is_weight(d)
    add(sub(x, c), d) == add(x, sub(d, c))  where is_weight(c) and is_weight(d)
    add(sub(c, x), d) == sub(add(c, d), x)  where is_weight(c) and is_weight(d)
    add(mul(x, z), mul(y, z)) == mul(add(x, y), z)
    add(div(x, z), div(y, z)) == div(add(x, y), z)
    add(x, x) == mul(x, 2)
    add(mul(x, c), x) == mul(x, add(c, 1))  where is_weight(c)
    add(x, expand(0, shape=s)) == x
""")
sub.laws("""
    sub(x, 0) == x
    sub(0, x) == neg(x)
    sub(x, neg(y)) == add(x, y)
    sub(x, c) == add(x, neg(c))  where is_weight(c)
    sub(c, sub(d, x)) == add(sub(c, d), x)  where is_weight(c) and is_weight(d)
    sub(mul(x, z), mul(y, z)) == mul(sub(x, y), z)
    sub(div(x, z), div(y, z)) == div(sub(x, y), z)
    sub(x, x) == expand(0, shape=shape(x))
    sub(x, expand(0, shape=s)) == x
""")
mul.laws("""
    mul(x, 1) == x
    mul(x, -1) == neg(x)
    mul(neg(x), neg(y)) == mul(x, y)
    mul(neg(x), c) == mul(x, neg(c))  where is_weight(c)
    mul(mul(x, c), d) == mul(x, mul(c, d))  where is_weight(c) and is_weight(d)
    mul(div(x, c), d) == mul(x, div(d, c))  where is_weight(c) and is_weight(d)
    mul(div(c, x), d) == div(mul(c, d), x)  where is_weight(c) and is_weight(d)
    mul(add(x, c), d) == add(mul(x, d), mul(c, d))  where is_weight(c) and is_weight(d)
    mul(x, 0) == expand(0, shape=shape(x))
    mul(x, expand(1, shape=s)) == x
""")
div.laws("""
    div(x, 1) == x
    div(x, -1) == neg(x)
    div(neg(x), neg(y)) == div(x, y)
    div(x, c) == mul(x, reciprocal(c))  where is_weight(c)
    div(div(x, c), d) == div(x, mul(c, d))  where is_weight(c) and is_weight(d)
    div(mul(x, c), d) == mul(x, div(c, d))  where is_weight(c) and is_weight(d)
""")
neg.laws("""
    neg(mul(x, c)) == mul(x, neg(c))  where is_weight(c)
    neg(div(x, c)) == div(x, neg(c))  where is_weight(c)
""")
abs_.laws("""
    abs(abs(x)) == abs(x)
    abs(neg(x)) == abs(x)
    abs(relu(x)) == relu(x)
""")
reciprocal.laws("""
    reciprocal(neg(x)) == neg(reciprocal(x))
""")
sqrt.laws("""
    div(x, sqrt(y)) == mul(x, reciprocal(sqrt(y)))
""")
pow_.laws("""
    pow(x, 1) == x
    pow(x, 3) == mul(mul(x, x), x)
""")
max_.laws("""
    max(x, x) == x
    max(max(x, c), d) == max(x, max(c, d))  where is_weight(c) and is_weight(d)
    max(neg(x), neg(y)) == neg(min(x, y)) where is_float(x)
    max(max(x, y), y) == max(x, y)
""")
min_.laws("""
    min(x, x) == x
    min(min(x, c), d) == min(x, min(c, d))  where is_weight(c) and is_weight(d)
    min(neg(x), neg(y)) == neg(max(x, y)) where is_float(x)
    min(min(x, y), y) == min(x, y)
""")
for _op in (max_, min_):  # an operator that both operands share moves to the one that it folds into
    _op.laws(f"""
        mul({_op.name}(x, c), d) \
            == {_op.name}(mul(x, d), mul(c, d)) \
            where value(d) > 0 and shape(d) == () and is_weight(c) and is_float(x)
        add({_op.name}(x, c), d) == {_op.name}(add(x, d), add(c, d))  where is_weight(c) and is_weight(d) and is_float(x)
        sub({_op.name}(x, c), d) == {_op.name}(sub(x, d), sub(c, d))  where is_weight(c) and is_weight(d) and is_float(x)
    """)
