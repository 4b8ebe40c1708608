"""The effort of an optimization (`--effort`): the values of options that the user does not set, and
the extent of the searches and the check."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taso_mirage.errors import InvalidOption
from taso_mirage.system.wording import option


@dataclass(frozen=True, slots=True)
class Effort:
    """`options`: values of options of `optimize` by name. `states` of each part of a model are
    expanded by its search, and it ends after `patience` of them without a cheaper one, or after
    `matches` in all parts together. `draws`: sets of inputs of the check, at most."""

    options: Mapping[str, Any] = field(default_factory=dict)
    states: int = 400
    patience: int = 32
    matches: float = math.inf
    draws: float = math.inf


USUAL_EFFORT = Effort()
QUICK = Effort({"measure": False, "partial": False, "kernels": "off"}, 8, 4, 2000, 1)
"""An effort whose search ends by counts, and by no clock except the end of the budget, so the
result is the same every time."""
THOROUGH = Effort({"budget": 600.0, "strategy": "both"}, states=4000, patience=320)
EFFORTS: Mapping[str, Effort] = {"quick": QUICK, "default": USUAL_EFFORT, "thorough": THOROUGH}


def effort_named(name: str) -> Effort:
    """The effort of a name; InvalidOption for another one."""
    if name not in EFFORTS:
        raise InvalidOption(f"{option('effort', name[:80])} is not known; it is one of {', '.join(EFFORTS)}")
    return EFFORTS[name]
