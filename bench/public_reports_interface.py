"""Interfaces that several tools change, without a number of a report."""

from __future__ import annotations

from collections.abc import Mapping

from public_text import Builder, text

REPORTS: Mapping[str, Builder] = {
    # An input that no output depends on.
    "an unused input": text("g (float[2,3] x, float[4] unused) => (float[2,3] y) { y = Relu(x) }"),
    # An input with a default that a caller may replace.
    "a default": text("g (float[2,3] x, float[3] scale = {1.0, 1.0, 1.0}) => (float[2,3] y) { y = Mul(x, scale) }"),
}
