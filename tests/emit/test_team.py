"""Two threads inside of each step of a loop (`team.h`): the same bits as one thread, whenever the
second one comes and however late it is; broken protocols are found."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from bodies import parse
from loop_models import loop

from taso_mirage.emit.cpp import TEAM, generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.emit.cpu.prepared import header
from taso_mirage.forms.recurrence import LoopCut, recurrence
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Graph
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.interpret import interpret

CELL = """
    g (float[{b}, {n}] h0, float[{t}, {b}, {n}] X, float[{n}, {n}] R) => (float[{b}, {n}] h, float[{t}, {b}, {n}] Y) {{
        h, Y = Scan<num_scan_inputs = 1, body = step (float[{b}, {n}] s, float[{b}, {n}] x)
                => (float[{b}, {n}] s2, float[{b}, {n}] y) {{
            p = MatMul(s, R) \n q = Add(p, x) \n s2 = Tanh(q) \n y = Identity(s2)
        }}>(h0, X)
    }}
"""


@cache
def kernel(n: int, samples: int = 1, blocks: int = 1, steps: int = 20) -> tuple[Graph, Graph]:
    """A loop of a cell of n elements, and its kernel."""
    graph = loop(parse(CELL.format(n=n, t=steps, b=samples)))
    found = recurrence(graph)
    assert found is not None
    cuts: list[LoopCut] = [(*found.axes()[0][:2], blocks)] if blocks > 1 else []
    return graph, Graph(graph.inputs, found.results(found.kernel(cuts)))


def test_two_threads_give_the_bits_of_one() -> None:
    graph, made = kernel(256)
    given = [(random_array(leaf, np.random.default_rng(0), {}) / 16).astype(np.float32) for leaf in graph.inputs]
    one, two = (NativeKernel(made, threads=threads) for threads in (1, 2))
    wanted = one(*given)
    for _ in range(20):
        for a, b in zip(two(*given), wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    known = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
    np.testing.assert_allclose(wanted[0], known[graph.outputs[0]], 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("sizes", "by_two"),
    [
        ((256,), True),
        ((128,), False),
        ((160,), True),
        ((264,), False),
        ((2912,), False),
        ((256, 2), False),
        ((256, 2, 2), False),
        ((256, 1, 1, 4), True),
        ((256, 1, 1, 3), False),
    ],
)
def test_only_the_only_row_of_a_matrix_in_caches_is_shared(sizes: tuple[int, ...], by_two: bool) -> None:
    assert (TEAM in generate_cpp(kernel(*sizes)[1])) == by_two


# ---------------------------------------------------------------- the protocol

COLUMNS, DEPTH, STEPS = 64, 32, 400
STEP = f"""
struct Cell {{ const float* matrix; float* state; float* all; Team* team; bool awaited; }};
void cell(void* data, size_t) {{
  const Cell& own = *static_cast<Cell*>(static_cast<void**>(data)[0]);
  auto& product = of_thread<0, StepMatrix<{DEPTH}, {COLUMNS}>>();
  product.begin(own.team, own.matrix, {COLUMNS});
  while (own.awaited && !own.team->came.load()) std::this_thread::yield();
  for (size_t step = 0; step < {STEPS}; ++step) {{
    alignas(64) float made[{COLUMNS}] = {{}};
    product.add(own.state, 1, made);
    for (size_t k = 0; k < {DEPTH}; ++k) own.state[k] = tangent(made[k] + made[k + {DEPTH}] + 0.001f * step);
    std::memcpy(own.all + step * {COLUMNS}, made, sizeof made);
  }}
}}
void run_cell(const float* matrix, float* state, float* all, parallel_for_t threads) {{
  Team team;
  Cell own{{matrix, state, all, &team, threads == at_once}};
  void* data[] = {{&own}};
  run_team(team, cell, data, threads, nullptr);
}}
"""
PARALLEL = """
typedef void (*block_t)(void*, size_t);
void in_turn(block_t block, size_t count, void* data, void*) { for (size_t i = 0; i < count; ++i) block(data, i); }
void at_once(block_t block, size_t count, void* data, void*) {
  std::thread other([=] { block(data, 1); });
  block(data, 0);
  other.join();
}
void late(block_t block, size_t count, void* data, void*) {
  std::thread other([=] { std::this_thread::sleep_for(std::chrono::microseconds(300)); block(data, 1); });
  block(data, 0);
  other.join();
}
parallel_for_t const ways[] = {nullptr, in_turn, at_once, late};
std::atomic<unsigned> parts{0};
void stall() { if (++parts % 7 == 3) std::this_thread::sleep_for(std::chrono::microseconds(700)); }
"""
STALLED = ("      part(operands);\n", "      stall();\n      part(operands);\n")
"""A second thread that the system sometimes does not run."""
PATIENT = ("WAITS = 4000", "WAITS = 40000000")
MUTANTS = {
    "the left half twice": ("own.half(own.right_, H,", "own.half(own.right_, 0,"),
    "no wait for the product": ("      if (idle()) return true;", "      return true;"),
    "a product that nobody takes": ("c[H + n] += product_[n]", "c[H + n] += 0.0f"),
    "an old row": ("k < K; ++k) row_[k] =", "k < K && right_.copied == false; ++k) row_[k] ="),
    "a copy of another matrix": ("left_.copied = right_.copied = spare_.copied = false", "spare_.copied = false"),
}


@cache
def teams() -> Callable[[str, int], np.ndarray]:
    """The rows that a cell computes by the team of a name, and a way to run its threads."""
    text = header("team.h").replace(" private:\n", "")
    includes = [line for line in text.splitlines() if line.startswith("#include")]
    texts = {"right": text, "stalled": _changed(text, STALLED), "patient": _changed(text, STALLED, PATIENT)}
    texts |= {name: _changed(text, PATIENT, mutant) for name, mutant in MUTANTS.items()}
    source = "\n".join(["#include <chrono>", *includes, header("vector.h"), "namespace {", PARALLEL, "}"])
    for i, each in enumerate(texts.values()):
        inner = "\n".join(line for line in each.splitlines() if not line.startswith("#include"))
        source += f"\nnamespace team{i} {{\n{inner}\n{STEP}\n}}\n"
        source += f'extern "C" void run{i}(const float* m, float* s, float* y, size_t way) {{ team{i}::run_cell(m, s, y, ways[way]); }}\n'
    source += 'extern "C" void (*const kept)(void (*)(void*, size_t), size_t, void**, parallel_for_t, void*) = run;\n'
    library = ctypes.CDLL(str(build(source, flags=("-march=native", "-pthread"))))
    rng = np.random.default_rng(0)
    matrix = (rng.normal(size=(DEPTH, COLUMNS)) / 4).astype(np.float32)

    def rows(name: str, way: int) -> np.ndarray:
        """The rows of the second of two runs, whose matrices differ."""
        made = np.empty((STEPS, COLUMNS), np.float32)
        for each in (-matrix, matrix):
            state = np.full(DEPTH, 0.5, np.float32)
            places = [ctypes.c_void_p(x.ctypes.data) for x in (each, state, made)]
            library[f"run{list(texts).index(name)}"](*places, ctypes.c_size_t(way))
        return made

    return rows


def _changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("name", ["right", "stalled", "patient"])
def test_the_product_does_not_depend_on_the_threads(name: str, way: int) -> None:
    np.testing.assert_array_equal(teams()(name, way), teams()("right", 0))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_team_is_found(name: str) -> None:
    wanted = teams()("right", 0)
    assert any(not np.array_equal(teams()(name, 2), wanted) for _ in range(20))
