"""Lazy tensors of a step: factors of a state that are the same for a whole sum leave its product,
so the state itself is the operand, and no copy of it is written."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import numpy as np

from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning, factors_of, varying_axes
from taso_mirage.emit.cpu.lazy_tensors import BufferSizes, CppBuffer, LoopConstant, LoopValue, LoopView, base_value
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.meanings.base import contraction


class StepMeaning(LazyMeaning):
    """k (d s) is (k s) d where the sum is not over an axis of d, else (k d) s where k has all axes
    of d, for a state or an element s in memory."""

    def contract(self, equation: str, a: LoopValue, b: LoopValue) -> LoopValue:
        pair, letters = [a, b], contraction(equation, len(a.shape), len(b.shape))
        sizes: dict[str, Dim] = {}
        for own, x in zip(letters, pair, strict=False):
            sizes |= {c: n for c, n in zip(own, x.shape, strict=True) if n != 1 or c not in sizes}
        for side in sorted((0, 1), key=lambda i: -usual_size(pair[i].count)):
            large, others = _in_memory(pair[side])
            seen = {letters[side][i] for x in others for i in varying_axes(x, pair[side].shape)}
            to = next((own for own in (letters[2], letters[1 - side]) if seen <= set(own)), None)
            if large is None or to is None:
                continue
            pair[side], shape = large, tuple([sizes[c] for c in to])
            moved = [_moved(x, letters[side], to, shape) for x in others]
            if to is letters[2]:
                return reduce(partial(self.map, np.multiply), moved, self.contract(equation, *pair))
            pair[1 - side] = reduce(partial(self.map, np.multiply), moved, pair[1 - side])
            break
        return super().contract(equation, *pair)


def _in_memory(value: LoopValue) -> tuple[LoopValue | None, list[LoopValue]]:
    """The only factor of a value that has all of its elements, if that lies in memory, and the
    others."""
    wide = {i for i, n in enumerate(value.shape) if n != 1}
    factors = list(factors_of(value))
    large = [x for x in factors if varying_axes(x, value.shape) >= wide]
    others = [x for x in factors if x not in large]
    plain = all(isinstance(x, (LoopView, LoopConstant)) for x in others)
    if not others or not plain or len(large) != 1 or not isinstance(base_value(large[0]), CppBuffer):
        return None, []
    return large[0], others


def _moved(value: LoopValue, letters: str, to: str, shape: BufferSizes) -> LoopValue:
    """A factor of an operand as one of a tensor with other axes."""
    if not isinstance(value, LoopView):
        return value
    axes = tuple([(c, tuple([(to.index(letters[i]), k) for i, k in terms])) for c, terms in value.axes])
    return replace(value, shape=shape, axes=axes)
