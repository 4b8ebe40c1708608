"""The kernel search end to end: the best known structures are found, by their canonical form, and
restrictions hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_goals import attention, gated, lora, rms_linear

from taso_mirage.devices.cuda.device import H100
from taso_mirage.errors import InvalidOption, Unsupported
from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.mugraph.graph import KernelGraph, new_graph
from taso_mirage.mugraph.search import Search, SearchOptions, superoptimize
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.ops import term

pytestmark = pytest.mark.sampled(2)

ALONE = replace(H100, cluster=1)
Cut = tuple[str, tuple[int, ...], int]
"""An operand of a kernel (`:` for one that another kernel stored), the dims that the grid cuts, and
the one that the loop does."""


def kernels(graph: Graph) -> list[Node]:
    return [node for node in topological(graph.outputs) if node.op == "kernel"]


def form(graph: Graph) -> list[tuple[frozenset[Cut], frozenset[str]]]:
    """A key of a muGraph without its sizes: for each kernel how its operands are cut, and how its
    accumulators combine."""
    found = []
    for node in kernels(graph):
        names = [a.attr("name") if a.op == "input" else ":" for a in node.args]
        cuts = zip(names, node.attr("imap"), node.attr("fmap"), strict=True)
        body = topological(node.attr("body").outputs)
        over = frozenset(n.attr("over") for n in body if n.op == "accumulate")
        found.append((frozenset((name, tuple(sorted({d for d in i if d >= 0})), f) for name, i, f in cuts), over))
    return found


def found_as(graph: KernelGraph, wanted: Callable[[Graph], bool], kernels: int = 2) -> bool:
    """Whether one of the muGraphs of so many kernels or fewer is as wanted, and verified."""
    searching = Search(graph.graph(), SearchOptions(max_kernels=kernels))
    like = (c for c in searching.candidates() if (made := c.graph()) is not None and wanted(made))
    return any(searching.accepted(c) is not None for c in like)


def search(graph: KernelGraph, best: int = 40, **options: object) -> list[Graph]:
    return [found.graph for found in superoptimize(graph.graph(), best=best, **options)]  # type: ignore[arg-type]


def two_norms() -> KernelGraph:
    g = new_graph()
    x, h, a = g.new_input((8, 512), name="X"), g.new_input((8, 512), name="H"), g.new_input((512,), name="A")
    g.mark_output(g.rms_norm(g.add(x, g.mul(a, g.sub(g.rms_norm(h), x)))))
    return g


def layer_norm(g: KernelGraph, x: Node, index: str = "") -> Node:
    n = int(x.shape[-1])
    return term("layer_norm", x, g.new_input((n,), name=f"G{index}"), g.new_input((n,), name=f"B{index}"), axis=1)


def residual_norm() -> KernelGraph:
    g = new_graph()
    x, y, bias = g.new_input((128, 768), name="X"), g.new_input((128, 768), name="Y"), g.new_input((768,), name="b")
    g.mark_output(layer_norm(g, g.add(g.add(x, bias), y)))
    return g


def two_layer_norms() -> KernelGraph:
    g = new_graph()
    g.mark_output(layer_norm(g, layer_norm(g, g.new_input((128, 768), name="X")), "2"))
    return g


def norm_linear() -> KernelGraph:
    g = new_graph()
    normal = layer_norm(g, g.new_input((16, 1024), name="X"))
    g.mark_output(g.add(g.matmul(normal, g.new_input((1024, 1536), name="W")), g.new_input((1536,), name="b")))
    return g


ONE_LOOP: dict[str, tuple[Callable[[], KernelGraph], set[Cut]]] = {
    "RMSNorm and linear": (rms_linear, {("X", (), 1), ("W", (1,), 0)}),
    "with gamma and bias": (
        lambda: rms_linear(True, True),
        {("X", (), 1), ("W", (1,), 0), ("G", (), 0), ("B", (0,), -1)},
    ),
    "gated MLP": (gated, {("X", (), 1), ("A", (1,), 0), ("B", (1,), 0)}),
    "LoRA": (lora, {("X", (), 1), ("W", (1,), 0), ("A", (), 0), ("B", (1,), -1)}),
}


@pytest.mark.parametrize("name", ONE_LOOP)
def test_one_kernel_with_accumulators(name: str) -> None:
    build, cuts = ONE_LOOP[name]
    assert found_as(build(), lambda graph: form(graph) == [(frozenset(cuts), frozenset({"sum"}))])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"norm": True}, {"scale": True, "mask": True}], ids=str)
def test_attention_is_split_over_the_keys_and_combined(options: dict[str, bool]) -> None:
    """Mirage's best kernels (OSDI'25): partial sums over the keys, then combine; here with a
    running maximum."""
    keys = 1 if options.get("norm") else 2
    first = {("Q", (0, 1), -1), ("K", (0, keys), keys), ("V", (0, 1), 1)}
    first |= {("M", (0, 1), 1)} if options.get("mask") else set()

    def split(graph: Graph) -> bool:
        made = form(graph)
        combines = len(made) == 2 and {name for name, *_ in made[1][0]} == {":"}
        return combines and made[0] == (frozenset(first), frozenset({"rescaled", "max"}))

    assert found_as(attention(**options), split)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{"scale": True, "mask": True}, {"rotary": True}], ids=str)
def test_attention_beyond_three_inputs(options: dict[str, bool]) -> None:
    found = search(attention(**options), best=4)
    assert len(found) == 4
    assert all(any(n.op == "exp" for n in topological(k.attr("body").outputs)) for k in kernels(found[0])[:1])


def test_two_norms_in_one_kernel_with_a_row_for_each_block() -> None:
    cuts = {("X", (0,), -1), ("H", (0,), -1), ("A", (), -1)}
    assert (frozenset(cuts), frozenset()) in [
        form(graph)[0] for graph in search(two_norms()) if len(kernels(graph)) == 1
    ]


@pytest.mark.parametrize(
    ("build", "rows"),
    [
        (residual_norm, {"X": 1, "Y": 1, "b": 0, "G": 0, "B": 0}),
        (two_layer_norms, {"X": 1} | dict.fromkeys(("G", "B", "G2", "B2"), 0)),
    ],
)
def test_layer_norms_take_one_kernel_with_a_row_for_each_block(
    build: Callable[[], KernelGraph], rows: dict[str, int]
) -> None:
    cuts = frozenset((name, (0,) if cut else (), -1) for name, cut in rows.items())
    assert [(cuts, frozenset())] in [form(graph) for graph in search(build(), best=4)]


def test_layer_norm_and_linear_take_two_kernels() -> None:
    norm = {("X", (0,), -1), ("G", (), -1), ("B", (), -1)}
    linear = {(":", (0,), 1), ("W", (1,), 0), ("b", (0,), -1)}
    wanted = [(frozenset(norm), frozenset()), (frozenset(linear), frozenset({"sum"}))]
    assert found_as(norm_linear(), lambda graph: form(graph) == wanted)


def test_three_weights_take_two_kernels() -> None:
    assert [len(kernels(graph)) for graph in search(gated(down=True), best=1, device=ALONE)] == [2]


def projected() -> KernelGraph:
    """Attention of one head with an output projection."""
    g = new_graph()
    q, k, v = g.new_input((64, 64), name="Q"), g.new_input((64, 2048), name="K"), g.new_input((2048, 64), name="V")
    g.mark_output(g.matmul(g.matmul(g.softmax(g.matmul(q, k)), v), g.new_input((64, 512), name="O")))
    return g


def read(graph: Graph) -> list[set[str]]:
    """The operands of each kernel, `:` for a value that another kernel stored."""
    return [{name for name, *_ in operands} for operands, _ in form(graph)]


@pytest.mark.sampled(2)
def test_attention_split_over_the_keys_then_its_projection() -> None:
    """Three kernels: partial sums over the keys, their combination, and the product with the
    output's weights."""

    def wanted(graph: Graph) -> bool:
        if read(graph) != [{"Q", "K", "V"}, {":"}, {":", "O"}]:
            return False
        return form(graph)[0][1] >= {"max", "rescaled"} or ("K", (1,), -1) in form(graph)[0][0]

    assert found_as(projected(), wanted, kernels=3)


