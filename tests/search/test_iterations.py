"""Iterations that read no sequence, and steps with weights of their own, become loops, by
equalities that the checker accepts; so do chains inside of bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest
from bodies import optimized, parse
from onnx_texts import run
from written_chains import ARRAYS, CELL, COUNT, FEEDS, PROOFS, RNG, count_of, followed, loops, model, rerolled

from taso_mirage.ir.terms import substitute
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.bodies import ChangedBody, bodies_of, with_bodies
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.expressions import is_weight
from taso_mirage.pipeline.loops import with_chains
from taso_mirage.report.result import Result
from taso_mirage.search.loops.chain_loops import rerolled_chains
from taso_mirage.search.steps import BODIES as BODIES_OF_NODES
from taso_mirage.search.steps import BodySteps, RewriteStep

ALONE = {name: CELL[name] for name in ("q", "f", "k", "n", "c", "e", "h", "y", "u")}
ALONE |= {"f": "Sigmoid(q{t})", "n": "Tanh(q{t})"}
"""A cell that reads its states alone."""
OWN = {**{name: CELL[name] for name in ("x", "p", "q", "g")}, "v": "Add(g{t}, b{t})", **CELL, "f": "Sigmoid(v{t})"}
"""A cell that adds a weight of its step."""


def with_weights(proto: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return proto


def biases(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {f"b{t}": RNG.normal(size=shape).astype(np.float32) for t in range(1, COUNT + 1)}


def test_an_iteration_is_a_loop_that_carries_its_states_alone() -> None:
    before, after, steps = rerolled(model(cell=ALONE))
    (loop,) = loops(after)
    assert (count_of(loop), loop.attr("states"), loop.attr("sequences")) == (COUNT, 2, 1)
    assert loop.args[2].attr("value").numpy().tolist() == [*range(COUNT)]  # which no step reads
    followed(before, after, steps)


def test_the_result_of_an_iteration_needs_no_values_of_all_steps() -> None:
    """A projection of the last states alone stays behind the loop."""
    proto = model(cell=ALONE)
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(f"y{COUNT}", 1, (2, 2)))
    before, after, steps = rerolled(proto)
    (loop,) = loops(after)
    assert [o.shape for o in loop.attr("body").outputs] == [(2, 4), (2, 4)]
    assert after.graph.outputs[0].op == "matmul"
    followed(before, after, steps)


def test_a_larger_term_of_the_last_step_stays_behind_the_loop() -> None:
    """The matrix that Sinkhorn's iteration scales: its sums are of each step, it is of the last."""
    lines = []
    for t in range(1, COUNT + 1):
        lines += [f"a{t} = Add(Z, v{t - 1})", f"r{t} = ReduceSum(a{t}, last)", f"u{t} = Neg(r{t})"]
        lines += [f"d{t} = Add(Z, u{t})", f"s{t} = ReduceSum(d{t}, first)", f"v{t} = Neg(s{t})"]
    text = f"""
        g (float[5, 7] Z, float[1, 7] v0) => (float[5, 7] y) {{
            {chr(10).join(lines)}
            y = Add(d{COUNT}, v{COUNT})
        }}"""
    proto = parse(text, {"last": np.array([1]), "first": np.array([0])})
    before = from_memory(proto)
    result = with_chains(unchanged(proto))
    assert result is not None
    (loop,) = loops(result.model)
    assert all(o.shape in ((1, 7), (5, 1)) for o in loop.attr("body").outputs)
    followed(before, result.model, [*result.steps])


@pytest.mark.parametrize("name", ["weights", "rows of a weight"])
@pytest.mark.parametrize("backward", [False, True])
def test_small_weights_of_each_step_are_a_sequence(name: str, backward: bool) -> None:
    changes = {t: {"x": f"Gather<axis = 1>(X, i{COUNT + 1 - t})"} for t in range(1, COUNT + 1)} if backward else {}
    order = tuple(range(COUNT, 0, -1)) if backward else ()
    if name == "weights":
        proto = with_weights(model(changes, cell=OWN, order=order), **biases((4,)))
    else:
        table = {**OWN, "b": "Gather(E, i{t})"}
        cell = {key: table[key] for key in ("x", "p", "q", "g", "b", *[n for n in OWN if n not in "xpqg"])}
        rows = RNG.normal(size=(COUNT + 2, 4)).astype(np.float32)
        proto = with_weights(model(changes, cell=cell, order=order), E=rows)
    before, after, steps = rerolled(proto)
    (loop,) = loops(after)
    assert (count_of(loop), loop.attr("sequences"), loop.attr("backward")) == (COUNT, 2, int(backward))
    assert sum(is_weight(x) for x in loop.args[2:4]) == 1
    assert followed(before, after, steps).places == len(steps[0].obligations)


PEEPHOLES = {"c": "Mul(c{s}, P)", "a norm of c": "Mul(l{t}, P)"}


@pytest.mark.parametrize("name", PEEPHOLES)
def test_a_term_of_the_step_before_is_computed_in_the_step_that_reads_it(name: str) -> None:
    """The anchor may be the hidden state, on which the older cell state does not depend."""
    norm = {} if name == "c" else {"m": "Add(c{s}, P)", "o": "Exp(m{t})", "l": "Div(o{t}, P)"}
    cell = {key: CELL[key] for key in ("x", "p", "q")} | norm
    cell |= {"v": PEEPHOLES[name], "w": "Add(p{t}, q{t})", "g": "Add(w{t}, v{t})"}
    cell |= {key: CELL[key] for key in CELL if key not in cell}
    before, after, steps = rerolled(with_weights(model(cell=cell), P=ARRAYS["R"][0]))
    (loop,) = loops(after)
    assert (count_of(loop), loop.attr("states"), loop.attr("sequences")) == (COUNT, 2, 1)
    followed(before, after, steps)


