import numpy as np

from op_specs.arithmetic import add, mul
from op_specs.matmul import matmul
from taso_mirage.errors import IllTyped
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.terms import ABSENT, Graph, Tensor, variable
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import Ints, Maps, op


@op()
def experts(
    xp,
    x,
    first,
    shares,
    beside=None,
    last=None,
    first_bias=None,
    beside_bias=None,
    last_bias=None,
    *,
    hidden: Graph,
    columns: Maps = ((0, 1),),
    by_expert: int = 0,
    transposed: Ints = (0, 0, 0),
    block: Ints = (64, 6),
):
    """(...,t,k), (e,k,f'), (t,e), (e,k,f'), (e,f,n), (e,f'), (e,f'), (e,n) -> (t,n): the sum over
    the experts of those results whose share is not zero, times the share.

    An expert's result is `hidden` of its products of x with `first`, and with `beside` where
    `hidden` is a function of two numbers, times `last`; each product has its bias. Of each of the
    first products only some columns are read, (start, step) in `columns`: f of them. `by_expert`:
    the shares are (e,t). `transposed`: which weights are (e,n,k): first, beside, last. `block`: the
    columns that lie side by side in the prepared weights, and the rows of a tile at most, which
    changes nothing.
    """
    count, rows = xp.shape(first)[0], dim_product(xp.shape(x)[:-1])
    x = xp.reshape(x, (rows, xp.shape(x)[-1]))
    shares = xp.reshape(shares, (count, rows) if by_expert else (rows, count))
    shares = shares if by_expert else xp.transpose(shares, (1, 0))
    if last is None or len(transposed) != 3:
        raise IllTyped(f"{len(transposed)} flags of three weights, the last of which are {last}")
    first, beside, last = (_upright(xp, w, each) for w, each in zip((first, beside, last), transposed, strict=True))
    weights = [(first, first_bias), *([] if beside is None else [(beside, beside_bias)])]
    if not len(weights) == len(columns) == len(hidden.inputs):
        raise IllTyped(f"{len(columns)} ranges of columns of {len(weights)} products for {len(hidden.inputs)} numbers")
    wide = xp.shape(last)[1]
    made = [_columns(xp, _product(xp, x, w, b), *own, wide) for (w, b), own in zip(weights, columns, strict=True)]
    y = _product(xp, _function(xp, hidden, made), last, last_bias)
    shares = xp.reshape(shares, (count, rows, 1))
    chosen = xp.map(np.where, xp.map(np.equal, shares, xp.literal(0, shares)), xp.literal(0, y), mul(xp, y, shares))
    return xp.reshape(xp.sum(chosen, (0,)), (rows, xp.shape(last)[2]))


def _upright(xp, w, transposed: int):
    """(e,k,n), or (e,n,k) if `transposed`, -> (e,k,n)"""
    return xp.transpose(w, (0, 2, 1)) if transposed and w is not None else w


def _product(xp, x, w, b):
    """(t,k) or (e,t,k), (e,k,n), (e,n) -> (e,t,n)"""
    if xp.rank(w) != 3 or (b is not None and xp.shape(b) != (xp.shape(w)[0], xp.shape(w)[2])):
        raise IllTyped(f"weights {xp.shape(w)} of experts, with the bias {None if b is None else xp.shape(b)}")
    y = matmul(xp, x, w)
    return y if b is None else add(xp, y, xp.reshape(b, (xp.shape(b)[0], 1, xp.shape(b)[1])))


def _columns(xp, y, start: int, step: int, count):
    """Some columns of a product."""
    if (start, step) == (0, 1) and xp.shape(y)[2] == count:
        return y
    return xp.slice(y, 2, start, start + (count - 1) * step + 1, step)


def _function(xp, body: Graph, given):
    """The value of a function of numbers on each element of some tensors."""
    values = {ABSENT: None, **dict(zip(body.inputs, given, strict=True))}
    for node in body:
        if node not in values:
            values[node] = interpret_term(node, xp, [values[a] for a in node.args])
    return values[body.outputs[0]]


def _gated():
    """a b, a function of two numbers."""
    a, b = (variable(name, Tensor("float32", ())) for name in "ab")
    return Graph((a, b), (mul.term(a, b),))


def _squared():
    a = variable("a", Tensor("float32", ()))
    return Graph((a,), (mul.term(a, a),))


experts.example(
    "float32[4,3]",
    "float32[2,3,5]",
    "float32[4,2]",
    "float32[2,3,5]",
    "float32[2,5,3]",
    hidden=_gated(),
    columns=((0, 1), (0, 1)),
)
experts.example(
    "float32[1,4,3]",
    "float32[2,6,3]",
    "float32[2,4]",
    "float32[2,6,3]",
    "float32[2,3,5]",
    "float32[2,6]",
    "float32[2,6]",
    "float32[2,5]",
    hidden=_gated(),
    columns=((0, 2), (1, 2)),
    by_expert=1,
    transposed=(1, 1, 0),
)
experts.example("float32[4,3]", "float32[2,3,5]", "float32[4,2]", None, "float32[2,5,3]", hidden=_squared())
