"""The random model of a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random

import onnx
from onnx import helper

from fuzz.generated import algebra, bodies, containers, layers, microsoft, movement, quantized
from fuzz.generated.graph import LARGEST, MACHINE_LEARNING, MICROSOFT, Impossible, RandomGraph
from fuzz.generated.kernels import NEWEST
from fuzz.generated.motifs import MOTIFS
from fuzz.generated.names import rename
from fuzz.generated.operators import STEPS
from fuzz.generated.values import BFLOAT, BOOL, DOUBLE, FLOAT, HALF, INT64, STRING, Shape, Value

MODULES = (algebra, bodies, containers, layers, microsoft, movement, quantized)
"""Modules that register steps when they are imported."""
OLDEST, USUAL = 11, (13, 17, 18, 20, 21)
DTYPES = (*(FLOAT,) * 16, DOUBLE, DOUBLE, HALF, BFLOAT)
LARGE = 0.15
"""The share of models with values of thousands of elements."""
SHAPES = ([2, 3, 4], [1, 4], [4], [1, 2, 6, 6], [2, 4, 4, 4], [2, 6], [3, 4, 6], [], [1, 3, 8], [0, 3])
LARGER = ([1, 16, 14, 14], [2, 8, 64], [64, 32], [1, 12, 16, 16], [1, 32, 8, 8], [4, 128])
DOMAINS = {MICROSOFT: 1, MACHINE_LEARNING: 3, bodies.LOCAL: 1}
TEXTS = 6000
"""The first seed whose models may have texts as inputs; tables have results of those before."""
OF_TEXTS = ("StringConcat", "RegexFullMatch", "ai.onnx.ml.LabelEncoder", "SequenceLength")
"""Steps that follow on such an input."""
TAUGHT = frozenset({"If", "Loop", "Scan", "function"})
"""Steps that are drawn more often."""


def random_model(seed: int) -> bytes:
    """The model of a seed, as bytes."""
    return bytes(model_of(seed).SerializeToString())


def model_of(seed: int) -> onnx.ModelProto:
    """The model of a seed: up to four inputs, and up to 25 operators and patterns."""
    random = Random(seed)
    opset = random.choice(USUAL) if random.random() < 0.4 else random.randint(OLDEST, NEWEST)
    g = RandomGraph(random, opset, random.choice(DTYPES))
    names = [*STEPS, *[each for each in STEPS if each in TAUGHT] * 4]
    g.steps = tuple(STEPS[each] for each in names)
    g.focus = random.choice((0.0, 0.3, 0.8))
    g.most = 2**16 if random.random() < LARGE else LARGEST
    g.texts = seed >= TEXTS
    given(g)
    for _ in range(random.randint(3, 22)):
        if random.random() < 0.4:
            with suppress(Impossible):
                random.choice([*MOTIFS.values()])(g)
        else:
            g.step()
    return finished(g)


def model_with(step: Callable[[RandomGraph], object], seed: int, opset: int) -> onnx.ModelProto | None:
    """A model of a single step or pattern, and what it needs; None where it does not fit."""
    g = RandomGraph(Random(seed), opset)
    g.steps = tuple(STEPS.values())
    given(g)
    try:
        step(g)
    except Impossible:
        return None
    return finished(g)


def given(g: RandomGraph) -> None:
    """The first inputs."""
    free = g.chance(0.35)
    for _ in range(g.random.randint(1, 3)):
        shape: list[int | str] = g.choice(LARGER if g.most > LARGEST else SHAPES)
        named: Shape = ("N", *shape[1:]) if free and shape and g.chance(0.8) else tuple(shape)
        if free and len(named) == 3 and g.chance(0.5):
            named = (named[0], "S", named[2])
        g.input(g.dtype, named)
    if g.chance(0.25):
        g.input(
            g.choice((INT64, BOOL, onnx.TensorProto.INT32, onnx.TensorProto.UINT8)),
            g.choice(((3,), (2, 3), ())),
        )
    if g.texts and g.chance(0.3):
        g.input(STRING, g.choice((("N", 2), (2, 2), (3,), ())))
        for each in g.random.sample(OF_TEXTS, 2):
            with suppress(Impossible):
                STEPS[each](g)


def outputs(g: RandomGraph) -> list[Value]:
    """Values that nothing reads, now and then also one that something reads, an input or a
    weight."""
    read = {name for node in g.nodes for name in reads(node)}
    made = {name for node in g.nodes for name in node.output}
    own = [v for v in g.values if v.name in made and not v.fixed]
    ends = [v for v in own if v.name not in read] or own[-1:] or [g.add("Identity", g.input(FLOAT, (2, 3)))]
    chosen = g.random.sample(ends, min(len(ends), g.random.randint(1, 4)))
    inside = [v for v in own if v not in chosen]
    if inside and g.chance(0.35):
        chosen.append(g.choice(inside))
    if g.chance(0.04):
        chosen.append(g.choice(g.inputs))
    weights = {w.name for w in g.weights}
    held = [v for v in g.values if v.name in weights]
    if held and g.chance(0.04):
        chosen.append(g.choice(held))
    return list(dict.fromkeys(chosen))


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node and its bodies read."""
    yield from node.input
    for body in [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]:
        yield from (each.name for each in body.output)
        for each in body.node:
            yield from reads(each)


def finished(g: RandomGraph) -> onnx.ModelProto:
    """The model of what the chosen outputs need, and now and then of something more."""
    ends = outputs(g)
    nodes, needed = live(g.nodes, {v.name for v in ends}, g.chance(0.04))
    weights = [w for w in g.weights if w.name in needed]
    inputs = [v for v in g.inputs if v.name in needed]
    floats = [v for v in g.values if v.dtype == FLOAT and v.name in {w.name for w in weights}]
    inputs += floats[:1] if g.chance(0.02) else []  # an input with a default
    graph = helper.make_graph(nodes, "graph", [v.info() for v in inputs], [v.info() for v in ends], weights)
    functions = called(g, nodes)
    domains = {each.domain for each in bodies.every(nodes)} | {
        each.domain for f in functions for each in bodies.every(f.node)
    }
    opsets = [helper.make_opsetid("", g.opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in DOMAINS.items() if domain in domains]
    oldest = helper.find_min_ir_version_for([opsets[0]], True)
    version = max(oldest, 8 if functions else 0, g.choice((7, 8, 9, 10)))
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=version, producer_name="")
    rename(model, g.random)
    return model


def live(nodes: Sequence[onnx.NodeProto], needed: set[str], more: bool) -> tuple[list[onnx.NodeProto], set[str]]:
    """Nodes on which outputs depend, and all that they read; also some others of the same
    values."""
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(reads(node))
    kept.reverse()
    if more:
        made = needed | {name for node in kept for name in node.output}
        extra = [n for n in nodes if n not in kept and n.input and made.issuperset(reads(n))]
        kept += [n for n in extra[:1] if not any(a.type == onnx.AttributeProto.GRAPH for a in n.attribute)]
    return kept, needed


def called(g: RandomGraph, nodes: Sequence[onnx.NodeProto]) -> list[onnx.FunctionProto]:
    """Functions that nodes, or other functions of these, call."""
    names = {each.op_type for each in bodies.every(nodes) if each.domain == bodies.LOCAL}
    for function in reversed(g.functions):
        if function.name in names:
            names |= {each.op_type for each in bodies.every(function.node) if each.domain == bodies.LOCAL}
    return [function for function in g.functions if function.name in names]