def test_large_weights_of_each_step_stay() -> None:
    """A loop would copy them in each step: the layers of a transformer, for example."""
    cell = {**CELL, "e": "Tanh(d{t})"}
    cell = {name: cell[name] for name in ("x", "p", "q", "g", "f", "k", "n", "c")}
    cell |= {"l": "MatMul(c{t}, b{t})", "d": "MatMul(l{t}, D)", "e": "Tanh(d{t})", "h": CELL["h"]}
    cell |= {"y": CELL["y"], "u": CELL["u"]}
    wide = RNG.normal(size=(40, 4)).astype(np.float32)
    proto = with_weights(model(cell=cell), D=wide, **biases((4, 40)))
    assert rerolled(proto)[2] == []


def test_a_weight_that_one_step_alone_has_does_not_repeat_the_others() -> None:
    same = {f"b{t}": ARRAYS["R"][0] * (1 + (t == 6)) for t in range(1, COUNT + 1)}
    changed = {t: {"v": f"Add(g{t}, b1)"} for t in range(1, COUNT + 1) if t != 6}
    assert rerolled(with_weights(model(changed, cell=OWN), **same))[2] == []


def unchanged(proto: onnx.ModelProto) -> Result:
    """The result that is the original."""
    _, found = optimized(proto)
    made = from_memory(proto)
    return replace(found, original=made, model=made, steps=(), changed=False)


def test_copies_of_a_weight_are_one() -> None:
    """Copies of a transposed weight, which torch.export writes for each call of a layer."""
    copies = {f"R{t}": ARRAYS["R"] for t in range(1, COUNT + 1)}
    changes = {t: {"q": f"MatMul(h{t - 1}, R{t})"} for t in range(1, COUNT + 1)}
    proto = with_weights(model(changes), **copies)
    result = with_chains(unchanged(proto))
    assert result is not None
    assert [count_of(each) for each in loops(result.model)] == [COUNT]
    assert any("10 steps of a recurrence" in each for each in result.remarks)
    assert result.terms_after < result.terms_before
    followed(result.original, result.model, [*result.steps])


def test_a_model_without_chains_gets_no_loops() -> None:
    assert with_chains(unchanged(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))) is None


def test_tables_of_one_number_are_repeated_in_the_body() -> None:
    """The time of each step, as torch.export writes it: a tensor of one number."""
    full = {f"b{t}": np.full((2, 4), t / 10, np.float32) for t in range(1, COUNT + 1)}
    before, after, steps = rerolled(with_weights(model(cell=OWN), **full))
    (loop,) = loops(after)
    assert sorted(x.shape for x in loop.args[2:4]) == [(COUNT, 1, 1), (COUNT, 2, 3)]
    followed(before, after, steps)


BRANCH = """
    g (bool c, float[2, {count}, 3] X, float[2, 4] h0, float[2, 4] c0) => (float[2, {count}, 2] Y) {{
        Y = If (c) <
            then_branch = then () => (float[2, {count}, 2] A) {{ {chain} }},
            else_branch = other () => (float[2, {count}, 2] B) {{ B = Expand(zero, shape) }}
        >
    }}"""
LOOP = """
    g (int64 n, float[2, {count}, 3] X, float[2, 4] first, float[2, 4] c0) => (float[2, 4] Y) {{
        Y = Loop (n, , first) <body = body (int64 i, bool go, float[2, 4] h0) => (bool on, float[2, 4] h{count}) {{
            {chain}
            on = Identity(go) }}>
    }}"""


def inside(text: str) -> onnx.ModelProto:
    """A recurrence that is written out inside of a body."""
    steps = range(1, COUNT + 1)
    lines = [f"{name}{t} = {made.format(t=t, s=t - 1)}" for t in steps for name, made in CELL.items()]
    lines.append(f"A = Concat<axis = 1>({', '.join(f'u{t}' for t in steps)})")
    given = {f"i{t}": np.array(t - 1) for t in range(COUNT + 2)}
    given |= {"zero": np.zeros(1, np.float32), "shape": np.array([2, COUNT, 2])}
    return parse(text.format(count=COUNT, chain="\n".join(lines)), {**ARRAYS, **given})


BODIES: dict[str, tuple[str, Mapping[str, np.ndarray]]] = {
    "a branch": (BRANCH, {"c": np.array(True)}),
    "a loop": (LOOP, {"n": np.array(3)}),
}


@pytest.mark.parametrize("name", BODIES)
def test_chains_inside_of_bodies_become_loops(name: str) -> None:
    text, feeds = BODIES[name]
    proto = inside(text)
    before = from_memory(proto)
    (node,) = [n for n in before.nodes() if n.op == "opaque"]
    body = next(each for each in bodies_of(before, node) if len(each.model.nodes()) > COUNT)
    steps = [*rerolled_chains(body.model.graph.outputs, PROOFS)]
    (loop,) = steps[0].unrolled
    made = body.model.with_graph(substitute(body.model.graph.outputs, steps[0].table))
    new = with_bodies(before, node, [ChangedBody(body, made, {})])
    done = BodySteps(body, made, tuple(steps), {}, {})
    after = before.with_graph(substitute(before.graph.outputs, {node: new}))
    whole = [RewriteStep((BODIES_OF_NODES,), (node,), (new,), inside=(done,))]
    assert count_of(loop) == COUNT
    feeds = {**FEEDS, "first": FEEDS["h0"], "X": RNG.normal(size=(2, COUNT, 3)).astype(np.float32), **feeds}
    feeds = {n: x for n, x in feeds.items() if n in before.input_names}
    for a, b in zip(run(proto, **feeds), run(onnx.load_from_string(serialize(after)), **feeds), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    followed(before, after, whole)
