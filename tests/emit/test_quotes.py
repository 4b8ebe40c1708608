"""Text that is read as statements is written as it was."""

import pytest

from taso_mirage.emit.quotes import quoted, quoted_body
from taso_mirage.emit.statements import GLUON, TRITON, add, v

TEXT = '''def kernel(x, w, STAGES: gl.constexpr, FIRST: gl.constexpr = False):
    """Nothing of use."""
    LAYOUT: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [4, 1], [1, 0]))
    first, second = gl.program_id(0) % 2 * 8, (w // 4) & 1
    at = x - (first + 1) - 2
    for t in gl.range(0, 4, num_stages=STAGES):  # in turn
        at += -first * (second * 3)
        if at >= 0 and t < 4 - 1:
            gl.store(
                x, at.to(gl.float16), mask=first < 3)
        elif t == 2:
            named("a  b", 'c', 1e-5)
    barrier.wait(1)  # all of them
    gl.warp_specialize([
        (loads, (x, first)),
        (sums, (x, second, 1)),
    ], [4], [240])
    return at, first
'''


def test_a_text_without_braces_is_written_as_it_was() -> None:
    (made,) = quoted(TEXT)
    assert GLUON.function(made) == f"@gluon.jit\n{TEXT}"
    assert TRITON.function(made) == f"@triton.jit\n{TEXT.replace('gl.', 'tl.')}"


BRACES = """def kernel(x, *NAMES, STAGES: gl.constexpr, FIRST: gl.constexpr = 1):
    {sums}
    *NAMES, x = step({*NAMES}, {2 * n}, [{*places}])
    if {wide}:
        x = x * {n}
    else:
        x = x + {scaled}
"""


@pytest.mark.parametrize(("wide", "last"), [(True, "x = x * 8"), (False, "x = x + (y + 1)")])
def test_what_stands_in_braces_is_computed(wide: bool, last: str) -> None:
    known = {"NAMES": ["a", "b"], "n": 8, "places": (v.i % 2, 0), "scaled": v.y + 1, "sums": [add("x", 1)]}
    (made,) = quoted(BRACES, wide=wide, **known)
    assert GLUON.function(made) == (
        "@gluon.jit\n"
        "def kernel(x, a, b, STAGES: gl.constexpr, FIRST: gl.constexpr = 1):\n"
        "    x += 1\n"
        "    a, b, x = step(a, b, 16, [i % 2, 0])\n"
        f"    {last}\n"
    )


def test_nothing_but_arithmetic_stands_in_braces() -> None:
    with pytest.raises(SyntaxError, match="no expression in braces: lambda"):
        quoted_body("x = {lambda: n}\n", n=2)
    with pytest.raises(KeyError, match="open"):
        quoted_body("x = {open('file')}\n", n=2)


def test_statements_alone_are_quoted_too() -> None:
    assert list(TRITON.lines(quoted_body("if x != 1:\n    y = {n}\n", n=2))) == ["if x != 1:", "    y = 2"]


def test_a_statement_that_no_program_has_is_named() -> None:
    with pytest.raises(SyntaxError, match="no statement of a generated program: while"):
        quoted("def kernel(x):\n    while x:\n        x = 1\n")
