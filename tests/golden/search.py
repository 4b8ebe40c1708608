"""Searches the muGraphs of `searched.json` again: of each kind that only a search writes, a few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

# isort: off
from . import catalogue as catalogue  # which says where the tests are
import test_block_weights_gpu as packed
import test_float8_kernels as float8
import test_free_sizes_cuda as free
import test_int8_kernels as int8
import test_latent_attention as latent
# isort: on

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import H100
from taso_mirage.devices.device import Device
from taso_mirage.ir.terms import Graph
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.search import Search, SearchOptions

EACH = 2
"""MuGraphs of a goal."""


def searched() -> dict[str, dict[str, Any]]:
    """The muGraphs by target and name, as JSON."""
    both = {"gpu": [*_gpu(), *_free(H100)], "cpu": [*_free(CPU_DEVICE)]}
    return {target: {name: to_json(graph) for name, graph in found} for target, found in both.items()}


def _gpu() -> Iterator[tuple[str, Graph]]:
    goals = {f"float8 {name}": goal for name, goal in float8.CASES.items()}
    goals |= {f"int8 weights {name}": goal for name, goal in int8.WEIGHTS.items()}
    goals |= {f"int8 {name}": product.layer() for name, product in int8.SUMMED_OF.items()}
    goals |= {f"packed {name}": packed.goal(*given) for name, given in packed.CASES.items()}
    goals |= {"latent": latent.latent(), "masked": latent.masked()}
    for name, goal in goals.items():
        yield from _named(name, Search(goal, SearchOptions()).run(EACH, 600.0))


def _named(name: str, found: Sequence[FoundMuGraph]) -> Iterator[tuple[str, Graph]]:
    yield from ((f"{name} {i}", each.graph) for i, each in enumerate(found))


def _free(device: Device) -> Iterator[tuple[str, Graph]]:
    """MuGraphs with sizes that only a run knows."""
    for name, (goal, sizes, at) in free.CASES.items():
        search = Search(goal(*at), SearchOptions(), device, free=sizes)
        assert search.free is not None
        made = (each.free(search.free) for each in search.candidates() if search.accepted(each) is not None)
        for i, graph in enumerate(islice((each for each in made if each is not None), EACH)):
            yield f"free {name} {i}", graph
