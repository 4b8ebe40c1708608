"""Elementwise functions of results, of which each form takes any as its epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.operators.ops import term

CHANNELS, RESULTS, IMAGES = "channels", "results", "images"
"""Other operands: a number for each channel, for each result, and for each channel of an image."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a result and of other tensors of these kinds."""

    made: Callable[..., Node]
    others: tuple[str, ...] = ()

    def body(self, dtype: str = "float32") -> Graph:
        """The function of numbers."""
        leaves = [variable(name, Tensor(dtype, (1,))) for name in ("y", *(f"v{i}" for i, _ in enumerate(self.others)))]
        return Graph(tuple(leaves), (self.made(*leaves),))


def number(value: float, like: Node) -> Node:
    return constant(value, like.dtype)


def silu(y: Node) -> Node:
    return term("mul", y, term("sigmoid", y))


def erf_gelu(y: Node) -> Node:
    """Gelu as exporters write it before opset 20."""
    inner = term("add", term("erf", term("div", y, number(2**0.5, y))), number(1.0, y))
    return term("mul", term("mul", y, inner), number(0.5, y))


def gated(y: Node, s: Node) -> Node:
    return term("mul", silu(y), s)


FUNCTIONS = {
    "silu": Function(silu),
    "swish": Function(lambda y: term("swish", y)),
    "quick gelu": Function(lambda y: term("quick_gelu", y)),
    "gelu": Function(lambda y: term("gelu", y)),
    "gelu by erf": Function(erf_gelu),
    "gelu by tanh": Function(lambda y: term("gelu", y, approximate="tanh")),
    "relu": Function(lambda y: term("relu", y)),
    "relu6": Function(lambda y: term("clip", y, number(0.0, y), number(6.0, y))),
    "only below": Function(lambda y: term("clip", y, None, number(0.5, y))),
    "leaky relu": Function(lambda y: term("leaky_relu", y, alpha=0.1)),
    "hard swish": Function(lambda y: term("hard_swish", y)),
    "hard sigmoid": Function(lambda y: term("hard_sigmoid", y)),
    "tanh": Function(lambda y: term("tanh", y)),
    "mish": Function(lambda y: term("mish", y)),
    "elu": Function(lambda y: term("elu", y)),
    "selu": Function(lambda y: term("selu", y)),
    "softplus": Function(lambda y: term("softplus", y)),
    "chosen": Function(lambda y: term("where", term("greater", y, number(0.0, y)), y, term("exp", y))),
    "bias": Function(lambda y, b: term("add", y, b), (CHANNELS,)),
    "scale and shift": Function(lambda y, s, t: term("add", term("mul", y, s), t), (CHANNELS, CHANNELS)),
    "sum, then silu": Function(lambda y, z: silu(term("add", z, y)), (RESULTS,)),
    "silu, then sum": Function(lambda y, z: term("add", silu(y), z), (RESULTS,)),
    "excited": Function(gated, (IMAGES,)),
    "all": Function(
        lambda y, b, s, z: term("gelu", term("add", term("mul", term("add", y, b), s), z)),
        (CHANNELS, IMAGES, RESULTS),
    ),
}


def wrong_bodies(body: Graph) -> dict[str, Graph]:
    """Other functions than `silu(y + b) + z` of the same operands: another function, without the
    bias, the sum at another place, the other operand."""
    y, b, z = body.inputs
    made = {
        "another function": term("add", term("gelu", term("add", y, b)), z),
        "no bias": term("add", silu(y), z),
        "no sum": silu(term("add", y, b)),
        "the sum before": silu(term("add", term("add", y, b), z)),
        "the bias after": term("add", term("add", silu(y), b), z),
        "exchanged": term("add", silu(term("add", y, z)), b),
        "nothing": y,
    }
    return {name: Graph(body.inputs, (out,)) for name, out in made.items()}


def right_body(dtype: str = "float32") -> Graph:
    """silu(y + b) + z."""
    return Function(lambda y, b, z: term("add", silu(term("add", y, b)), z), (CHANNELS, RESULTS)).body(dtype)


def leaves(kinds: Sequence[str], shapes: dict[str, tuple[int, ...]], dtype: str = "float32") -> list[Node]:
    """Other operands of these kinds."""
    return [variable(f"{kind}{i}", Tensor(dtype, shapes[kind])) for i, kind in enumerate(kinds)]
