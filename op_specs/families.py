"""Families of operators for the laws of the layout operators; this module defines no operators."""

ELEMENTWISE = ("relu", "sigmoid", "tanh", "erf", "gelu", "exp", "sqrt", "neg", "leaky_relu", "softplus", "hard_swish")
"""Functions of one operand, element by element; their attributes, if any, are captured by `**a`."""
PAIRWISE = ("add", "sub", "mul", "div")
"""Functions of two operands, element by element, with broadcasting."""


def each(names: tuple[str, ...], law: str) -> str:
    """`law` for every operator, which it calls `f`."""
    return "\n".join(law.replace("f(", f"{name}(") for name in names)
