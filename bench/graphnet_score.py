"""GraphNet's scores of compilers: the speed over eager mode as a geometric mean, in which wrong and
missing results count.

Definitions of GraphNet's benchmark (arXiv 2510.24035; `graph_net_bench` of its repository). At a
tolerance t, outputs are right if |a - b| <= 10^(u t) + 10^(v t) |b|, with v and u by their dtype;
other dtypes must be equal. Below t = 1 a graph counts with its speed if all outputs are right, and
else with the penalty b. From t = 1 on, ES(t) counts a graph that is right at t = 1 with its speed,
another with 1 once its error is permitted (inaccurate results from 1 on, failures from 3 on), and
with b before that. The speed of a slow graph has the power 1 + p; GraphNet's defaults, p = 0 and
b = 0.1, are used here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

EXPONENTS = {
    "float16": (3 / 5, 1.0),
    "bfloat16": (1.796 / 5, 1.0),
    "float32": (5.886 / 5, 1.0),
    "float64": (7 / 5, 7 / 5),
}
"""The powers v (relative) and u (absolute) of the tolerance by dtype."""
TOLERANCES = range(-10, 5)
PENALTY = 0.1
INACCURATE, FAILED = 1, 3
"""The tolerances at which inaccurate results, and failures, are permitted."""


def close(found: Any, eager: Any, t: int) -> bool:
    """Whether an output is right at a tolerance."""
    if found.shape != eager.shape or found.dtype != eager.dtype:
        return False
    if eager.dtype.name not in EXPONENTS:
        return bool(np.array_equal(found, eager))
    relative, absolute = (10.0 ** (power * t) for power in EXPONENTS[eager.dtype.name])
    return bool(np.allclose(np.float64(found), np.float64(eager), rtol=relative, atol=absolute))


def least_tolerance(found: Sequence[Any], eager: Sequence[Any]) -> int | None:
    """The least tolerance, up to 1, at which all outputs are right."""
    if len(found) != len(eager):
        return None
    pairs = list(zip(found, eager, strict=True))
    return next((t for t in TOLERANCES if t <= INACCURATE and all(close(a, b, t) for a, b in pairs)), None)


def score(rows: Sequence[Mapping[str, Any]], whose: str, t: int) -> float:
    """ES(t) of a compiler over the rows of `graphnet_times.py`."""
    return float(np.exp(np.mean([np.log(_counted(row, whose, t)) for row in rows])))


def _counted(row: Mapping[str, Any], whose: str, t: int) -> float:
    if whose not in row["medians"]:
        return 1.0 if t >= FAILED else PENALTY
    least = row["tolerances"].get(whose)
    if least is not None and min(t, INACCURATE) >= least:
        return float(row["medians"]["eager"] / row["medians"][whose])
    return 1.0 if t >= INACCURATE else PENALTY
