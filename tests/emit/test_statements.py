"""Programs as values: parentheses, indentation and prefixes are a printer's."""

import ast

import pytest

from taso_mirage.emit.statements import (
    GLUON,
    TRITON,
    Expression,
    Let,
    Parameter,
    ProgramFunction,
    Return,
    add,
    every,
    group,
    let,
    loop,
    mentioned,
    select,
    sum_of,
    tl,
    v,
    when,
    within,
)

PRINTED = {
    "a + b * c": v.a + v.b * v.c,
    "(a + b) * c": (v.a + v.b) * v.c,
    "a - (b - c)": v.a - (v.b - v.c),
    "a - b - c": v.a - v.b - v.c,
    "a // 4 % 3": v.a // 4 % 3,
    "a // (b % 4)": v.a // (v.b % 4),
    "1.0 / (x * 2)": 1.0 / (v.x * 2),
    "(a >= 0) & (a < 7) & b[:, None]": every([*within(v.a, 7), v.b[:, None]]),
    "a & 1 == 0": (v.a & 1).equals(0),
    "(a == b) == c": v.a.equals(v.b).equals(v.c),
    "-(a + b) * 2": -(v.a + v.b) * 2,
    "(a)": group(v.a),
    "x.to(tl.float16, bitcast=True)": v.x.to(tl.float16, bitcast=True),
    "(a + b)[None, :]": (v.a + v.b)[None, :],
    "tl.load(p + a)": tl.load(v.p + v.a),
    "tl.load(p, mask=a & b, other=0.0)": tl.load(v.p, v.a, v.b),
    "tl.permute(x, (1, 0))": tl.permute(v.x, (1, 0)),
    "tl.reshape(x, [2, n])": tl.reshape(v.x, [2, v.n]),
    "(a if b else c) + 1": select(v.a, v.b, v.c) + 1,
    "a + b + c": sum_of([v.a, "b", v.c]),
}


@pytest.mark.parametrize("text", PRINTED)
def test_expressions_have_the_parentheses_that_they_need(text: str) -> None:
    made = PRINTED[text]
    assert str(made) == text
    assert GLUON.expression(made) == text.replace("tl.", "gl.")


def test_a_part_is_printed_once() -> None:
    """A sum is a chain of pairs: printing each part twice would take 2^100 steps."""
    assert str(sum_of(f"a{i}" for i in range(100))) == " + ".join(f"a{i}" for i in range(100))


BODY = (
    let("at", tl.program_id(0) % 4, "a block"),
    loop("t", tl.range(0, v.n, num_stages="STAGES"), [add("acc", v.t), when("FIRST", let("acc", 0))]),
    when(
        v.at.equals(0),
        tl.store(v.p, v.acc, v.at < 3),
        otherwise=[when(v.at > 2, (tl.debug_barrier()), otherwise=[let("acc", 1)])],
        why="one block",
    ),
    Let("LAYOUT", tl.SliceLayout(0, "X"), type="constexpr"),
    Return(v.acc),
)
TEXT = """@triton.jit(noinline=True)
def kernel(p, n, STAGES: tl.constexpr, FIRST: tl.constexpr = False):
    \"\"\"Nothing of use.\"\"\"
    at = tl.program_id(0) % 4  # a block
    for t in tl.range(0, n, num_stages=STAGES):
        acc += t
        if FIRST:
            acc = 0
    if at == 0:  # one block
        tl.store(p, acc, mask=at < 3)
    elif at > 2:
        tl.debug_barrier()
    else:
        acc = 1
    LAYOUT: tl.constexpr = tl.SliceLayout(0, X)
    return acc
"""


def test_a_function_in_both_languages() -> None:
    given = ("p", "n", Parameter("STAGES"), Parameter("FIRST", "False"))
    made = ProgramFunction("kernel", given, BODY, "(noinline=True)", "Nothing of use.")
    assert TRITON.function(made) == TEXT
    assert GLUON.function(made) == TEXT.replace("tl.", "gl.").replace("triton", "gluon")
    ast.parse(TEXT)


def test_the_names_of_a_statement_are_those_of_its_parts() -> None:
    found = {word for each in BODY for word in mentioned(each)}
    assert {"at", "acc", "n", "p", "STAGES", "FIRST", "X", "t"} <= found | {"t"}
    assert "Nothing" not in found


def test_a_generated_comparison_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="truth of a generated expression"):
        assert v.a < v.b < v.c
    assert isinstance(v.a < v.b, Expression)
