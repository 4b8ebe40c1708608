"""Triton programs whose sizes a run gives: one source for all sizes, which computes the goal at each
of them, with whole tiles and with what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from test_free_sizes import FREE, N, S, attention, norm

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import kernels as kernels_of
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.kernels.checkpoint import to_json
from taso_mirage.kernels.codegen import triton
from taso_mirage.kernels.free import FreeSizes
from taso_mirage.kernels.search import Search, SearchOptions
from taso_mirage.operators.ops import term
from taso_mirage.targets.cuda.device import H100

pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")


def x(name: str, *shape: Dim, dtype: str = "float32") -> Node:
    return variable(name, Tensor(dtype, shape))


def self_attention(b: Dim, s: Dim) -> Graph:
    """As many queries as keys."""
    return attention(b, s, s)


def one_query(b: Dim, k: Dim) -> Graph:
    """A token and what came before it: sums wait for the end of the loop."""
    q, keys, v = x("q", b, 4, 1, 16), x("k", b, 4, k, 16), x("v", b, 4, k, 16)
    scores = term("matmul", q, term("transpose", keys, perm=(0, 1, 3, 2)))
    return Graph((q, keys, v), (term("matmul", term("softmax", scores, axis=3), v),))


def norm_linear(b: Dim, s: Dim) -> Graph:
    h, g, w = x("h", b, s, 64), x("g", 64), x("w", 64, 48)
    return Graph((h, g, w), (term("matmul", term("rms_norm", h, g, axis=-1, epsilon=1e-5), w),))


def gated(b: Dim, s: Dim) -> Graph:
    h, w, u = x("h", b, s, 32), x("w", 32, 48), x("u", 32, 48)
    gate = term("matmul", h, w)
    return Graph((h, w, u), (term("mul", term("mul", gate, term("sigmoid", gate)), term("matmul", h, u)),))


def activation(b: Dim, s: Dim) -> Graph:
    h, g = x("h", b, s, 48), x("g", 48)
    return Graph((h, g), (term("softmax", term("gelu", term("add", h, g)), axis=2),))


def softmax(b: Dim, s: Dim) -> Graph:
    """Over the free dim, whose rows have any alignment."""
    h = x("h", b, 3, s)
    return Graph((h,), (term("softmax", term("mul", h, constant(0.5, "float32")), axis=2),))


def pooled(b: Dim, s: Dim) -> Graph:
    """A sum and a maximum over the free dim."""
    h = x("h", b, s, 24)
    tops = [term(op, h, axes=(1,), keepdims=0) for op in ("reduce_sum", "reduce_max")]
    return Graph((h,), (term("add", *tops),))


Goal = Callable[..., Graph]
CASES: dict[str, tuple[Goal, FreeSizes, tuple[int, ...]]] = {
    "attention": (attention, FREE, (2, 64, 256)),
    "self_attention": (
        self_attention,
        FreeSizes(((N, 4, S, 16), (N, 4, 16, S), (N, 4, S, 16), (N, 1, 1, S)), ((N, 4, S, 16),)),
        (2, 64),
    ),
    "one_query": (
        one_query,
        FreeSizes(((N, 4, 1, 16), (N, 4, S, 16), (N, 4, S, 16)), ((N, 4, 1, 16),)),
        (2, 128),
    ),
    "norm": (norm, FreeSizes(((N, S, 64), (N, S, 64)), ((N, S, 64),)), (2, 16)),
    "norm_linear": (norm_linear, FreeSizes(((N, S, 64), (64,), (64, 48)), ((N, S, 48),)), (2, 16)),
    "gated": (gated, FreeSizes(((N, S, 32), (32, 48), (32, 48)), ((N, S, 48),)), (2, 32)),
    "activation": (activation, FreeSizes(((N, S, 48), (48,)), ((N, S, 48),)), (2, 16)),
    "pooled": (pooled, FreeSizes(((N, S, 24),), ((N, 24),)), (2, 64)),
}
SIZES = (1, 1), (2, 3), (1, 15), (1, 16), (3, 17), (1, 31), (1, 33), (1, 127), (1, 129), (1, 200)
"""Ones, what is left of a tile and one more, whole tiles, and several."""
FORMS = 5
"""Programs of a case that are run: different grids, loops, or numbers of kernels first."""


def programs(name: str) -> list[Any]:
    goal, free, at = CASES[name]
    search = Search(goal(*at), SearchOptions(), H100, free=free)
    assert search.free is not None
    found: dict[object, Any] = {}
    for each in search.candidates():
        made = each.free(search.free)
        if made is not None and search.accepted(each) is not None:
            key = tuple(
                (len(k.attr("grid")), k.attr("loop") != 1, str(k.attr("loop"))) for k in kernels_of(made.outputs)
            )
            found.setdefault(key, triton.program(made))
        if len(found) == FORMS:
            break
    assert found, name
    return list(found.values())


RUN = """
import json, sys
from pathlib import Path
import numpy as np, torch
from taso_mirage.kernels.checkpoint import from_json
from taso_mirage.kernels.codegen.compile import load_source
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor


def patched(tensor, scope):  # numpy from 2.4 on makes no number of an array of one element
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = patched
folder = Path(sys.argv[1])
for name, sources, goals in json.loads((folder / "given.json").read_text()):
    modules = [load_source(source, folder, f"{name}{i}") for i, source in enumerate(sources)]
    for goal in map(from_json, goals):
        rng = np.random.default_rng(0)
        arrays = [3 * rng.standard_normal([int(n) for n in x.shape]) for x in goal.inputs]
        given = [torch.tensor(a, dtype=getattr(torch, x.dtype)) for a, x in zip(arrays, goal.inputs, strict=True)]
        env = {x: EXACT.load(a.numpy().astype(np.float64)) for x, a in zip(goal.inputs, given, strict=True)}
        wanted = np.asarray(interpret(goal.outputs, EXACT, env)[goal.outputs[0]])
        for i, module in enumerate(modules):
            got = module.launch(*given).double().numpy()
            error = np.abs(got - wanted).max() / np.abs(wanted).max() if got.shape == wanted.shape else np.inf
            print(name, i, [list(x.shape) for x in goal.inputs][0], error)
"""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The errors of all cases, forms and sizes, from one process."""
    folder = tmp_path_factory.mktemp("free_triton")
    given = []
    for name, (goal, _, at) in CASES.items():
        goals = [to_json(goal(*(b, s, s + 40)[: len(at)])) for b, s in SIZES]
        given.append([name, [each.source for each in programs(name)], goals])
    (folder / "given.json").write_text(json.dumps(given))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    found: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        found.setdefault(line.split()[0], []).append(float(line.split()[-1]))
    return found


@pytest.mark.parametrize("name", CASES)
def test_one_program_for_all_sizes(name: str, interpreted: dict[str, list[float]]) -> None:
    assert max(interpreted[name]) < 5e-6
    assert len(interpreted[name]) % len(SIZES) == 0
