"""Lengths that are sums of sizes that a run gives: a cache and a new element, a part of a sequence.
One kernel reads them in place at every length."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from length_goals import GOALS, free_of, last
from native_kernels import QUICK, exact

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.errors import Undecidable
from taso_mirage.ir.dims import parse_dim, symbol
from taso_mirage.ir.mugraph import kernels, part_of, possibly_empty, tile_count, tile_part
from taso_mirage.ir.terms import Graph, Node, substitute, topological
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.congruence import proved_moved
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.mugraph.free_moves import free_moves
from taso_mirage.mugraph.moved_goal import moved_goal
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.operators.ops import term

N, M = symbol("n0"), symbol("n1")
LENGTHS = (0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 255, 257)


@cache
def searched(name: str) -> list[Graph]:
    """Two kernels for every size, one with a loop over tiles of the length if there is one."""
    given = GOALS[name]
    search = Search(given.make(*given.sizes), SearchOptions(), CPU_DEVICE, free=free_of(name, N, M))
    found = [each.free for each in search.run(4, 20) if each.free is not None]
    looped = [each for each in found if any(k.attr("loop") != 1 for k in kernels(each.outputs))]
    return [found[0], *(looped or found[1:])[:1]]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", GOALS)
def test_one_kernel_is_right_at_every_length(name: str, tmp_path: Path) -> None:
    """No kernel is compiled for a length: two serve all of them."""
    graphs = {f"{name}_{i}": each for i, each in enumerate(searched(name))}
    library = build(generate_all(graphs), tmp_path, QUICK)
    given, rng = GOALS[name], np.random.default_rng(0)
    for entry, graph in graphs.items():
        assert from_json(to_json(graph)) == graph
        kernel = NativeKernel(graph, entry, library=library)
        for length in (*LENGTHS, *rng.integers(1, 700, 4), 8192):
            if length < given.least:
                continue
            wanted = given.make(*given.at(2, int(length)))
            arrays = [rng.normal(size=x.shape).astype(np.float32) for x in wanted.inputs]
            (right,) = exact(wanted, dict(zip(wanted.inputs, arrays, strict=True)))
            (found,) = kernel(*arrays)
            assert found.shape == right.shape
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {length}")


@pytest.mark.parametrize("text", ["n0", "n0 + 1", "n0 - 3", "2*n0", "n0*n1", "-n0 + n1", "n0*n1 + 2*n0 - 1"])
def test_parts_of_sums_have_names(text: str) -> None:
    whole = parse_dim(text)
    tile = tile_part(whole, 64, 2)
    assert str(tile).isidentifier()
    assert part_of(tile) == (whole, 64)
    assert tile_count(whole, tile) == (whole + 63) // 64
    with pytest.raises(Undecidable, match="has no name"):
        tile_part(whole // 3, 64)


def test_only_what_is_joined_with_something_may_be_empty() -> None:
    assert all(possibly_empty(graph) == ["n1"] for graph in searched("step"))
    assert all(possibly_empty(graph) == [] for graph in searched("without_first"))


def test_the_last_of_a_length_are_no_part_of_it_at_every_length() -> None:
    """In a run of fewer than 8 they would begin before the first."""
    assert free_moves(moved_goal(last(2, 64)), FreeSizes.of_goal(last(N, M))) is None


# ---------------------------------------------------------------- wrong movements


def wrong(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Terms of a graph, each with another of its type: parts that are shifted by one or exchanged,
    selections without their mask."""
    for node in topological(graph.outputs):
        attrs, args, others = dict(node.attrs), node.args, list[Node]()
        match node.op:
            case "concat":
                others = [term("concat", *args[::-1], **attrs)]
            case "where":
                others = [args[1], args[2], term("where", args[0], args[2], args[1])]
            case "slice":
                others = [
                    term("slice", *args, **{**attrs, "starts": (start,), "ends": (end,)})
                    for start, end in [(attrs["starts"][0] + by, attrs["ends"][0] + by) for by in (1, -1)]
                    if start != -1 and end != args[0].shape[attrs["axes"][0]] + 1
                ]
            case "pad":
                pads, half = attrs["pads"], len(attrs["pads"]) // 2
                others = [term("pad", *args, **{**attrs, "pads": (*pads[half:], *pads[:half])})]
        yield from ((node, other) for other in others if other.type == node.type and other is not node)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "least"), [("step", 2), ("rotated", 10), ("doubled", 5), ("without_first", 1)])
def test_wrong_movements_are_not_proved(name: str, least: int) -> None:
    given = GOALS[name]
    named = given.make(N, M)
    moves = free_moves(moved_goal(given.make(*given.sizes)), FreeSizes.of_goal(named))
    assert moves is not None
    assert moves.whole is not None
    made = [substitute(moves.whole.outputs, {node: other}) for node, other in wrong(moves.whole)]
    assert len(made) >= least
    assert not any(proved_moved(named.outputs, each) for each in made)
