"""What a verification gives in place of its evidence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a program is not accepted; false, where evidence is true."""

    reason: str

    def __bool__(self) -> bool:
        return False