@pytest.mark.sampled(2)
def test_a_gated_mlp_whose_down_projection_is_split() -> None:
    """Three kernels: the gate, partial products with the third weight, and their sum."""

    def wanted(graph: Graph) -> bool:
        parts = [(name, cuts) for name, cuts, _ in form(graph)[1][0]] if len(kernels(graph)) == 3 else []
        return read(graph) == [{"X", "A", "B"}, {":", "D"}, {":"}] and ("D", (0, 1)) in parts

    assert found_as(gated(down=True), wanted, kernels=3)


@pytest.mark.sampled(3)
def test_longer_muGraphs_leave_room_for_shorter_ones() -> None:
    two, three = (Search(projected().graph(), SearchOptions(max_kernels=n)).candidates() for n in (2, 3))
    short = [c.plan for c in three if len(c.plan) < 3]
    assert sorted(map(repr, short)) == sorted(repr(c.plan) for c in two)
    assert {len(c.plan) for c in three} == {1, 2, 3}


@pytest.mark.sampled(1)
def test_every_exponential_is_stabilised() -> None:
    """exp of a value that is not a difference from a maximum overflows in half precision where the
    goal does not."""
    for graph in search(attention(), best=30):
        for kernel in kernels(graph):
            body = topological(kernel.attr("body").outputs)
            assert all(n.args[0].op == "sub" for n in body if n.op == "exp")


