"""Linear attention with a state for each head, defined as a loop over the positions."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations
from math import prod

import numpy as np

from op_specs.arithmetic import add, exp, mul, sub
from op_specs.core import item
from op_specs.expand import expand
from op_specs.matmul import matmul
from op_specs.reshape import reshape, squeeze, unsqueeze
from op_specs.scan import scan
from op_specs.transpose import transpose
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Graph, Literal, Node, Tensor, constant, numpy_dtype, variable
from taso_mirage.operators.ops import Call, op

RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""The rules of the update: whether the state decays, and whether only the difference to the value
that the state has for the key is written."""


@op(onnx="LinearAttention", domain="com.microsoft", since=1, stays=True)
def linear_attention(
    xp,
    query,
    key,
    value,
    state=None,
    decay=None,
    beta=None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    update_rule: str = "gated_delta",
    scale: float = 0.0,
):
    """query, key: (b, t, h k), value: (b, t, h v), state: (b, h, k, v), decay: (b, t, h) or
    (b, t, h k), beta: (b, t, h) -> (b, t, h v), and the state after the last position

    In each position s' = e^decay s; s = s' + key (beta (value - key s')); the result is scale *
    query s. The rule `update_rule` says which of decay and beta there are; without beta, value is
    written. A scale of 0 stands for 1 / sqrt k.
    """
    gated, delta = _rule(update_rule, decay, beta)
    heads = q_num_heads
    if kv_num_heads != heads:
        raise IllTyped(f"{heads} heads of queries and {kv_num_heads} of keys")
    sequences = [_by_position(xp, x, heads) for x in (query, key, value)]
    sequences += [_by_position(xp, x, heads) for x, there in ((decay, gated), (beta, delta)) if there]
    first = _first(xp, sequences, state)
    types = tuple(Tensor(xp.dtype(x), xp.shape(x)) for x in (first, *sequences))
    width = types[1].shape[3]
    body = _body(types, gated, delta, scale or float(width) ** -0.5)
    found = scan(xp, first, *sequences, body=body, states=1, sequences=len(sequences))
    last, every = (item(xp, found, index=i) for i in range(2))
    return _packed(xp, every), last


def _rule(update_rule: str, decay, beta) -> tuple[bool, bool]:
    if update_rule not in RULES:
        raise IllTyped(f"the rule {update_rule}")
    gated, delta = RULES[update_rule]
    if gated != (decay is not None) or delta != (beta is not None):
        raise IllTyped(f"the rule {update_rule} with a decay or a beta too many, or too few")
    return gated, delta


