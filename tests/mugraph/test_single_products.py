"""Products of matrices in single precision: on the tensor cores in parts, as near to float64 as
PyTorch's own."""

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from mugraphs import leaf

pytest.importorskip("torch")
pytest.importorskip("triton", reason="the extra `triton` is not installed")

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton as codegen
from taso_mirage.emit import tune
from taso_mirage.emit.compile import compiled, load_source
from taso_mirage.emit.gpu.program import PRECISIONS, LaunchSchedule, TritonProgram
from taso_mirage.ir.terms import Graph
from taso_mirage.measure.session import working_providers
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.ops import term

LARGEST = 3.38e38
"""Larger numbers round to no finite number of 8 binary digits; the last part of numbers below 2e-31
is subnormal."""
SEVERAL = 4
"""The number of candidates among which one is on the tensor cores, however small the product is."""
MULTIPLIED = {"tf32x3": {"tf32"}, "bf16x6": {"bf16"}, "ieee": set[str]()}
"""The types of operands on tensor cores."""


@cache
def product(dtype: str = "float32", rows: int = 64) -> TritonProgram:
    x, w = leaf("X", dtype, rows, 128), leaf("W", dtype, 128, 64)
    goal = Graph((x, w), (term("matmul", x, w),))
    programs = [codegen.program(each.graph) for each in superoptimize(goal, best=SEVERAL, budget=20.0)]
    return next(each for each in programs if "tl.dot" in each.source)


def of_precision(program: TritonProgram, precision: str) -> TritonProgram:
    return tune.scheduled(program, 0, replace(program.launches[0].schedule, precision=precision))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("capability", [80, 90])
def test_each_precision_has_its_own_instructions(precision: str, capability: int) -> None:
    (made, *_) = compiled(of_precision(product(), precision), capability)
    found = {line for line in made.ptx.split() if line.startswith(("mma.", "wgmma.mma"))}
    assert {kind for kind in ("tf32", "bf16") if any(kind in line for line in found)} == MULTIPLIED[precision]


def test_half_precision_has_no_such_choice() -> None:
    program = product("float16")
    assert not any(each.precisions for each in program.launches)
    assert "PRECISION" not in program.source
    assert tune.precisions(program.launches[0]) == [program.launches[0].schedule]


@pytest.mark.parametrize("best", PRECISIONS)
def test_the_tuner_keeps_the_fastest(best: str) -> None:
    def cost(programs: list[TritonProgram]) -> list[float]:
        return [2.0 - (each.launches[0].schedule.precision == best) for each in programs]

    found = tune._tuned([product()], cost, H100, True, lambda: False)
    assert found.program.launches[0].schedule.precision == best
    assert f"'PRECISION': {best!r}".replace("'PRECISION'", '"PRECISION"') in found.program.source


def test_other_warps_multiply_as_the_ones_before() -> None:
    (launch, *_) = of_precision(product(), "bf16x6").launches
    tried = tune.schedules(launch)
    assert len(tried) > 2
    assert {each.precision for each in tried} == {"bf16x6"}


def test_a_record_of_before_multiplies_as_it_did() -> None:
    old = asdict(product().launches[0].schedule)
    del old["precision"]
    assert LaunchSchedule(**old).precision == "ieee"


def special(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Infinities, numbers that are none, and the largest and smallest that are."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((rows, 128)).astype(np.float32), rng.standard_normal((128, 64)).astype(np.float32)
    x[0, 0], x[1, 1], x[2, 2], x[3] = np.inf, np.nan, -np.inf, 0.0
    x[4], w[:, 5] = x[4] * np.float32(1e30), w[:, 5] * np.float32(1e-30)
    x[6, :], x[6, 7] = 0.0, LARGEST
    x[8] *= np.float32(1e-30)
    return x, w


@pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rows", [16, 64, 256])
def test_on_a_gpu_it_is_as_near_as_pytorch(precision: str, rows: int, tmp_path: Path) -> None:
    import torch

    program = of_precision(product(rows=rows), precision)
    x, w = (torch.from_numpy(each).cuda() for each in special(rows))
    found = load_source(program.source, tmp_path).launch(x, w).double()
    wanted, exact = x @ w, x.double() @ w.double()
    kept = wanted.isfinite()
    others = (found.isfinite() != kept).nonzero().tolist()
    assert others == []
    scale = (x.double().abs() @ w.double().abs())[kept]
    apart = ((found - exact)[kept].abs() / scale.clamp(min=1e-30)).max()
    assert apart < 1e-6
