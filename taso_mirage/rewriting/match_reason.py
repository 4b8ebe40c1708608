"""The reason why an equation does not match: of several failures, the one of the most successful
attempt."""

from __future__ import annotations

from typing import Any


class MatchReason:
    """Keeps one reason while a matcher tries terms; a failed guard says more than an operator that
    differs."""

    __slots__ = ("_at_guard", "_kept", "text")

    def __init__(self, text: str = "", kept: bool = True) -> None:
        self.text = text
        self._kept = kept
        self._at_guard = False

    def note(self, reason: str, *values: Any) -> None:
        """Keep a reason, unless a guard was reached before.

        The values are formatted only if the reason is kept.
        """
        if self._kept and not self._at_guard:
            self.text = reason.format(*values)

    def overrule(self, reason: str, *values: Any, guard: bool = False) -> None:
        """Store a reason in any case. `guard`: the terms matched and the guard failed."""
        if self._kept:
            self.text = reason.format(*values)
            self._at_guard = guard


UNASKED = MatchReason(kept=False)
"""A collector that stores no reason, for callers that need none."""
