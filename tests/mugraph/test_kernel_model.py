"""The analytic model of a GPU, and the first schedules, where measurements on an H100 said how they
should be."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log, prod

import pytest
from scripts import script

from models.workloads import PAPER
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.gpu.program import LaunchSchedule, guessed
from taso_mirage.ir.mugraph import kernels
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.mugraph.closure import close
from taso_mirage.mugraph.kernel_bodies import PlannedKernel
from taso_mirage.mugraph.search import Search, SearchOptions, superoptimize
from taso_mirage.mugraph.structures import Limits, plans
from taso_mirage.mugraph.tile_work import STORED
from taso_mirage.mugraph.tilings import ALIKE, tiled
from taso_mirage.operators.ops import term


def test_what_combines_parts_has_whole_lines() -> None:
    """The second kernel of attention split over the keys combines the parts."""
    plan = Search(PAPER["gqa"](batch=1).graph(), SearchOptions(), replace(H100, cluster=1)).candidates()[0].plan
    assert [each.kernel.loop is None for each in plan] == [False, True]
    assert plan[1].tiles["e"] * STORED % H100.line == 0  # columns


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_the_model_chooses_nearly_the_best_of_the_kernels_that_combine(step: int) -> None:
    """The kernels were measured over all first kernels; the model was fitted on others. By default
    over each third one."""
    bench = script("second_kernels")
    rows = json.loads((bench.RESULTS / "second_kernels-H100.json").read_text())["rows"]
    ratios = [bench.behind(row)[0] for row in rows[::step]]
    assert exp(sum(map(log, ratios)) / len(ratios)) < 1.02


def test_a_loop_of_one_iteration_costs_what_none_does() -> None:
    """The code is the same."""
    closure = close(Search(PAPER["lora"](batch=16).graph(), SearchOptions()).labelled)
    sizes, compared = closure.goal.sizes, 0
    for (kernel,) in plans(closure, Limits(range(1, 2))):
        alone = tiled(PlannedKernel(kernel.body, None), closure, sizes, 2, H100, 1000)
        seconds = {tuple(each.tiles.items()): each.seconds for each in alone}
        for each in tiled(kernel, closure, sizes, 2, H100, 1000) if kernel.loop is not None else ():
            if each.tiles[kernel.loop] == sizes[kernel.loop] and tuple(each.tiles.items()) in seconds:
                assert each.seconds == pytest.approx(seconds[tuple(each.tiles.items())])
                compared += 1
    assert compared


def test_the_first_schedule_of_a_loop_leaves_room_for_a_second_block() -> None:
    deep = 32 * 1024
    assert guessed(128, 8, 8192, deep, False) == LaunchSchedule(4, 4)
    assert guessed(256, 8, 8192, deep, False) == LaunchSchedule(4, 3)
    assert guessed(256, 2, 8192, deep, False) == LaunchSchedule(4, 2)


def test_a_kernel_that_comes_later_has_few_warps() -> None:
    assert guessed(128, 1, 4096, 0, False) == LaunchSchedule(8)
    assert guessed(128, 1, 4096, 0, True) == LaunchSchedule(2)
    assert guessed(128, 1, 64, 0, True) == LaunchSchedule(1)


def test_tilings_of_other_numbers_of_blocks_are_among_the_first() -> None:
    """Without this all tried tilings of a sum of moved elements have as many blocks."""
    shape = 8, 64, 64, 2, 64, 2
    x = variable("x", Tensor("float16", (8, 64, 2, 2, 64, 64)))
    y = variable("y", Tensor("float16", shape))
    made = term("add", term("tanh", term("transpose", x, perm=(0, 1, 4, 2, 5, 3))), y)
    found = superoptimize(Graph((x, y), (made,)), best=8, budget=20, device=H100)
    blocks = [prod(kernels(each.graph.outputs)[0].attr("grid")) for each in found]
    assert max(map(blocks.count, blocks)) <= ALIKE
    assert len(set(blocks)) >= 2
