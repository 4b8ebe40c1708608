"""Elementwise functions around the operators of forms; this module defines no operators.

An epilogue is a graph of elementwise operators, `body`: its first input stands for an element of
the result, and the others for the elements of other tensors that belong to it. These tensors
broadcast to the result. A prologue is the same for an operand of the operator.
"""

from op_specs.activations import relu
from op_specs.arithmetic import add, mul
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import ABSENT, Graph, Tensor, constant, variable
from taso_mirage.operators.interpret import interpret_term


def finished(xp, y, b, z, others, body: Graph | None, axis: int, rectified: int = 0):
    """A result `y`, plus one number `b` for each index of its axis, plus `z` of the same shape,
    then relu, then the epilogue; b and z may be None."""
    if b is not None:
        if xp.shape(b) != (xp.shape(y)[axis],):
            raise IllTyped(f"{xp.shape(b)} added along axis {axis} of {xp.shape(y)}")
        y = add(xp, y, reshape(xp, b, shape=(*xp.shape(b), *(1,) * (xp.rank(y) - 1 - axis % xp.rank(y)))))
    if z is not None:
        if xp.shape(z) != xp.shape(y):
            raise IllTyped(f"{xp.shape(z)} added to results of {xp.shape(y)}")
        y = add(xp, y, z)
    return followed(xp, relu(xp, y) if rectified else y, others, body)


def followed(xp, y, others, body: Graph | None):
    """A result `y`, and the value of `body` on it and on other tensors; without `body`, y."""
    if body is None:
        if others:
            raise IllTyped(f"{len(others)} tensors after a result of {xp.shape(y)}, without a function of them")
        return y
    if len(body.inputs) != 1 + len(others) or len(body.outputs) != 1:
        raise IllTyped(f"{len(others)} tensors and a result, for a body of {len(body.inputs)}")
    values = {ABSENT: None, **dict(zip(body.inputs, (y, *others), strict=True))}
    for node in body:
        if node not in values:
            values[node] = interpret_term(node, xp, [values[a] for a in node.args])
    found = values[body.outputs[0]]
    if xp.shape(found) != xp.shape(y) or xp.dtype(found) != xp.dtype(y):
        raise IllTyped(f"what follows a result of {xp.shape(y)} is {xp.dtype(found)}{xp.shape(found)}")
    return found


def divided(others, body: Graph | None):
    """The tensors that the epilogue of an operator reads, and the remaining ones, which its
    prologue reads."""
    count = 0 if body is None else len(body.inputs) - 1
    return others[:count], others[count:]


def squared(*shape):
    """y + b, squared."""
    y, b = variable("y", Tensor("float32", (1, *shape))), variable("b", Tensor("float32", (1, shape[0], 1, 1)))
    added = add.term(y, b)
    return Graph((y, b), (mul.term(added, added),))


def raised(dtype: str = "float32"):
    """(y + 1) b, a function of two numbers."""
    y, b = variable("y", Tensor(dtype, ())), variable("b", Tensor(dtype, ()))
    return Graph((y, b), (mul.term(add.term(y, constant(1.0, dtype)), b),))


def nothing_follows(*shape):
    y = variable("y", Tensor("float32", (1, *shape)))
    return Graph((y,), (y,))
