"""Arithmetic, element by element: the functions that the algebra of sketches knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np

from taso_mirage.meanings.base import Scalar
from taso_mirage.meanings.field import Residues
from taso_mirage.mugraph.abstract import Algebra
from taso_mirage.mugraph.atoms import ROOT_LEVELS, AbstractExpression
from taso_mirage.mugraph.derivations.kind import (
    BodyWriter,
    DerivationEdge,
    DerivationKind,
    DerivationValues,
    Written,
    halved,
    largest_operand,
)
from taso_mirage.mugraph.derivations.overflow import (
    NO_DEGREE,
    Degree,
    OverflowEffect,
    Signs,
    joined,
    product_signs,
    total,
)
from taso_mirage.operators.ops import term


class Elementwise(DerivationKind):
    """`scalar` is its name in definitions of operators, `name` the operator that bodies have."""

    __slots__ = ()
    scalar: ClassVar[Scalar]
    units: ClassVar[tuple[float, ...]] = ()
    """Constants with which it needs none: the product with 1."""

    sketch: ClassVar[Callable[..., AbstractExpression]]
    """(algebra, *normal forms of the operands) -> the normal form."""

    def rest(self, place: int, value: float) -> tuple[Unary, ...]:
        """The operators that remain for the other operand where the one at `place` is this
        constant."""
        return ()


class Binary(Elementwise):
    """An operator of two operands."""

    __slots__ = ()
    harm: ClassVar[str | None] = ""

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        return values.xp.map(self.scalar, *values.aligned(edge.args))

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        a, b = (body.aligned(x, made) for x in edge.args)
        return body.written(made, term(self.name, a, b))


class Unary(Elementwise):
    """An operator of one operand."""

    __slots__ = ()
    harm: ClassVar[str | None] = ""
    as_written: ClassVar[bool] = False
    """Whether a closure has it where the goal is written with it: its normal form does not show
    it."""

    def derived(self, algebra: Algebra, p: AbstractExpression) -> AbstractExpression | None:
        """The normal form; None where a closure does without."""
        return self.sketch(algebra, p)

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        return values.xp.map(self.scalar, values.value(edge.args[0]))

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        value, axes = body.taken(edge.args[0])
        return term(self.name, value), axes


# ---------------------------------------------------------------- of two operands


class Mul(Binary):
    __slots__ = ()
    name, scalar, units, multiplies = "mul", np.multiply, (1.0, -1.0), True

    sketch = staticmethod(Algebra.mul)

    def rest(self, place: int, value: float) -> tuple[Unary, ...]:
        return (NEG,) if value < 0 else ()

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return total(below[0], below[1])

    def signs(self, edge: DerivationEdge, below: Sequence[OverflowEffect]) -> Signs:
        if len(set(edge.args)) == 1:
            return True, below[0].floor and not below[0].grows
        return product_signs(below)


class Add(Binary):
    __slots__ = ()
    name, scalar, units = "add", np.add, (0.0,)

    sketch = staticmethod(Algebra.add)

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return below[0] if below[0] == below[1] else None

    def signs(self, edge: DerivationEdge, below: Sequence[OverflowEffect]) -> Signs:
        positive = all(v.positive for v in below)
        return positive, positive and any(v.floor for v in below)


class Sub(Binary):
    __slots__ = ()
    name, scalar, units = "sub", np.subtract, (0.0,)

    sketch = staticmethod(Algebra.sub)

    def rest(self, place: int, value: float) -> tuple[Unary, ...]:
        return (NEG,) if place == 0 else ()

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return below[0] if below[0] == below[1] else None

    def bounded(self, edge: DerivationEdge, chosen: Mapping[int, DerivationEdge]) -> bool:
        """A difference from a maximum of the same, as a model takes it."""
        of, labels = largest_operand(edge.args[1], chosen)
        return bool(labels) and of == edge.args[0]


class Div(Binary):
    __slots__ = ()
    name, scalar, units, multiplies, slow = "div", np.divide, (1.0, -1.0), True, True

    sketch = staticmethod(Algebra.div)

    def rest(self, place: int, value: float) -> tuple[Unary, ...]:
        return ((RECIPROCAL_KIND,) if place == 0 else ()) + ((NEG,) if value < 0 else ())

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        return values.divided(*edge.args)

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return total(below[0], below[1], -1)

    def denominator(self, edge: DerivationEdge) -> int | None:
        return edge.args[1]

    def grows(self, below: Sequence[OverflowEffect]) -> bool:
        return any(v.grows for v in below) and not (not below[0].grows and below[1].floor)

    def signs(self, edge: DerivationEdge, below: Sequence[OverflowEffect]) -> Signs:
        return all(v.positive for v in below), False


# ---------------------------------------------------------------- of one operand


class Exp(Unary):
    """Relative to a maximum where a kernel keeps one, else as the model writes it."""

    __slots__ = ()
    name, scalar, exponential, slow, harm = "exp", np.exp, True, True, None

    sketch = staticmethod(Algebra.exp)

    def write(self, made: int, edge: DerivationEdge, body: BodyWriter) -> Written:
        lowered = body.lowered(made, edge.args[0])
        return Unary.write(self, made, edge, body) if lowered is None else body.written(made, term("exp", lowered))

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return None if of is None or any(below) else {of: Fraction(1)}

    def bare(
        self, edge: DerivationEdge, below: Sequence[OverflowEffect], number: float | None, bounded: bool
    ) -> OverflowEffect:
        ill = self.ill(below) if any(v.grows for v in below) else ""
        return OverflowEffect(True, not bounded, True, False, joined(below, False, (True, False), ill).ill)


class Sqrt(Unary):
    __slots__ = ()
    name, scalar, keeps_signs, slow = "sqrt", np.sqrt, True, True

    sketch = staticmethod(Algebra.sqrt)

    def derived(self, algebra: Algebra, p: AbstractExpression) -> AbstractExpression | None:
        return algebra.sqrt(p) if algebra.roots(p) < ROOT_LEVELS - 1 else None

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return halved(below[0])


class Neg(Unary):
    __slots__ = ()
    name, scalar, as_written = "neg", np.negative, True

    sketch = staticmethod(lambda algebra, p: algebra.mul(p, algebra.number(-1)))

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return below[0]


class Reciprocal(Unary):
    __slots__ = ()
    name, scalar, as_written, slow = "reciprocal", np.reciprocal, True, True

    sketch = staticmethod(Algebra.inverse)

    def evaluate(self, edge: DerivationEdge, values: DerivationValues) -> Residues:
        return values.inverted(edge.args[0])

    def degree(self, below: Sequence[Degree], of: int | None) -> Degree | None:
        return total(NO_DEGREE, below[0], -1)

    def grows(self, below: Sequence[OverflowEffect]) -> bool:
        return below[0].grows and not below[0].floor

    def signs(self, edge: DerivationEdge, below: Sequence[OverflowEffect]) -> Signs:
        return below[0].positive, False


class Square(Unary):
    """The product of its operand with itself: as such it is derived."""

    __slots__ = ()
    name, scalar = "square", np.square

    sketch = staticmethod(lambda algebra, p: algebra.mul(p, p))


MUL, ADD_KIND, SUB, DIV = Mul(), Add(), Sub(), Div()
EXP_KIND, SQRT_KIND, NEG, RECIPROCAL_KIND, SQUARE = Exp(), Sqrt(), Neg(), Reciprocal(), Square()
UNARY: tuple[Unary, ...] = (EXP_KIND, SQRT_KIND, NEG, RECIPROCAL_KIND)
ARITHMETIC: tuple[Elementwise, ...] = (MUL, ADD_KIND, SUB, DIV, *UNARY, SQUARE)
