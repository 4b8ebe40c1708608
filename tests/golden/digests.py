"""The digests of the kept texts, and which texts have another one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

KEPT = Path(__file__).parent / "digests.json"


def digest(text: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def differences(found: Mapping[str, str]) -> list[str]:
    """A line for each text that is new, missing or another one than the one that was kept."""
    kept: dict[str, str] = json.loads(KEPT.read_text())
    lines = [f"missing: {name}" for name in kept if name not in found]
    for name, text in sorted(found.items()):
        if name not in kept:
            lines.append(f"new: {name}")
        elif kept[name] != digest(text):
            lines.append(f"changed: {name}")
    return lines
