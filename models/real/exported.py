"""Exports with seeded random weights: small forms of each, and some at their real size."""

from __future__ import annotations

from models.real.known import Known

EXPORTED: tuple[Known, ...] = ()