@pytest.mark.sampled(1)
def test_what_is_found_equals_the_goal_at_its_own_sizes() -> None:
    g = new_graph()
    x, w = g.new_input((4, 32), "float32", "X"), g.new_input((32, 48), "float32", "W")
    g.mark_output(g.matmul(g.rms_norm(x), w))
    for found in superoptimize(g.graph(), best=6):
        assert verified_mugraph(found.graph, g.graph())
        assert found.evidence.tests >= 8


def test_a_residual_is_searched_with_its_reduction_split() -> None:
    """x is seen under two labels, of which one is in two parts then."""
    g = new_graph()
    x, w = g.new_input((4, 256), name="X"), g.new_input((256, 256), name="W")
    g.mark_output(g.add(x, g.matmul(x, w)))
    searching = Search(g.graph(), SearchOptions())
    splits = [c for c in searching.candidates() if c.closure.goal.split]
    assert splits
    assert searching.accepted(splits[0]) is not None


def test_the_budget_ends_the_enumeration() -> None:
    searching = Search(two_norms().graph(), SearchOptions())
    assert searching.candidates(end=0.0) == []
    assert searching.run(4, 0.0) == []


@pytest.mark.sampled(1)
def test_restrictions_hold() -> None:
    options = {"griddims": [(24,)], "franges": [16], "max_kernels": 1}
    found = search(rms_linear(), best=3, **options)
    assert found
    assert {(k.attr("grid"), k.attr("loop")) for graph in found for k in kernels(graph)} == {((24,), 16)}
    mapped = search(rms_linear(), imaps=[(-1,), (1,)], omaps=[(1,)], fmaps=[0, 1], max_kernels=1)
    assert {k.attr("fmap") for graph in mapped for k in kernels(graph)} <= {(0, 1), (1, 0)}


def test_the_program_has_the_threads_that_were_asked_for(tmp_path: Path) -> None:
    found = superoptimize(rms_linear().graph(), best=1, blockdims=[(64, 4)])
    found[0].generate_triton_program(tmp_path / "program.py")
    assert '"num_warps": 8' in (tmp_path / "program.py").read_text()


@pytest.mark.sampled(2)
def test_the_search_is_deterministic() -> None:
    first, second = (Search(lora().graph(), SearchOptions()) for _ in range(2))
    assert [f.graph for f in first.run(5, 60)] == [f.graph for f in second.run(5, 60)]
    assert first.statistics == second.statistics


@pytest.mark.sampled(2)
def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    file, graph = tmp_path / "state.json", rms_linear().graph()
    whole = superoptimize(graph, best=4)

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "verify" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        superoptimize(graph, best=4, checkpoint=file, progress=interrupt)
    assert len(json.loads(file.read_text())["found"]) == 2
    resumed = Search(graph, SearchOptions())
    assert resumed.run(4, 60, checkpoint=file) == whole
    assert resumed.statistics.verified == 2
    before = file.read_text()
    with pytest.raises(InvalidOption, match="another search"):
        superoptimize(lora().graph(), checkpoint=file)
    assert file.read_text() == before
    file.write_text("{")
    with pytest.raises(InvalidOption, match="no checkpoint"):
        superoptimize(graph, checkpoint=file)


def test_what_cannot_be_searched_is_named() -> None:
    g = new_graph()
    with pytest.raises(InvalidOption, match="mark_output"):
        g.graph()
    with pytest.raises(InvalidOption, match="at least one kernel"):
        superoptimize(lora().graph(), max_kernels=0)
    g.new_input((4, 4), name="X")
    with pytest.raises(InvalidOption, match="named 'X' already"):
        g.new_input((4, 4), name="X")
    with pytest.raises(Unsupported, match="argmax"):
        superoptimize(Graph(tuple(g.inputs), (term("argmax", g.inputs[0], axis=1),)))
