"""Searched muGraphs of goals that move elements, as programs in Triton: they compute the goal in
Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import in_turn
import numpy as np
import pytest
from moved_goals import GOALS, goal
from native_kernels import exact

from taso_mirage.emit import triton as codegen
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.movements import is_moved

pytest.importorskip("triton", reason="the extra `triton` is not installed")
NAMES = ("rotary embedding", "cache and new keys", "gated by halves", "padded")


def test_programs_of_searched_mugraphs_compute_the_goal(tmp_path: Path) -> None:
    programs, wanted, rng = {}, {}, np.random.default_rng(0)
    for name in NAMES:
        given = goal(GOALS[name])
        (found,) = superoptimize(given, best=1, budget=20)
        assert any(is_moved(x) for kernel in found.graph if kernel.op == "kernel" for x in kernel.args)
        arrays = [rng.standard_normal(x.shape).astype(x.dtype) for x in given.inputs]
        programs[name.replace(" ", "_")] = codegen.program(found.graph).source, given, arrays
        wanted[name.replace(" ", "_")] = exact(given, dict(zip(given.inputs, arrays, strict=True)))[0]
    in_turn.interpreted(tmp_path, programs)
    for name, want in wanted.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), want, rtol=1e-5, atol=1e-6)
