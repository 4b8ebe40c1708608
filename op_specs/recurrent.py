"""ONNX's recurrent layers, defined as loops over the steps of a cell."""

from functools import lru_cache

import numpy as np

from op_specs.activations import relu, sigmoid, softplus, softsign, tanh
from op_specs.arithmetic import add, mul, sub
from op_specs.core import item
from op_specs.expand import expand
from op_specs.matmul import matmul
from op_specs.reshape import squeeze, unsqueeze
from op_specs.scan import scan
from op_specs.slice import slice_
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT, Graph, Literal, Node, Tensor, constant, numpy_dtype, variable
from taso_mirage.operators.ops import Call, op

ACTIVATIONS = {f.onnx: f for f in (sigmoid, tanh, relu, softsign, softplus)}
"""The activations of a cell, by their names in ONNX: those without parameters."""


@op(onnx="LSTM", since=7, stays=True)
def lstm(xp, x, w, r, b=None, h=None, c=None, *, activations: str = "Sigmoid Tanh Tanh", backward: int = 0):
    """x: (steps, n, i), w: (1, 4 m, i), r: (1, 4 m, m), b: (1, 8 m), h, c: (1, n, m) -> the hidden
    states of all steps (steps, 1, n, m), and h and c after the last step, (1, n, m)

    The rows of w, r and both halves of b belong to the input, output and forget gates and to the
    cell. `activations`: those of the gates, of the cell, and of the output. `backward`: 1 where the
    last element is the first step's; each state stands at its element's place.
    """
    return _layer(xp, _lstm, 4, (x, w, r, b), (h, c), activations, backward)


@op(onnx="GRU", since=7, stays=True)
def gru(
    xp, x, w, r, b=None, h=None, *, activations: str = "Sigmoid Tanh", linear_before_reset: int = 0, backward: int = 0
):
    """x: (steps, n, i), w: (1, 3 m, i), r: (1, 3 m, m), b: (1, 6 m), h: (1, n, m) -> the hidden
    states of all steps (steps, 1, n, m), and the last one (1, n, m)

    The rows of w, r and both halves of b belong to the update and reset gates and to the hidden
    one. `linear_before_reset`: 1 where the reset gate multiplies the product of the state with r
    plus its bias; it multiplies the state otherwise. `activations`: those of both gates, and of
    the hidden one.
    """
    return _layer(xp, _gru_linear if linear_before_reset else _gru, 3, (x, w, r, b), (h,), activations, backward)


@op(onnx="RNN", since=7, stays=True)
def rnn(xp, x, w, r, b=None, h=None, *, activations: str = "Tanh", backward: int = 0):
    """x: (steps, n, i), w: (1, m, i), r: (1, m, m), b: (1, 2 m), h: (1, n, m) -> the hidden states
    of all steps (steps, 1, n, m), and the last one (1, n, m)"""
    return _layer(xp, _rnn, 1, (x, w, r, b), (h,), activations, backward)


def _layer(xp, cell, gates: int, operands, first, activations: str, backward: int):
    """The loop of a cell over the elements of x, with the weights of each gate apart."""
    x, w, r, b = operands
    _fit(xp, gates, operands, first)
    if unknown := set(activations.split()) - ACTIVATIONS.keys():
        raise IllTyped(f"the activation {min(unknown)}")
    size = xp.shape(r)[2]
    states = [_first(xp, x, each, size) for each in first]
    weights = [_rows(xp, each, i, size, 1) for each in (w, r) for i in range(gates)]
    weights += [] if b is None else [_rows(xp, b, i, size, 0) for i in range(2 * gates)]
    types = tuple(Tensor(xp.dtype(each), xp.shape(each)) for each in (*states, x, *weights))
    body = _body(cell, gates, tuple(activations.split()), len(states), types)
    found = scan(xp, *states, x, *weights, body=body, states=len(states), sequences=1, backward=backward)
    *last, every = [item(xp, found, index=i) for i in range(len(states) + 1)]
    return unsqueeze(xp, every, axes=(1,)), *(unsqueeze(xp, each, axes=(0,)) for each in last)


def _fit(xp, gates: int, operands, first):
    """Whether the operands have the shapes of one direction."""
    x, w, r, b = operands
    _, batch, width = xp.shape(x)
    size = xp.shape(r)[2]
    wanted = [(w, (1, gates * size, width)), (r, (1, gates * size, size)), (b, (1, 2 * gates * size))]
    for each, shape in (*wanted, *((state, (1, batch, size)) for state in first)):
        if each is not None and tuple(xp.shape(each)) != shape:
            raise IllTyped(f"an operand of the shape {xp.shape(each)} in the place of one of {shape}")


def _first(xp, x, given, size: int):
    """A state before the first step: zeros where there is none."""
    if given is not None:
        return squeeze(xp, given, axes=(0,))
    zero = xp.constant(Literal.of(np.zeros((), numpy_dtype(xp.dtype(x)))))
    return expand(xp, zero, shape=(xp.shape(x)[1], size))


def _rows(xp, x, i: int, size: int, matrix: int):
    """The rows of gate `i`, as columns where they are a matrix."""
    rows = slice_(xp, squeeze(xp, x, axes=(0,)), starts=(i * size,), ends=((i + 1) * size,), axes=(0,), steps=(1,))
    return transpose(xp, rows, perm=(1, 0)) if matrix else rows


