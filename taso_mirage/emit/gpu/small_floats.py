"""Floats of 8 bits that a block loads: unchanged if the GPU supports them (sm_89 and newer), else
converted bit by bit to half precision, which is exact.

A program takes them as bytes, and checks the support of the hardware when it is compiled. The
readers of such a tile accept both.
"""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.statements import Expression, ExpressionLike, select, sum_of, tl, v
from taso_mirage.ir.mugraph import LoopPhase

SMALL_FLOATS = {"float8_e4m3fn": ("float8e4nv", "halves_of_e4m3"), "float8_e5m2": ("float8e5", "halves_of_e5m2")}
"""Triton's names, and the functions that make halves of their bits."""
CONVERSIONS = '''
@tl.core.builtin
def has_small_floats(_semantic=None):
    """Whether the GPU that is compiled for has floats of 8 bits."""
    return tl.constexpr("fp8e4nv" in _semantic.builder.options.supported_fp8_dtypes)


@triton.jit
def halves_of_e4m3(x):
    """Bits of e4m3 as halves: an exponent is 8 less there than where its bits are set."""
    bits = x.to(tl.uint16)
    halves = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), halves).to(tl.float16)


@triton.jit
def halves_of_e5m2(x):
    """Bits of e5m2 as halves, whose first half they are."""
    return (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
'''


def loaded(
    lines: Lines,
    stage: LoopPhase,
    name: str,
    dtype: str,
    at: Sequence[Expression],
    *masks: Expression,
    fill: ExpressionLike = 0,
    **hint: str,
) -> str:
    """A tile of the argument `name` at some offsets, with `fill` where a mask does not hold, which
    is 0 for floats of 8 bits."""
    if dtype not in SMALL_FLOATS:
        return lines.let(stage, f"{name}_tile", tl.load(sum_of([name, *at]), *masks, other=fill, **hint))
    known, halves = SMALL_FLOATS[dtype]
    there = v.has_small_floats()
    pointer = select(v[name].to(tl.pointer_type(tl[known])), there, name)
    pointer = v[lines.let(LoopPhase.INVARIANT, f"{name}_{known}", pointer)]
    tile = lines.let(stage, f"{name}_tile", tl.load(sum_of([pointer, *at]), *masks, **hint))
    return lines.let(stage, f"{name}_floats", select(tile, there, v[halves](tile)))
