"""Random graphs of small models, as strategies of hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from small_models import F, w, x

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Node, Tensor, constant, variable
from taso_mirage.operators.ops import get, term
from taso_mirage.prove.rules.fuzz import ILLEGAL
from taso_mirage.search.search import SearchState

UNARY = ("relu", "neg", "tanh", "sigmoid", "abs", "exp")
BINARY = ("add", "sub", "mul", "matmul", "max")


@st.composite
def graphs(draw: Any) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Well-typed graphs over (4,4) matrices, with weights, shared terms and several outputs."""
    inputs = (x(4, 4, name="a"), x(4, 4, name="b"))
    pool: list[Node] = [*inputs, w(4, 4, name="u"), w(4, 4, name="v"), constant(1.0, F), constant(0.5, F)]
    for _ in range(draw(st.integers(2, 12))):
        kind = draw(st.integers(0, 3))
        first, second = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        if kind == 0:
            new = get(draw(st.sampled_from(UNARY))).term(first)
        elif kind == 1 and first.shape == (4, 4):
            new = term("transpose", first, perm=(1, 0))
        else:
            op = draw(st.sampled_from(BINARY))
            if op == "matmul" and not first.shape == second.shape == (4, 4):
                continue
            new = get(op).term(first, second)
        pool.append(new)
    outputs = tuple(dict.fromkeys(n for n in pool[-3:] if n.args)) or (term("relu", inputs[0]),)
    return inputs, outputs


def _reduced(draw: Any, node: Node) -> Node:
    op = draw(st.sampled_from(("reduce_sum", "reduce_mean", "reduce_max")))
    return term(op, node, axes=(_axis(draw, node),), keepdims=draw(st.integers(0, 1)))


def _sliced(draw: Any, node: Node) -> Node:
    axis, start = _axis(draw, node), draw(st.integers(0, 2))
    stop = draw(st.integers(start + 1, 6))
    return term("slice", node, starts=(start,), ends=(min(stop, int(node.shape[axis])),), axes=(axis,), steps=(1,))


def _axis(draw: Any, node: Node) -> int:
    """An axis whose size is fixed, where there is one."""
    fixed = [i for i, n in enumerate(node.shape) if isinstance(n, int)]
    return draw(st.sampled_from(fixed or [0]))


def _product(draw: Any, node: Node) -> Node:
    return term("matmul", node, _weight(draw, int(node.shape[-1]), draw(st.integers(1, 4))))


def _weight(draw: Any, *shape: int) -> Node:
    """One of two weights of a shape."""
    return w(*shape, name=f"w{draw(st.integers(0, 1))}_{'x'.join(map(str, shape))}")


def _convolved(draw: Any, node: Node) -> Node:
    size, group = draw(st.sampled_from((1, 3))), draw(st.sampled_from((1, 1, 2)))
    kernel = _weight(draw, draw(st.sampled_from((2, 4))), int(node.shape[1]) // group, size, size)
    pads = draw(st.sampled_from((0, size // 2)))
    return term("conv", node, kernel, strides=(1, 1), pads=(pads,) * 4, dilations=(1, 1), group=group)


def _pooled(draw: Any, node: Node) -> Node:
    common = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    if draw(st.booleans()):
        return term("max_pool", node, **common)
    return term("average_pool", node, **common, extra=(0, 0), count_include_pad=draw(st.integers(0, 1)))


ONE: tuple[Callable[[Any, Node], Node], ...] = (
    lambda draw, a: term(draw(st.sampled_from(("relu", "neg", "tanh", "sigmoid", "abs", "erf", "gelu"))), a),
    lambda draw, a: term("transpose", a, perm=tuple(draw(st.permutations(range(len(a.shape)))))),
    lambda draw, a: term("softmax", a, axis=_axis(draw, a)),
    lambda draw, a: term("reshape", a, shape=(*a.shape[:-2], a.shape[-2] * a.shape[-1])),
    lambda draw, a: term("unsqueeze", a, axes=(draw(st.integers(0, len(a.shape))),)),
    *(_reduced, _sliced, _product, _convolved, _pooled),
)
TWO = ("add", "sub", "mul", "div", "max", "min", "matmul", "concat")


def _grow(draw: Any, pool: list[Node], steps: int) -> None:
    """More terms over those that are there, each with a chance of one that was just made; a term
    that does not fit is left out."""
    for _ in range(steps):
        first, second = (draw(st.sampled_from(pool[-draw(st.integers(1, len(pool))) :])) for _ in range(2))
        try:
            if draw(st.booleans()):
                new = draw(st.sampled_from(ONE))(draw, first)
            elif (op := draw(st.sampled_from(TWO))) == "concat":
                new = term("concat", first, second, axis=_axis(draw, first))
            else:
                new = get(op).term(first, second)
        except (*ILLEGAL, AttributeError):
            continue
        dims = new.shape if isinstance(new.type, Tensor) else ()
        if new.args and all(not isinstance(d, int) or 0 < d < 20 for d in dims) and len(dims) <= 5:
            pool.append(new)


def _outputs(pool: Sequence[Node]) -> SearchState:
    """Up to three terms that no other of the pool is made of."""
    used = {a for n in pool for a in n.args}
    return tuple(n for n in dict.fromkeys(pool) if n not in used and n.args and isinstance(n.type, Tensor))[-3:]


@st.composite
def dynamic(draw: Any) -> tuple[None, SearchState]:
    """Terms over inputs whose first dim has a name for a size."""
    n = symbol("n")
    a, b = (variable(name, Tensor(F, (n, 4))) for name in "ab")
    deep = variable("c", Tensor(F, (n, 2, 4)))
    pool: list[Node] = [a, b, deep, w(4, 4), w(4, name="v"), constant(0.5, F)]
    _grow(draw, pool, draw(st.integers(3, 10)))
    outputs = _outputs(pool)
    assume(outputs)
    return None, outputs
