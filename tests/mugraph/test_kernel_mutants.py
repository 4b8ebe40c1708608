"""Mutants of verified muGraphs: every one that differs from the goal is refused, and an accepted
one is equal in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

import mugraphs
import numpy as np
import pytest

from taso_mirage.errors import IllTyped, Undecidable
from taso_mirage.ir.mugraph import tile
from taso_mirage.ir.terms import Graph, Node, constant, topological, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.verdicts import Evidence, Failure

Make: TypeAlias = Callable[..., Node]
"""A term over the (mutated) operands of the term that it stands for."""

OTHERS = {
    "add": ["sub", "mul"],
    "sub": ["add", "mul"],
    "mul": ["add", "div"],
    "div": ["mul", "sub"],
    "exp": ["sqrt", "sigmoid"],
    "sqrt": ["exp", "abs"],
    "swish": ["sigmoid", "relu", "tanh"],
    "reduce_sum": ["reduce_max", "reduce_mean"],
    "reduce_max": ["reduce_sum", "reduce_min"],
    "reduce_mean": ["reduce_sum", "reduce_max"],
}


@dataclass(frozen=True)
class Mutation:
    """A change, and its mutant on request: IllTyped if it has no type."""

    kind: str
    make: Callable[[], Graph]


def replayed(outputs: tuple[Node, ...], edits: Mapping[Node, Make], leaves: Mapping[Node, Node]) -> tuple[Node, ...]:
    """`outputs` built again over other leaves, with some terms made otherwise; types are inferred
    anew."""
    done = dict(leaves)
    for node in topological(outputs):
        if node not in done:
            args = [done[a] for a in node.args]
            if node in edits:
                done[node] = edits[node](*args)
            else:
                done[node] = node if not node.args else term(node.op, *args, **dict(node.attrs))
    return tuple(done[o] for o in outputs)


def mutations(mugraph: Graph) -> Iterator[Mutation]:
    for node in mugraph:
        if node.op == "kernel":
            for kind, make in [*of_body(node), *of_maps(node), *of_operands(node)]:
                yield Mutation(kind, lambda node=node, make=make: _put(mugraph, node, make))  # type: ignore[misc]


def _put(mugraph: Graph, node: Node, make: Make) -> Graph:
    return Graph(mugraph.inputs, replayed(mugraph.outputs, {node: make}, {}))


def _with(node: Node, **attrs: Any) -> Make:
    return lambda *args: term("kernel", *args, **{**dict(node.attrs), **attrs})


# ---------------------------------------------------------------- the body


def of_body(node: Node) -> Iterator[tuple[str, Make]]:
    body: Graph = node.attr("body")
    for each in body:
        for kind, make in of_term(each, body):

            def edited(*args: Node, each: Node = each, make: Make = make) -> Node:
                return _with(node, body=Graph(body.inputs, replayed(body.outputs, {each: make}, {})))(*args)

            yield kind, edited
    for i, j in combinations(range(len(body.outputs)), 2):
        outputs = list(body.outputs)
        outputs[i], outputs[j] = outputs[j], outputs[i]
        yield "outputs exchanged", _with(node, body=Graph(body.inputs, tuple(outputs)))


def of_term(node: Node, body: Graph) -> Iterator[tuple[str, Make]]:
    """Mutants of one term of a body."""
    attrs = dict(node.attrs)
    for other in OTHERS.get(node.op, []):
        yield f"{node.op} is {other}", lambda *args, other=other: term(other, *args, **_shared(attrs))
    if len(node.args) == 2 and node.op not in ("add", "mul", "accumulate", "combine"):
        yield "operands exchanged", lambda a, b: term(node.op, b, a, **attrs)
    if "axes" in attrs:
        for axis in range(node.args[0].tensor.rank):
            if (axis,) != attrs["axes"]:
                yield "wrong axis", lambda *args, axis=axis: term(node.op, *args, **{**attrs, "axes": (axis,)})
    for i in range(len(node.args)):
        yield f"{node.op} dropped", lambda *args, i=i: args[i]
    if node.op == "constant":
        value = attrs["value"].numpy()
        yield from (("wrong constant", lambda v=v: constant(v, node.dtype)) for v in (2 * value, -value, value + 1))
    if node.op == "accumulate":
        yield from _accumulators(node)
    if node.op == "combine":
        yield from _combined(node)
    yield from _rewired(node, body)


def _shared(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k in ("axes", "keepdims")}


def _accumulators(node: Node) -> Iterator[tuple[str, Make]]:
    over, degree = node.attr("over"), node.attr("degree")
    for other in {"sum", "max"} - {over}:
        yield f"{over} is {other}", lambda x, *m, other=other: term("accumulate", x, over=other)
    if over == "rescaled":
        for other in (0, -degree, 2 * degree):
            yield (
                f"rescaled by degree {other}",
                lambda x, m, d=other: term("accumulate", x, m, over="rescaled", degree=d),
            )
        yield "rescaled by another maximum", lambda x, m: _rescaled(x, term("neg", m.args[0]), degree)
        yield "rescaled by twice the maximum", lambda x, m: _rescaled(x, term("add", m.args[0], m.args[0]), degree)


def _combined(node: Node) -> Iterator[tuple[str, Make]]:
    """Mutants of an exchange between the blocks of a cluster."""
    over, degree = node.attr("over"), node.attr("degree")
    for other in {"sum", "max"} - {over}:
        yield f"cluster: {over} is {other}", lambda x, *m, other=other: term("combine", x, over=other)
    yield "cluster: combined twice", lambda x, *m: term("combine", term("combine", x, *m, **dict(node.attrs)))
    if over == "variance":
        yield "cluster: another mean", lambda x, m: term("combine", x, term("add", m, m), over="variance")
    for other in (0, -degree, 2 * degree) if over == "rescaled" else ():
        yield (
            f"cluster: rescaled by degree {other}",
            lambda x, m, d=other: term("combine", x, m, over="rescaled", degree=d),
        )
    if over == "rescaled":
        for name, make in (("the others' maximum", lambda m: term("combine", m, over="max")), ("less", _negated)):
            yield (
                f"cluster: rescaled by {name}",
                lambda x, m, make=make: term("combine", x, make(m), over="rescaled", degree=degree),
            )


def _negated(x: Node) -> Node:
    return term("neg", x)


def _rescaled(x: Node, top: Node, degree: int) -> Node:
    return term("accumulate", x, term("running_max", top), over="rescaled", degree=degree)


def _rewired(node: Node, body: Graph) -> Iterator[tuple[str, Make]]:
    """One operand replaced by another term of the same type that does not depend on the node: a
    stale maximum, gate for up..."""
    above = {node}
    for each in body:
        if not above.isdisjoint(each.args):
            above.add(each)
    for i, old in enumerate(node.args):
        for new in body:
            if new is not old and new not in above and new.type == old.type:
                yield "rewired", lambda *args, i=i, new=new: _remade(node, [*args[:i], new, *args[i + 1 :]])
        if old.op == "running_max":
            yield "stale maximum", lambda *args, i=i: _remade(node, [*args[:i], args[i].args[0], *args[i + 1 :]])


def _remade(node: Node, args: list[Node]) -> Node:
    return term(node.op, *args, **dict(node.attrs))


# ---------------------------------------------------------------- the maps


def of_maps(node: Node) -> Iterator[tuple[str, Make]]:
    imap, fmap, omap = (node.attr(name) for name in ("imap", "fmap", "omap"))
    if node.attr("cluster") > 1:
        yield "no cluster", _with(node, cluster=1)
    for i, arg in enumerate(node.args):
        rank = arg.tensor.rank
        for axis in {*range(-1, rank)} - {fmap[i]}:
            if node.attr("loop") > 1:
                yield "wrong fmap", _mapped(node, fmap=(*fmap[:i], axis, *fmap[i + 1 :]))
        for g, old in enumerate(imap[i]):
            for axis in {*range(-1, rank)} - {old}:
                yield "wrong imap", _mapped(node, imap=_changed(imap, i, g, axis))
    for o, output in enumerate(node.attr("body").outputs):
        for g, old in enumerate(omap[o]):
            for axis in {*range(-1, output.tensor.rank)} - {old}:
                yield "wrong omap", _with(node, omap=_changed(omap, o, g, axis))
        for g, h in combinations(range(len(omap[o])), 2):
            exchanged = _changed(_changed(omap, o, g, omap[o][h]), o, h, omap[o][g])
            yield "omap exchanged", _with(node, omap=exchanged)


def _changed(maps: tuple[tuple[int, ...], ...], i: int, g: int, axis: int) -> tuple[tuple[int, ...], ...]:
    row = (*maps[i][:g], axis, *maps[i][g + 1 :])
    return (*maps[:i], row, *maps[i + 1 :])


def _mapped(node: Node, **maps: Any) -> Make:
    """The kernel under other maps, its body built again for the tiles that they give."""

    def make(*args: Node) -> Node:
        attrs = {**dict(node.attrs), **maps}
        body = attrs["body"]
        tiles = [
            variable(old.attr("name"), tile(x.tensor, attrs["grid"], attrs["imap"][i], attrs["fmap"][i], attrs["loop"]))
            for i, (old, x) in enumerate(zip(body.inputs, args, strict=True))
        ]
        outputs = replayed(body.outputs, {}, dict(zip(body.inputs, tiles, strict=True)))
        return term("kernel", *args, **{**attrs, "body": Graph(tuple(tiles), outputs)})

    return make


# ---------------------------------------------------------------- the operands


def of_operands(node: Node) -> Iterator[tuple[str, Make]]:
    kernel = _with(node)
    for i, j in combinations(range(len(node.args)), 2):
        yield "inputs exchanged", lambda *args, i=i, j=j: kernel(*_exchanged(args, i, j))
    for i, arg in enumerate(node.args):
        for kind, make in of_operand(arg):
            yield kind, lambda *args, i=i, make=make: kernel(*args[:i], make(args[i]), *args[i + 1 :])
        for g, axis in enumerate((*node.attr("imap")[i], node.attr("fmap")[i])):
            count = (*node.attr("grid"), node.attr("loop"))[g]
            if axis >= 0 and count > 1:
                for kind, make in of_tiles(arg, axis, count):
                    yield kind, lambda *args, i=i, make=make: kernel(*args[:i], make(args[i]), *args[i + 1 :])


def _exchanged(args: tuple[Node, ...], i: int, j: int) -> list[Node]:
    found = list(args)
    found[i], found[j] = found[j], found[i]
    return found


def of_operand(arg: Node) -> Iterator[tuple[str, Make]]:
    """The whole operand changed: shifted by a number, by a row of numbers along each dim, scaled,
    negated."""
    yield "shifted by a constant", lambda x: term("add", x, constant(3.0, x.dtype))
    yield "scaled", lambda x: term("mul", x, constant(2.0, x.dtype))
    yield "negated", lambda x: term("neg", x)
    for axis, n in enumerate(arg.shape):
        row = (1.0 + np.arange(int(n))).reshape(-1, *[1] * (arg.tensor.rank - axis - 1))
        yield "rows shifted by constants", lambda x, row=row: term("add", x, constant(row, x.dtype))
        yield "rows scaled by constants", lambda x, row=row: term("mul", x, constant(row, x.dtype))


def of_tiles(arg: Node, axis: int, count: int) -> Iterator[tuple[str, Make]]:
    """The tiles of one cut dim: the last one dropped, doubled or replaced by the first, and all of
    them moved on by one."""
    size = int(arg.shape[axis]) // count

    def cut(x: Node, start: int, stop: int) -> Node:
        return term("slice", x, starts=(start * size,), ends=(stop * size,), axes=(axis,), steps=(1,))

    def join(*xs: Node) -> Node:
        return term("concat", *xs, axis=axis)

    def last(change: Make) -> Make:
        return lambda x: join(cut(x, 0, count - 1), change(cut(x, count - 1, count)))

    yield "dropped tile", last(lambda t: term("sub", t, t))
    yield "doubled tile", last(lambda t: term("add", t, t))
    yield "repeated tile", lambda x: join(cut(x, 0, count - 1), cut(x, 0, 1))
    yield "tiles moved", lambda x: join(cut(x, 1, count), cut(x, 0, 1))


# ---------------------------------------------------------------- the tests


@dataclass(frozen=True)
class Counted:
    """How the mutants of one muGraph fared, by kind."""

    ill_typed: Counter[str]
    refused: Counter[str]
    equal: Counter[str]
    accepted: Counter[str]


def judge(mugraph: Graph, goal: Graph, most: int) -> Counted:
    """Count the refused mutants, at most `most` of each kind."""
    counted = Counted(Counter(), Counter(), Counter(), Counter())
    seen = {mugraph}
    for mutation in mutations(mugraph):
        try:
            mutant = mutation.make()
        except (IllTyped, Undecidable):
            counted.ill_typed[mutation.kind] += 1
            continue
        if mutant in seen or counted.refused[mutation.kind] >= most:
            continue
        seen.add(mutant)
        found = verified_mugraph(mutant, goal)
        assert isinstance(found, Evidence | Failure)
        if equal(mutant, goal):
            counted.equal[mutation.kind] += 1
        else:
            (counted.accepted if found else counted.refused)[mutation.kind] += 1
    return counted


def equal(mutant: Graph, goal: Graph) -> bool:
    """Whether a mutant is no mutant: equal to the goal in float64, to a rounding, on draws of its
    own."""
    if [o.type for o in mutant.outputs] != [o.type for o in goal.outputs]:
        return False
    for seed in range(3):
        rng = np.random.default_rng(1000 + seed)
        values = {n: rng.normal(size=n.shape) + 0.25 * seed for n in goal.inputs}
        with np.errstate(all="ignore"):
            ours, wanted = (list(interpret(g.outputs, EXACT, values).values()) for g in (mutant, goal))
        if not all(np.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(ours, wanted, strict=True)):
            return False
    return True


CASES: dict[str, tuple[Callable[[], mugraphs.Pair], int]] = {
    "rmsnorm_linear": (mugraphs.rmsnorm_linear, 50),
    "rmsnorm_linear_gamma_bias": (partial(mugraphs.rmsnorm_linear, gamma=True, bias=True), 75),
    "gated_mlp": (mugraphs.gated_mlp, 60),
    "lora": (mugraphs.lora, 60),
    "ntrans": (mugraphs.ntrans, 110),
    "attention": (mugraphs.attention_safe, 100),
    "attention_masked": (partial(mugraphs.attention_safe, masked=True), 120),
    "attention_split": (partial(mugraphs.attention_split_safe, blocks=2, keys=12, splits=3, loop=2), 200),
    "qknorm": (mugraphs.qknorm, 130),
    "attention_cluster": (partial(mugraphs.attention_cluster, blocks=2, keys=12, splits=3, loop=2), 140),
    "rmsnorm_linear_cluster": (mugraphs.rmsnorm_linear_cluster, 60),
    "long_rows": (mugraphs.long_rows, 25),
    "spread_cluster": (mugraphs.spread_cluster, 40),
}
"""A muGraph, and how many of its mutants that have a type and differ from the goal are refused, at
least."""


MANY = (
    "attention_masked",
    "rmsnorm_linear_cluster",
    "attention_split",
    "qknorm",
    "rmsnorm_linear_gamma_bias",
    "attention",
    "lora",
)
"""Graphs whose kinds of mutants others have too."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("most", [1, pytest.param(1000, marks=pytest.mark.slow)], ids=["of each kind", "every"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in MANY)) for n in CASES])
def test_every_mutant_is_refused(name: str, most: int) -> None:
    """By default one mutant of each kind."""
    make, least = CASES[name]
    mugraph, goal = make()
    assert verified_mugraph(mugraph, goal)
    counted = judge(mugraph, goal, most)
    assert counted.accepted == Counter()
    assert counted.refused.total() >= (least if most > 1 else least / 4)
    assert counted.ill_typed.total() > 0
    assert counted.equal.total() < counted.refused.total() / 8


def test_the_kinds_of_mutants_that_broke_published_systems_are_there() -> None:
    found: Counter[str] = Counter()
    for name in ("gated_mlp", "attention", "attention_split", "attention_cluster"):
        found += Counter(m.kind for m in mutations(CASES[name][0]()[0]))
    wanted = (
        "inputs exchanged;rewired;operands exchanged;wrong axis;dropped tile;repeated tile;tiles moved;"
        "accumulate dropped;sum is max;max is sum;rescaled is sum;rescaled by degree 0;rescaled by degree -1;"
        "rescaled by another maximum;stale maximum;running_max dropped;mul dropped;wrong constant;"
        "rows shifted by constants;shifted by a constant;wrong imap;wrong fmap;wrong omap;omap exchanged;outputs exchanged;"
        "no cluster;combine dropped;cluster: rescaled is sum;cluster: rescaled is max;cluster: rescaled by degree 0;"
        "cluster: rescaled by the others' maximum;cluster: rescaled by less"
    )
    assert [kind for kind in wanted.split(";") if not found[kind]] == []
