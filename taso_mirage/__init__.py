"""A superoptimizer for ONNX models: proved substitutions, partial equivalence and fused kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taso_mirage.version import __version__ as __version__

if TYPE_CHECKING:
    from taso_mirage.dispatch import optimize
    from taso_mirage.mugraph.graph import new_graph
    from taso_mirage.mugraph.search import superoptimize
    from taso_mirage.runtime.register import register
    from taso_mirage.targets.packaging import session

__all__ = ["RuleSet", "new_graph", "optimize", "register", "rules", "session", "superoptimize"]

_PLACES = {
    "RuleSet": "search.rulesets",
    "new_graph": "mugraph.graph",
    "optimize": "dispatch",
    "register": "runtime.register",
    "rules": "search.rulesets",
    "session": "targets.packaging",
    "superoptimize": "mugraph.search",
}


def __getattr__(name: str) -> Any:
    """Import a name of the Python API when it is first used, so that `--help` answers at once."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    """The names of the Python API."""
    return sorted([*__all__, "__version__"])
