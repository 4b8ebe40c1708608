"""Layers with operators that the runtime fuses, and their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from small_models import F, model, w

from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import Tensor, topological, variable
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term

FUSED = "SkipLayerNormalization"


def layers(count: int = 3, seen: bool = True) -> Model:
    """Sums with a norm each, as a transformer has them; the sum is used by the next one, too, where
    it is `seen`."""
    x = variable("x", Tensor(F, (2, 16, 64)))
    state = x
    for i in range(count):
        total = term("add", state, term("tanh", state))
        norm = term("layer_norm", total, w(64, name=f"g{i}"), w(64, name=f"b{i}"), axis=2)
        state = term("add", term("sqrt", norm), total) if seen else term("sqrt", norm)
    return model((x,), (state,))


def values(made: Model, outputs: Sequence[Any], weights: Any) -> list[Any]:
    inputs = random_inputs(made, 0)
    leaves = {n: REALS.load(inputs[n.attr("name")]) for n in topological(outputs) if n.op == "input"}
    leaves |= {n: REALS.load(weights[n.attr("name")].numpy()) for n in topological(outputs) if n.op == "weight"}
    found = interpret(outputs, REALS, leaves)
    return [found[o] for o in outputs]