def _by_position(xp, x, heads: int):
    """(b, t, h k) -> (t, b, h, k)"""
    batch, steps, width = xp.shape(x)
    if width % heads:
        raise IllTyped(f"{width} elements for {heads} heads")
    return transpose(xp, reshape(xp, x, shape=(batch, steps, heads, width // heads)), perm=(1, 0, 2, 3))


def _packed(xp, x):
    """(t, b, h, k) -> (b, t, h k)"""
    steps, batch, heads, width = xp.shape(x)
    return reshape(xp, transpose(xp, x, perm=(1, 0, 2, 3)), shape=(batch, steps, heads * width))


def _first(xp, sequences, state):
    _, key, value, *gates = (xp.shape(x) for x in sequences)
    shape = (*key[1:], value[3])
    wrong = any(s[3] not in (1, key[3]) for s in gates[:1]) or any(s[3] != 1 for s in gates[1:])
    if xp.shape(sequences[0]) != key or any(s[:3] != key[:3] for s in (value, *gates)) or wrong:
        raise IllTyped("operands of different heads or positions")
    if state is None:
        return expand(xp, xp.constant(Literal.of(np.zeros((), numpy_dtype(xp.dtype(sequences[0]))))), shape=shape)
    if xp.shape(state) != shape:
        raise IllTyped(f"a state of the shape {xp.shape(state)} in the place of one of {shape}")
    return state


@lru_cache(maxsize=64)
def _body(types: tuple[Tensor, ...], gated: bool, delta: bool, scale: float) -> Graph:
    """One position: its outputs are the new state, and the result."""
    kinds = (types[0], *(Tensor(t.dtype, t.shape[1:]) for t in types[1:]))
    leaves = tuple(variable(f"x{i}", type) for i, type in enumerate(kinds))
    state, query, key, value, *gates = leaves
    old = mul.term(state, unsqueeze.term(exp.term(gates[0]), axes=(3,))) if gated else state
    if delta:
        kept = squeeze.term(matmul.term(unsqueeze.term(key, axes=(2,)), old), axes=(2,))
        value = mul.term(sub.term(value, kept), gates[-1])
    new = add.term(old, mul.term(unsqueeze.term(key, axes=(3,)), unsqueeze.term(value, axes=(2,))))
    found = squeeze.term(matmul.term(unsqueeze.term(query, axes=(2,)), new), axes=(2,))
    return Graph(leaves, (new, found if scale == 1 else mul.term(found, constant(scale, found.dtype))))


@linear_attention.importer
def _(call: Call) -> Node:
    attrs = {k: v for k, v in call.attrs.items() if k != "chunk_size"}
    if attrs.pop("state_window", 0):
        raise Unsupported("LinearAttention with several states")
    return linear_attention.term(*call.args, **attrs)


@linear_attention.traits.looping
def _(states: Sequence[Node], sequences: Sequence[Node]) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    if len(states) != 1 or states[0].tensor.rank != 4:
        return
    batch, heads, width, depth = states[0].shape
    wanted = {"query": [(width,)], "key": [(width,)], "value": [(depth,)], "decay": [(), (width,)], "beta": [()]}
    for rule, (gated, delta) in RULES.items():
        names = [n for n in wanted if not ((n == "decay" and not gated) or (n == "beta" and not delta))]
        for chosen in permutations(sequences) if len(names) == len(sequences) else ():
            given = dict(zip(names, chosen, strict=True))
            if all(any(_fits(x, (batch, heads, *rest)) for rest in wanted[n]) for n, x in given.items()):
                yield from _operator(states[0], given, rule)


def _fits(sequence: Node, shape: Sequence[int]) -> bool:
    """Whether the elements of a sequence have a shape, up to dims of 1."""
    return [n for n in sequence.shape[1:] if n != 1] == [n for n in shape if n != 1]


def _operator(state: Node, given: dict[str, Node], rule: str) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """The operator over sequences in these places, if the decay is an exponential."""
    batch, heads, _, depth = state.shape
    if "decay" in given:
        decay = given["decay"]
        if len(decay.args) != 1 or decay is not exp.term(decay.args[0]):
            return
        given = {**given, "decay": decay.args[0]}
    packed = {name: _flat(x, batch) for name, x in given.items()}
    attrs = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": rule, "scale": 1.0}
    operands = [packed.get(n) for n in ("query", "key", "value", "", "decay", "beta")]
    operands[3] = state
    made = linear_attention.term(*operands, **attrs)
    steps = given["value"].shape[0]
    apart = reshape.term(item.term(made, index=0), shape=(batch, steps, heads, depth))
    yield made, (item.term(made, index=1), transpose.term(apart, perm=(1, 0, 2, 3)))


def _flat(x: Node, batch: int) -> Node:
    """(t, b, ...) -> (b, t, h k)"""
    flat = reshape.term(x, shape=(x.shape[0], batch, prod(x.shape[1:]) // batch))
    return transpose.term(flat, perm=(1, 0, 2))


for _rule_name, (_gated, _delta) in RULES.items():
    _gates = "float32[2,4,2]" if _gated else None, "float32[2,4,2]" if _delta else None
    _sequences = "float32[2,4,6]", "float32[2,4,6]", "float32[2,4,8]"
    _heads = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": _rule_name}
    linear_attention.example(*_sequences, "float32[2,2,3,4]", *_gates, scale=1.0, **_heads)
    linear_attention.example(*_sequences, None, *_gates, **_heads)
linear_attention.example(
    *("float32[1,4,6]", "float32[1,4,6]", "float32[1,4,8]", None, "float32[1,4,6]"),
    **{"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated"},
)