@lru_cache(maxsize=64)
def _body(cell, gates: int, activations: tuple[str, ...], states: int, types: tuple[Tensor, ...]) -> Graph:
    """One step; its outputs are the new states, and the new hidden state."""
    kinds = [*types[:states], Tensor(types[states].dtype, types[states].shape[1:]), *types[states + 1 :]]
    leaves = tuple(variable(f"x{i}", type) for i, type in enumerate(kinds))
    x, weights = leaves[states], leaves[states + 1 :]
    sums = [weights[i::gates] for i in range(gates)]
    new = cell([ACTIVATIONS[name].term for name in activations], x, leaves[:states], sums)
    return Graph(leaves, (*new, new[0]))


def _sum(x, h, weights):
    """x w + h r, and both biases."""
    w, r, *biases = weights
    total = add.term(matmul.term(x, w), matmul.term(h, r))
    return add.term(total, add.term(*biases)) if biases else total


def _lstm(functions, x, states, weights):
    f, g, k = functions
    h, c = states
    i, o, forget = (f(_sum(x, h, each)) for each in weights[:3])
    new = add.term(mul.term(forget, c), mul.term(i, g(_sum(x, h, weights[3]))))
    return mul.term(o, k(new)), new


def _mixed(z, hidden, h):
    """(1 - z) hidden + z h"""
    return (add.term(mul.term(sub.term(constant(1, h.dtype), z), hidden), mul.term(z, h)),)


def _gru(functions, x, states, weights):
    f, g = functions
    (h,) = states
    z, reset = (f(_sum(x, h, each)) for each in weights[:2])
    return _mixed(z, g(_sum(x, mul.term(reset, h), weights[2])), h)


def _gru_linear(functions, x, states, weights):
    f, g = functions
    (h,) = states
    z, reset = (f(_sum(x, h, each)) for each in weights[:2])
    w, r, *biases = weights[2]
    given, kept = matmul.term(x, w), matmul.term(h, r)
    if biases:
        given, kept = add.term(given, biases[0]), add.term(kept, biases[1])
    return _mixed(z, g(add.term(given, mul.term(reset, kept))), h)


def _rnn(functions, x, states, weights):
    (f,), (h,) = functions, states
    return (f(_sum(x, h, weights[0])),)


def _read(operator, counts):
    """Read a node of one direction, whose steps all have the same length."""

    def read(call: Call) -> Node:
        attrs = dict(call.attrs)
        direction, size = attrs.pop("direction", "forward"), attrs.pop("hidden_size", None)
        if direction == "bidirectional" or attrs.pop("layout", 0) or call.arg(4) is not ABSENT:
            raise Unsupported(f"{call.op_type} of both directions, with the batch first, or with lengths")
        given = attrs.pop("activations", None)
        names = operator.attributes["activations"][1] if given is None else " ".join(given)
        if names.split() != [n for n in names.split() if n in ACTIVATIONS] or len(names.split()) != counts:
            raise Unsupported(f"{call.op_type} with the activations {names}")
        if not attrs.pop("input_forget", 0) == 0 or call.arg(7) is not ABSENT:
            raise Unsupported(f"{call.op_type} with coupled gates, or with peepholes")
        made = operator.term(
            *call.args[:4], *call.args[5:7], activations=names, backward=int(direction == "reverse"), **attrs
        )
        if size is not None and made.args[2].shape[2] != size:
            raise Unsupported(f"{call.op_type} of {size} hidden elements with weights of {made.args[2].shape[2]}")
        return made

    return read


def _write(node, opset: int) -> Call:
    operator = {lstm.name: lstm, gru.name: gru, rnn.name: rnn}[node.op]
    args = [*node.args, *(ABSENT,) * (4 - len(node.args))]
    args.insert(4, ABSENT)
    while args[-1] is ABSENT:
        args.pop()
    attrs = {"hidden_size": node.args[2].shape[2]}
    if node.attr("activations") != operator.attributes["activations"][1]:
        attrs["activations"] = tuple(node.attr("activations").split())
    if node.attr("backward"):
        attrs["direction"] = "reverse"
    if "linear_before_reset" in dict(node.attrs):
        attrs["linear_before_reset"] = node.attr("linear_before_reset")
    return Call(operator.onnx, tuple(args), attrs, opset)


for _operator, _count in ((lstm, 3), (gru, 2), (rnn, 1)):
    _operator.importer(_read(_operator, _count))
    _operator.exporter(_write)
    _gates = {"lstm": 4, "gru": 3, "rnn": 1}[_operator.name]
    _weights = f"float32[1,{2 * _gates},3]", f"float32[1,{2 * _gates},2]", f"float32[1,{4 * _gates}]"
    _first_states = ("float32[1,2,2]",) * (2 if _operator is lstm else 1)
    _operator.example("float32[4,2,3]", *_weights, *_first_states)
    _operator.example("float32[4,2,3]", *_weights[:2], None, *_first_states, backward=1)
    _operator.example("float32[4,2,3]", *_weights)
gru.example("float32[4,2,3]", "float32[1,6,3]", "float32[1,6,2]", "float32[1,12]", linear_before_reset=1)
gru.example("float32[4,2,3]", "float32[1,6,3]", "float32[1,6,2]", activations="Softsign Relu", linear_before_reset=1)
lstm.example("float32[4,2,3]", "float32[1,8,3]", "float32[1,8,2]", activations="Softplus Relu Softsign", backward=1)
rnn.example("float32[4,2,3]", "float32[1,2,3]", "float32[1,2,2]", activations="Relu", backward=1)
