"""Operators with bodies (If, Loop, Scan, SequenceMap), nested and with captured values, and
functions of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from fuzz.generated.graph import Impossible, RandomGraph
from fuzz.generated.kernels import runs
from fuzz.generated.operators import other, step
from fuzz.generated.values import BOOL, FLOATS, INT64, SEQUENCE, Value

DEEPEST = 2
LOCAL = "local"


def wander(g: RandomGraph, like: Value, most: int = 3) -> Value:
    """A few steps, then a value of the type of another one that depends on some of them."""
    for _ in range(g.random.randint(0, most)):
        g.step()
    own = [v for v in g.values if (v.dtype, v.shape, v.container) == (like.dtype, like.shape, like.container)]
    x = g.choice(own) if own and g.chance(0.7) else like
    if like.dtype not in FLOATS:
        return g.add("Identity", x)
    y = g.add(g.choice(("Add", "Sub", "Mul")), g.bounded(x, 4.0), other(g, like), bound=16.0)
    if y.shape != like.shape:
        raise Impossible
    numbers = [
        v for v in g.values if v.dtype == like.dtype and v.container == like.container and v.rank and 0 not in v.shape
    ]
    if numbers and g.chance(0.6):  # one number of any other value
        z = g.bounded(g.choice(numbers), 4.0)
        y = g.add("Add", y, g.add("ReduceMean", z, keepdims=0), bound=20.0)
    return g.add("Tanh", y, bound=1.0) if g.chance(0.5) else g.add("Identity", y)


def deeper(g: RandomGraph) -> None:
    if g.depth >= DEEPEST:
        raise Impossible


def result(like: Value, bound: float = 20.0) -> Value:
    return replace(like, exact=like.dtype not in FLOATS, bound=max(bound, like.bound))


def condition(g: RandomGraph) -> Value:
    found = [v for v in g.visible() if v.dtype == BOOL and v.shape in ((), (1,)) and v.container == "tensor"]
    if found and g.chance(0.5):
        return g.choice(found)
    if g.chance(0.5):
        x = g.float(lambda v: v.exact and v.rank > 0 and 0 not in v.shape)
        return g.add("Greater", g.add("ReduceMax", x, keepdims=0, exact=True), g.like(x, g.choice((0.0, 1.0))))
    return g.constant(np.array(g.chance(0.5)))


@step("If")
def branches(g: RandomGraph, op: str) -> Value:
    deeper(g)
    chosen = condition(g)
    like = [g.float(lambda v: v.bound < 100)]
    if g.chance(0.3):
        like.append(g.some(g.dtype, INT64, where=lambda v: v.bound < 100))
    bodies = []
    for name in ("then", "else"):
        inner = g.inside()
        ends = [wander(inner, each) for each in like]
        bodies.append(inner.body([], ends, name))
    return g.state(op, "", [chosen], *map(result, like), then_branch=bodies[0], else_branch=bodies[1])[0]


@step("Loop")
def loop(g: RandomGraph, op: str) -> Value:
    deeper(g)
    states = [g.float(lambda v: v.bound < 100)]
    if g.chance(0.3):
        states.append(g.constant(np.array(g.choice((0, 1)))))
    turns = g.random.randint(0, 3)
    inner = g.inside()
    count, go = Value(g.name("i"), INT64, (), 3.0), Value(g.name("c"), BOOL, ())
    given = [replace(v, name=g.name("s"), bound=max(v.bound, 20.0), exact=False) for v in states]
    inner.values += [count, go, *given]
    ends = [wander(inner, given[0])]
    ends += [inner.add("Add", each, count) for each in given[1:]]
    scanned = [inner.bounded(inner.float(lambda v: v.rank < 4))] if g.chance(0.5) else []
    kept = [inner.add("Identity", each) for each in scanned]
    again = inner.add("Identity", go)
    if g.chance(0.3):
        again = inner.add("Less", count, np.array(g.choice((1, 5))))
    body = inner.body([count, go, *given], [again, *ends, *kept])
    limit = g.constant(np.array(turns)) if g.chance(0.9) else g.add("Size", g.constant(np.zeros(turns)))
    start = g.constant(np.array(True)) if g.chance(0.5) else None
    rows = turns if g.chance(0.5) else g.name("?")
    collected = [Value("", v.dtype, (rows, *v.shape), v.bound, False) for v in kept]
    made = g.state(op, "", [limit, start, *states], *map(result, states), *collected, body=body)
    return g.choice(made)


@step("Scan")
def scan(g: RandomGraph, op: str) -> Value:
    deeper(g)
    x = g.float(lambda v: v.rank > 1 and v.bound < 100 and 0 not in v.shape)
    like = g.weight(x.dtype, (2,))
    inner = g.inside()
    state = Value(g.name("s"), x.dtype, (2,), 20.0, False)
    row = Value(g.name("r"), x.dtype, x.shape[1:], x.bound, x.exact)
    inner.values += [state, row]
    end, out = wander(inner, state), wander(inner, row)
    body = inner.body([state, row], [end, out])
    backwards = {"scan_input_directions": [1]} if g.chance(0.3) else {}
    made = g.state(op, "", [like, x], result(like), result(x), body=body, num_scan_inputs=1, **backwards)
    return g.choice(made)


@step("SequenceMap")
def mapped(g: RandomGraph, op: str) -> Value:
    deeper(g)
    if g.opset < 17:
        raise Impossible
    x = g.float(lambda v: v.bound < 100)
    parts = g.add("SequenceConstruct", x, x)
    inner = g.inside()
    row = Value(g.name("r"), x.dtype, x.shape, x.bound, x.exact)
    inner.values.append(row)
    body = inner.body([row], [inner.add(g.choice(("Relu", "Neg")), row)])
    made = Value("", x.dtype, x.shape, x.bound, False, SEQUENCE, 2)
    return g.state(op, "", [parts], made, body=body)[0]


@step("function")
def function(g: RandomGraph, op: str) -> Value:
    """A call of a function of the model, new or known; some have an attribute of their own."""
    x = g.float(lambda v: v.bound < 50)
    inner = RandomGraph(g.random, g.opset, g.dtype)
    inner.steps, inner.depth, inner.counter, inner.functions = g.steps, 1, g.counter, g.functions
    formal = replace(x, name=g.name("a"))
    inner.values.append(formal)
    end = wander(inner, formal, 2)
    held = [helper.make_node("Constant", [], [w.name], value=w) for w in inner.weights]
    taken = {"alpha": 0.3} if g.chance(0.3) and runs(g.schema("LeakyRelu"), {"T": end.dtype}) else {}
    nodes = [*held, *inner.nodes]
    if taken:
        node = helper.make_node("LeakyRelu", [end.name], [g.name()])
        node.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha"))
        nodes.append(node)
        end = replace(end, name=node.output[0])
    name = f"Function{len(g.functions)}"
    domains = {each.domain for each in every(nodes)} | {""}
    versions = {"": g.opset, LOCAL: 1, "com.microsoft": 1, "ai.onnx.ml": 3}
    opsets = [helper.make_opsetid(domain, versions[domain]) for domain in sorted(domains)]
    made = helper.make_function(LOCAL, name, [formal.name], [end.name], nodes, opsets, [*taken])
    if inner.inputs:
        raise Impossible
    g.functions.append(made)
    calls = g.choice((1, 1, 2))
    for _ in range(calls):
        x = g.state(name, LOCAL, [x], result(x), **taken)[0]
    return x


def every(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from every(attribute.g.node)
