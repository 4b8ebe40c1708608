"""Programs as values, written in C++: braces, lines, directives, and names that nothing reads."""

import shutil
import subprocess

import pytest

from taso_mirage.emit.cpu.printer import expression_text, function_text, static_cast, swept
from taso_mirage.emit.statements import (
    If,
    Let,
    ProgramFunction,
    Return,
    Scope,
    every,
    expression,
    group,
    let,
    loop,
    mentioned,
    select,
    tl,
    v,
    when,
)

PRINTED = {
    "a + b * c": v.a + v.b * v.c,
    "(a + b) / 64 * 64": (v.a + v.b) / 64 * 64,
    "a - (b - c)": v.a - (v.b - v.c),
    "n - g * 8 >= 8 && m - g * 4 >= 4": every([v.n - v.g * 8 >= 8, v.m - v.g * 4 >= 4]),
    "(a < b) == c": (v.a < v.b).equals(v.c),
    "g0 == 0 ? y : spare": select(v.y, v.g0.equals(0), v.spare),
    "static_cast<float>(x[i + 1])": static_cast("float", v.x["i + 1"]),
    "{a, b + 1}": expression([v.a, v.b + 1]),
    "(a)": group(v.a),
    "columns<3, 4>(a, 1)": v["columns<3, 4>"](v.a, 1),
}


@pytest.mark.parametrize("text", PRINTED)
def test_expressions_have_the_parentheses_that_they_need(text: str) -> None:
    assert expression_text(PRINTED[text]) == text


NEST = Scope(
    (
        loop(
            "i",
            v.numbers(2),
            [
                Let("s", expression("0.0f"), "float"),
                loop("j", v.vectors(v.n, "+: s"), [let("s", v.s + v.x["3 * i + j"])]),
                tl.store(v.y["i"], v.s),
            ],
        ),
    )
)
MADE = ProgramFunction(
    "total",
    ("const float* x", "float* y", "size_t n"),
    (
        Let("unread", v.n * 2, "const size_t"),
        Let("read", v.n / 2, "const size_t"),
        Let("room", v.array(4), "alignas(64) float"),
        Let("pair", expression([v.x, v.room]), "const float*"),
        loop("i", v.numbers(2), [loop("j", v.numbers(2), [tl.store(v.room["2 * i + j"], 0)])]),
        ProgramFunction("tile", ("const auto size",), (Let("of_tile", v.size, "const size_t"), NEST)),
        If(v.read > 4, (v.tile(v.read),), (v.tile(4), Return(expression("")))),
        Scope((Let("n", expression(1), op="-="), v.tile(v.pair[0][0])), True),
    ),
    "static void",
    "sums of rows",
)
TEXT = """// sums of rows
static void total(const float* x, float* y, size_t n) {
  const size_t read = n / 2;
  alignas(64) float room[4];
  const float* pair[] = {x, room};
  for (size_t i = 0; i < 2; ++i) for (size_t j = 0; j < 2; ++j) room[2 * i + j] = 0;
  const auto tile = [&](const auto size) {
    {
      for (size_t i = 0; i < 2; ++i) {
        float s = 0.0f;
      #pragma omp simd reduction(+: s)
        for (size_t j = 0; j < n; ++j) {
          s = s + x[3 * i + j];
        }
        y[i] = s;
      }
    }
  };
  if (read > 4) tile(read);
  else {
    tile(4);
    return ;
  }
  n -= 1; tile(pair[0][0]);
}"""


def test_a_function_without_the_constants_that_nothing_reads() -> None:
    assert (
        function_text(ProgramFunction(MADE.name, MADE.parameters, swept(MADE.body, set()), "static void", MADE.why))
        == TEXT
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiler_takes_it() -> None:
    command = ["g++", "-std=c++17", "-fsyntax-only", "-fopenmp-simd", "-include", "cstddef", "-x", "c++", "-"]
    subprocess.run(command, input=TEXT, text=True, check=True)


def test_a_floor_division_would_be_a_comment() -> None:
    with pytest.raises(KeyError, match="//"):
        expression_text(v.a // 2 + v.b)


def test_a_function_of_one_line() -> None:
    made = ProgramFunction(
        "f_scratch", (), (Scope((Let("n", expression(1), "const size_t"), Return(v.n * 4)), True),), "size_t"
    )
    assert function_text(made) == "size_t f_scratch() { const size_t n = 1; return n * 4; }"
    assert function_text(ProgramFunction("f", (), (Return(v.n),), "int")) == "int f() { return n; }"


def test_a_comment_is_the_line_above() -> None:
    made = ProgramFunction("f", (), (Scope((v.a(),), True, "first"), when(v.c, v.b(), why="then")), "void")
    assert function_text(made) == "void f() {\n  // first\n  a();\n  // then\n  if (c) b();\n}"


def test_names_within_scopes_and_functions_are_read() -> None:
    assert {"x", "y", "n", "s"} <= set(mentioned(NEST))
    assert "unread" not in {word for each in MADE.body[1:] for word in mentioned(each)}
