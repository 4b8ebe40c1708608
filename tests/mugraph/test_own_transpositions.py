"""Weights that a model transposes itself, beside those that are stored transposed for a kernel."""

from __future__ import annotations

import named_models

from taso_mirage.mugraph.arranged import with_arranged
from taso_mirage.operators.ops import term


def test_a_transposition_of_the_model_is_no_new_weight() -> None:
    """A certificate without its values would not lead to a file that stores the result."""
    w = named_models.w("w", 24, 16)
    turned = term("transpose", w, perm=(1, 0))
    for x, y, names in (("x", turned, {"w"}), ("z", w, {"w", "turned_w"})):
        data = named_models.x(x, 64, y.shape[0])
        made, by_term = with_arranged(named_models.model(term("matmul", data, y)), [turned])
        assert {*made.weights} == names
        assert [*by_term] == [turned] * (len(names) - 1)
