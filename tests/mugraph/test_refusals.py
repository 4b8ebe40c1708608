"""Each refusal of a goal names the operator, its shapes and what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from moved_goals import goal, part
from mugraphs import leaf

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Node, constant
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.ops import term

X, Y, ROWS = leaf("x", "float32", 4, 8), leaf("y", "float32", 4, 8), leaf("rows", "int64", 3)
HOT = term("relu", X)
DIAGONAL = term("einsum", leaf("square", "float32", 6, 6), leaf("v", "float32", 6), equation="ii,i->i")

REFUSED: dict[str, tuple[Sequence[Node], str, str]] = {
    "fold": (
        [term("reduce_prod", HOT, axes=(1,))],
        "reduce_prod(float32[4, 8]) -> float32[4, 1]",
        "a fold of multiply",
    ),
    "reshape": ([term("reshape", leaf("z", "float32", 4, 6), shape=(3, 8))], "reshape(float32[4, 6])", "parts of 3"),
    "conversion": (
        [term("mul", term("cast", term("cast", X, to="int64"), to="float32"), Y)],
        "cast(float32[4, 8]) -> int64[4, 8]",
        "a conversion from float32 to int64",
    ),
    "part of merged dims": (
        [part(term("reshape", HOT, shape=(32,)), 0, 3, 9)],
        "slice(float32[32]) -> float32[6]",
        "reshape float32[32] merges dims",
    ),
    "reflection": (
        [term("pad", HOT, pads=(0, 1, 0, 1), mode="reflect")],
        "pad(float32[4, 8]) -> float32[4, 10]",
        "a pad of mode reflect",
    ),
    "computed rows": (
        [term("gather", HOT, ROWS, axis=0)],
        "gather(float32[4, 8], int64[3]) -> float32[3, 8]",
        "computed rows (relu)",
    ),
    "picked elements": (
        [term("gather_elements", HOT, leaf("picks", "int64", 4, 2), axis=1)],
        "gather_elements(float32[4, 8], int64[4, 2]) -> float32[4, 2]",
        "computed rows (relu)",
    ),
    "rows of several axes": (
        [term("relu", term("gather_nd", X, leaf("places", "int64", 3, 2)))],
        "gather_nd(float32[4, 8], int64[3, 2]) -> float32[3]",
        "gather_nd float32[3] has no labels",
    ),
    "folded updates": (
        [term("scatter_nd", X, leaf("places", "int64", 2, 1), part(HOT, 0, 0, 2), reduction="add")],
        "scatter_nd(float32[4, 8], int64[2, 1], float32[2, 8]) -> float32[4, 8]",
        "moves elements between axes",
    ),
    "integers": (
        [term("mul", X, term("cast", leaf("n", "int64", 4, 8), to="float32"))],
        "cast(int64[4, 8]) -> float32[4, 8]",
        "int64",
    ),
    "doubles": ([term("exp", leaf("d", "float64", 4, 8))], "exp(float64[4, 8])", "d is float64"),
    "a diagonal": ([DIAGONAL], "einsum(float32[6, 6], float32[6])", "met twice|diagonal"),
    "no dependence": ([term("div", X, X)], "div(float32[4, 8], float32[4, 8]) -> float32[4, 8]", "is a function of"),
    "a constant": (
        [HOT, constant(np.float32(2))],
        "relu(float32[4, 8]) -> float32[4, 8] and constant() -> float32[]",
        "no input",
    ),
}


def refusal(outputs: Sequence[Node]) -> str:
    with pytest.raises(Unsupported) as raised:
        superoptimize(goal(outputs), best=1, device=CPU_DEVICE, budget=5)
    return str(raised.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_operator_and_its_shapes(name: str) -> None:
    outputs, operator, missing = REFUSED[name]
    text = refusal(outputs)
    assert text.startswith(operator), text
    assert re.search(missing if "|" in missing else re.escape(missing), text.removeprefix(operator)), text
    assert "\n" not in text


def test_sums_of_integers_on_a_cpu_name_the_product() -> None:
    numbers = [leaf(name, "int8", 4, 4) for name in "ab"]
    made = term("mul", term("cast", term("matmul_integer", *numbers), to="float32"), leaf("scale", "float32", 4, 4))
    assert re.match(r"mul\(float32\[4, 4\].* sums of integers on CPU", refusal([made]))
