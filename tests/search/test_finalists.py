"""The order of equal states of a part."""

from __future__ import annotations

import pytest

from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.ops import term
from taso_mirage.search import finalists

A, B = (variable(name, Tensor("float32", (4, 4))) for name in "ab")


def of(name: str, *operands: Node) -> tuple[Node]:
    return (term(name, *operands),)


def test_states_are_in_the_order_of_their_changes_and_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is made only of states that are reached and that no number tells apart."""
    texts, given = list[tuple[Node, ...]](), finalists.text_of
    monkeypatch.setattr(finalists, "text_of", lambda state: (texts.append(state), given(state))[1])
    first = of("add", A, B)
    turned, kept = of("add", B, A), of("neg", *first)
    small = [of("mul", A, B), of("mul", B, A), of("neg", A)]
    large = [of("neg", *of(name, A, B)) for name in ("sub", "mul", "div")]
    states = finalists.by_change([*large, kept, *small, turned], first)
    assert next(states) == turned
    assert texts == []
    assert [next(states) for _ in small] == sorted(small, key=given)
    assert {*texts} == {*small}
    assert next(states) == kept
    assert {*texts} == {*small}
    assert [*states] == sorted(large, key=given)
