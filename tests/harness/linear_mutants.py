"""Wrong linear states (`taso_mirage.meanings.linear_states`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taso_mirage.meanings.linear_states import LinearStates, LinearValue


class LateDecay(LinearStates):
    """The rows of steps before do not decay."""

    def _product(self, a: Any, b: Any) -> LinearValue | None:
        made, value = super()._product(a, b), a if isinstance(a, LinearValue) else b
        return replace(made, pairs=value.pairs) if made is not None and isinstance(value, LinearValue) else made


class EarlyMask(LinearStates):
    """A read leaves out the row of the last step."""

    def _read(self, value: LinearValue, column: Any) -> Any:
        return super()._read(replace(value, pairs=value.pairs[:-1]), column)


class OldState(LinearStates):
    """A read is of the state before the chunk."""

    def _read(self, value: LinearValue, column: Any) -> Any:
        return super()._read(replace(value, pairs=(), scale=None), column)


class Undecayed(LinearStates):
    """A read forgets the decays of the chunk."""

    def _read(self, value: LinearValue, column: Any) -> Any:
        return super()._read(replace(value, scale=None), column)


class Added(LinearStates):
    """A difference is a sum."""

    def _negative(self, x: Any) -> Any:
        return x


class Forgetful(LinearStates):
    """A sum forgets the rows of steps before."""

    def _sum(self, a: Any, b: Any) -> LinearValue | None:
        made = super()._sum(a, b)
        return None if made is None else replace(made, pairs=made.pairs[-1:])


class Doubled(LinearStates):
    """The state at the end of a chunk has decays twice."""

    def total(self, x: Any) -> Any:
        found = super().total(x)
        return self.base.mul(found, x.scale) if isinstance(x, LinearValue) and x.state and x.scale else found


MUTANTS = (LateDecay, EarlyMask, OldState, Undecayed, Added, Forgetful, Doubled)
