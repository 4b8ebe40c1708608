"""Recurrences whose steps are written out become loops, by equalities that the checker accepts;
chains in which one step is another one keep that step as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import pytest
from bodies import optimized, parse
from onnx_texts import run
from written_chains import CELL, COUNT, FEEDS, PROOFS, RNG, count_of, followed, loops, model, rerolled

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.format import CERTIFICATE_FORMAT
from taso_mirage.certificates.judge import CaseJudge
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.terms import Tensor, constant, substitute, topological, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.content_terms import opened
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules import lift as lift_rules
from taso_mirage.report.certificate import certificate
from taso_mirage.search.loops.chains import FEWEST


def test_a_recurrence_that_is_written_out_becomes_one_loop() -> None:
    before, after, steps = rerolled(model())
    (loop,) = loops(after)
    assert (count_of(loop), loop.attr("states"), loop.attr("sequences")) == (COUNT, 2, 1)
    assert len(steps) == 1
    assert not any(n.op in ("tanh", "gather", "concat") for n in after.nodes())
    assert followed(before, after, steps).places == len(steps[0].obligations)


@pytest.mark.parametrize(
    "changes",
    [
        {"x": "Slice(X, i{s}, i{t}, one)", "p": "MatMul(z{t}, W)", "z": "Squeeze(x{t}, one)"},
        {"x": "Slice(X, i{s}, i{t}, one)", "p": "MatMul(z{t}, W)", "z": "Reshape(x{t}, flat)"},
    ],
    ids=["Squeeze", "Reshape"],
)
def test_parts_may_be_slices(changes: dict[str, str]) -> None:
    names = ("x", "z", *CELL)
    cell = {name: {**CELL, **changes}[name] for name in dict.fromkeys(names)}
    cell["x"] = "Slice(X, j{s}, j{t}, one)"
    proto = model(cell=cell)
    arrays = {f"j{t}": np.array([t]) for t in range(COUNT + 1)} | {"flat": np.array([2, 3])}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    _, after, _ = rerolled(proto)
    assert [count_of(each) for each in loops(after)] == [COUNT]


def test_elements_may_be_of_a_part_of_another_tensor() -> None:
    proto = model(cell={**CELL, "x": "Gather<axis = 1>(P, i{t})"})
    nodes = [
        onnx.helper.make_node("Concat", ["X", "X"], ["Q"], axis=2),
        onnx.helper.make_node("Slice", ["Q", "zero", "three", "two"], ["P"]),
    ]
    rest = [*proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, *rest])
    arrays = {"zero": [0], "three": [3], "two": [2]}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(a), n) for n, a in arrays.items())
    before, after, steps = rerolled(proto)
    assert [count_of(each) for each in loops(after)] == [COUNT]
    followed(before, after, steps)


def test_a_recurrence_from_the_last_element_on_is_a_loop_backward() -> None:
    backward = {t: {"x": f"Gather<axis = 1>(X, i{COUNT + 1 - t})"} for t in range(1, COUNT + 1)}
    for order in (range(COUNT, 0, -1), range(1, COUNT + 1)):
        before, after, steps = rerolled(model(backward, order=tuple(order)))
        (loop,) = loops(after)
        assert (loop.attr("backward"), count_of(loop)) == (1, COUNT)
        followed(before, after, steps)


def test_layers_of_one_step_become_loops_one_after_the_other() -> None:
    upper = {
        f"{name}U": made.replace("x{t}", "h{t}").replace("c{", "cU{").replace("h{s}", "hU{s}")
        for name, made in CELL.items()
        if name not in ("x", "y", "u")
    }
    names = [name for name in CELL if name not in ("x", "y", "u")]
    for name in upper:
        for own in names:
            upper[name] = upper[name].replace(f"{own}{{t}}", f"{own}U{{t}}")
    upper |= {"pU": "MatMul(h{t}, T)", "qU": "MatMul(hU{s}, S)"}
    cell: dict[str, str] = {**{n: m for n, m in CELL.items() if n not in ("y", "u")}, **upper}
    cell |= {"y": "MatMul(hU{t}, O)", "u": CELL["u"]}
    proto = model(cell=cell, changes={1: {"qU": "MatMul(h0, S)", "kU": "Mul(fU1, c0)"}})
    before, after, steps = rerolled(proto)
    assert [count_of(each) for each in loops(after)] == [COUNT, COUNT]
    followed(before, after, steps)


def test_results_of_single_steps_are_elements_of_all() -> None:
    proto = model(outputs=", float[2, 4] h3, float[2, 4] c10")
    before, after, steps = rerolled(proto)
    assert [count_of(each) for each in loops(after)] == [COUNT]
    followed(before, after, steps)


def test_outputs_in_another_order_are_not_those_of_the_loop() -> None:
    before, after, steps = rerolled(model(order=(2, 1, *range(3, COUNT + 1))))
    assert any(n.op == "concat" for n in after.nodes())
    followed(before, after, steps)


LATER = {
    "another function": {"n": "Sigmoid(g{t})"},
    "another weight": {"q": "MatMul(h{s}, T)"},
    "another order of operands": {"k": "Mul(c{s}, f{t})"},
    "a state of an earlier step": {"q": "MatMul(h4, R)"},
    "states that changed places": {"q": "MatMul(c{s}, R)"},
    "a number": {"e": "Elu<alpha = 0.5>(c{t})"},
}


@pytest.mark.parametrize("name", LATER)
def test_a_step_that_is_another_one_stays(name: str) -> None:
    """If the sixth of 10 steps is another one, not FEWEST of them in a row are alike; of 20 only
    those after it become a loop."""
    proto = model({6: LATER[name]})
    assert rerolled(proto)[2] == []
    proto = model({6: LATER[name]}, count=20)
    before, after, steps = rerolled(proto)
    assert all(FEWEST - 1 <= count_of(each) <= 14 for each in loops(after))
    followed(before, after, steps)


def numbered(numbers: Sequence[Any], cell: Mapping[str, str], **given: Any) -> onnx.ModelProto:
    """A recurrence whose step `t` reads the number `r{t}`."""
    proto = model(cell=cell, **given)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, f"r{t}") for t, a in enumerate(numbers))
    return proto


SCALED = {
    name: made
    for key in CELL
    for name, made in (((key, CELL[key]), ("v", "Mul(g{t}, r{t})")) if key == "g" else ((key, CELL[key]),))
}
SCALED["f"] = "Sigmoid(v{t})"
SINES = [np.array(np.sin(7 * t), np.float32) for t in range(COUNT + 1)]
BACKWARD = {t: {"x": f"Gather<axis = 1>(X, i{COUNT + 1 - t})"} for t in range(1, COUNT + 1)}


@pytest.mark.parametrize("backward", [False, True])
def test_numbers_of_each_step_are_a_sequence(backward: bool) -> None:
    """Numbers of a schedule, in both directions of the other sequence."""
    given = {"changes": BACKWARD, "order": tuple(range(COUNT, 0, -1))} if backward else {}
    before, after, steps = rerolled(numbered(SINES, SCALED, **given))
    (loop,) = loops(after)
    assert (count_of(loop), loop.attr("sequences"), loop.attr("backward")) == (COUNT, 2, int(backward))
    followed(before, after, steps)


def test_the_place_of_a_step_chooses_a_row_of_a_table() -> None:
    """An embedding of positions, and elements of a sequence in another order."""
    table = {**CELL, "a": "Gather(S, r{t})", "g": "Add(b{t}, q{t})", "b": "Add(p{t}, a{t})"}
    cell = {name: table[name] for name in ("x", "p", "q", "a", "b", *[n for n in CELL if n not in "xpq"])}
    before, after, steps = rerolled(numbered([np.array(t % 4) for t in range(COUNT + 1)], cell))
    assert [count_of(each) for each in loops(after)] == [COUNT]
    followed(before, after, steps)
    other = model({6: {"x": "Gather<axis = 1>(X, i2)"}})
    before, after, steps = rerolled(other)
    assert [count_of(each) for each in loops(after)] == [COUNT]
    followed(before, after, steps)


def test_other_numbers_are_another_loop() -> None:
    before, after, steps = rerolled(numbered(SINES, SCALED))
    (loop,) = loops(after)
    (numbers,) = [a for a in loop.args if a.op == "constant"]
    values = numbers.attr("value").numpy()
    for wrong in (np.roll(values, 1), values[::-1], np.where(np.arange(COUNT) == 3, 0, values).astype(np.float32)):
        made = substitute((loop,), {numbers: constant(np.ascontiguousarray(wrong))})[0]
        table = {loop: made}
        other = replace(steps[0], new=substitute(steps[0].new, table), unrolled=(made,))
        with pytest.raises(CheckFailed):
            followed(before, after.with_graph(substitute(after.graph.outputs, table)), [other])


def test_numbers_of_several_types_are_no_sequence() -> None:
    numbers = [a.reshape(1) if t == 5 else a for t, a in enumerate(SINES)]
    assert rerolled(numbered(numbers, SCALED))[2] == []


def test_elements_beside_numbers_are_no_parts() -> None:
    """Each step reads an element of a sequence with a column of numbers beside it."""
    cell = {"r": CELL["x"], "x": "Concat<axis = 1>(r{t}, column)", "p": "MatMul(x{t}, wide)"}
    proto = model(cell={**cell, **{name: made for name, made in CELL.items() if name not in cell}})
    arrays = {"column": np.ones((2, 1), np.float32), "wide": RNG.normal(size=(4, 4)).astype(np.float32)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    before, after, steps = rerolled(proto)
    assert [count_of(each) for each in loops(after)] == [COUNT]
    followed(before, after, steps)


@pytest.mark.parametrize("steps", [range(1, COUNT + 1), range(3, 4)], ids=["each", "one"])
def test_results_may_be_split_after_their_step(steps: range) -> None:
    proto = model()
    for t in steps:
        proto.graph.node.append(onnx.helper.make_node("Split", [f"h{t}"], [f"a{t}", f"b{t}"], axis=1))
        proto.graph.node.append(onnx.helper.make_node("Mul", [f"a{t}", f"b{t}"], [f"m{t}"]))
        proto.graph.output.append(onnx.helper.make_tensor_value_info(f"m{t}", onnx.TensorProto.FLOAT, (2, 2)))
    before, after, made = rerolled(proto)
    assert [count_of(each) for each in loops(after)] == [COUNT]
    followed(before, after, made)


def test_a_second_result_that_one_step_gives_alone_stays() -> None:
    """Each step uses one half of a split, and the model uses the other one of the third step."""
    proto = model()
    for node in proto.graph.node:
        if node.op_type == "Tanh" and node.output[0].startswith("n"):
            node.input[0] = f"a{node.output[0][1:]}"
    split = [(f"a{t}", f"b{t}", f"g{t}") for t in range(1, COUNT + 1)]
    nodes = []
    for node in proto.graph.node:
        nodes.append(node)
        for a, b, g in split if node.output[0].startswith("g") else ():
            if node.output[0] == g:
                nodes.append(onnx.helper.make_node("Concat", [g, g], [f"w{g}"], axis=1))
                nodes.append(onnx.helper.make_node("Split", [f"w{g}"], [a, b], axis=1))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("b3", onnx.TensorProto.FLOAT, (2, 4)))
    before, after, made = rerolled(proto)
    assert made == []
    assert after.graph == before.graph


def test_few_steps_stay() -> None:
    assert rerolled(model(count=FEWEST - 2))[2] == []


WRONG = {
    "another function": ("tanh(", "sigmoid("),
    "another direction": ("backward=0", "backward=1"),
    "fewer states": ("states=2", "states=1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_certificate_with_another_loop_is_refused(name: str) -> None:
    before, after, steps = rerolled(model())
    _, result = optimized(onnx.load_from_string(serialize(before)))
    text = certificate(replace(result, original=before, model=after, steps=tuple(steps), changed=True), {}, PROOFS)
    (at,) = [i for i, record in enumerate(text["records"]) if record[0] == "unrolled"]
    _, loop, operands = text["records"][at]
    old, new = WRONG[name]
    assert old in loop
    records = [*text["records"][:at], ["unrolled", loop.replace(old, new), operands], *text["records"][at + 1 :]]
    with pytest.raises(CheckFailed):
        follow(before, after, {**text, "records": records}, CaseJudge(strict=True))


def test_a_certificate_leads_to_no_other_loop() -> None:
    before, after, steps = rerolled(model())
    (loop,) = loops(after)
    first, second, *rest = loop.args
    other = term(loop.op, second, first, *rest, **dict(loop.attrs))
    wrong = after.with_graph(substitute(after.graph.outputs, {loop: other}))
    with pytest.raises(CheckFailed, match="does not lead"):
        followed(before, wrong, steps)


def test_an_unrolled_record_names_a_loop_alone() -> None:
    before, after, steps = rerolled(model())
    for text in ("def f(x: input('x', float32[2, 4])):\n    y = tanh(x)\n    return y", "nothing"):
        with pytest.raises(CheckFailed):
            followed(before, after, steps, records=[["unrolled", text, [0]]])


NEGATED = "(float[3] a, float[3] b) => (float[3] y, float[3] z) {{ y = Neg({})\n z = Neg(b) }}"
STATE = "input('state {} of a loop at depth 1', float32[3])"
ONE = ["leaf", "def f():\n    v0 = constant(value=array('float32', (1,), [0.0]))\n    return v0\n", []]
"""A sequence of one element: the number 4 among the terms."""


def one_step(states: list[int], others: list[int], result: str, *lines: str) -> list[Any]:
    """A record of a loop of one step over terms, by their numbers. Its body has the states s0, s1,
    ... and reads the others, o0, ..., whole."""
    whole = [f"{k}{i}: input('{k}{i}', float32[3])" for k, n in (("s", states), ("o", others)) for i in range(len(n))]
    heads = [", ".join([*whole[: len(states)], f"e: input('e', float32[{n}])", *whole[len(states) :]]) for n in "1("]
    names = ", ".join(each.partition(":")[0] for each in heads[0].split(", ") if ":" in each)
    body = "\n        ".join([f"def step({heads[1].replace('[(', '[()')}):", *lines, f"return {result}"])
    made = f"scan({names}, body=step, states={len(states)}, sequences=1)"
    return ["unrolled", f"def f({heads[0]}):\n    {body}\n    v = {made}\n    return v\n", [*states, 4, *others]]


def equality(lhs: str, rhs: str) -> dict[str, Any]:
    head = "(x: input('x', float32[3]), y: input('y', float32[3])):\n    return"
    return {"lhs": f"def lhs{head} {lhs}\n", "rhs": f"def rhs{head} {rhs}\n", "proof": "symbolic"}


ATTACKS: dict[str, list[Any]] = {
    "a loop over the state of another one, as a term of a step": [
        ["leaf", f"def f():\n    v0 = {STATE.format(0)}\n    return v0\n", []],
        one_step([5], [], "v", "v = neg(s0)"),
        *(one_step([n], [], "v", "v = neg(s0)") for n in (0, 2)),
        *(one_step([n], [7], "o0") for n in (0, 2)),
    ],
    "a step that names a state of another loop": [
        *(one_step([n], [], "v", f"v = neg({STATE.format(1)})") for n in (0, 2)),
        *(one_step([2 - n, n], [], "v, w", "v = neg(s0)", "w = neg(s1)") for n in (0, 2)),
    ],
    "steps over other states": [
        one_step([0, 2], [], "v, v", "v = neg(s1)"),
        one_step([0, 0, 2], [], "s0, w, v", "v = neg(s1)", "w = add(v, sub(s2, s2))"),
        ["equal", 0, {"x": 5, "y": 11}],
        ["equal", 0, {"x": 0, "y": 2}],
    ],
}
"""Records that would give every term another value."""


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ATTACKS)
def test_the_states_of_loops_are_not_mixed_up(name: str, depth: int) -> None:
    attack = json.loads(json.dumps(ATTACKS[name]).replace("at depth 1", f"at depth {depth}"))
    attack = [[*each, depth] if each[0] == "unrolled" else each for each in attack]
    before, after = (from_memory(parse(f"g {NEGATED.format(x)}")) for x in "ab")
    given = {"format": CERTIFICATE_FORMAT, "equalities": [equality("add(neg(x), sub(y, y))", "neg(x)")]}
    with pytest.raises(CheckFailed, match=r"does not lead|over terms of the steps|none of its operands"):
        follow(before, after, {**given, "records": [ONE, *attack]}, CaseJudge(strict=True))


@pytest.mark.parametrize("depth", [0, -1, True, 1000, "1", None])
def test_a_loop_is_at_a_level_of_bodies(depth: Any) -> None:
    before, after = (from_memory(parse(f"g {NEGATED.format(x)}")) for x in "ab")
    given = {"format": CERTIFICATE_FORMAT, "equalities": [], "records": [ONE, [*one_step([0], [], "s0"), depth]]}
    with pytest.raises(CheckFailed, match="there is no level"):
        follow(before, after, given, CaseJudge(strict=True))


NAMED = "state 0 of a loop", "state 0 of a loop at depth 1"


@pytest.mark.parametrize("name", NAMED)
def test_an_input_with_the_name_of_a_state_is_none(name: str) -> None:
    """In a model that reads the input in each step, and in one that reads the state."""
    made = []
    for read in ("q", "s"):
        proto = parse(f"""
            g (float[3] a, float[3] q, float[3] n, float[3] X) => (float[3] y, float[3] z) {{
                y = Scan<num_scan_inputs = 1, body = step (float[3] s, float e) => (float[3] t) {{
                    t = Add(s, {read}) }}>(a, X)
                z = Neg({read.replace("s", "n")})
            }}""")
        step = proto.graph.node[0].attribute[1].g
        step.node[0].input[:] = [name if each == "q" else each for each in step.node[0].input]
        proto.graph.node[1].input[:] = [name if read == "q" else f"input {name}"]
        proto.graph.input[1].name, proto.graph.input[2].name = name, f"input {name}"
        made.append(from_memory(proto))
    given = {"format": CERTIFICATE_FORMAT, "equalities": [], "records": []}
    one, two = made
    first, second = one.graph.outputs, two.graph.outputs
    for outputs in ((second[0], first[1]), (first[0], second[1])):
        with pytest.raises(CheckFailed, match="does not lead"):
            follow(one, one.with_graph(outputs), given, CaseJudge(strict=True))
    follow(one, one, given, CaseJudge(strict=True))


def test_a_random_draw_of_each_step_is_no_operand_of_all() -> None:
    draw = "d = RandomNormal<shape = [3]>()"
    before = parse(f"""
        g (float[3] a, float[3] X) => (float[3] y) {{
            y = Scan<num_scan_inputs = 1, body = step (float[3] s, float e) => (float[3] t) {{
                {draw} t = Add(s, d) }}>(a, X)
        }}""")
    after = parse(
        f"""
        g (float[3] a, float[3] X) => (float[3] y) {{
            e = Constant<value = float[1] {{0}}>()
            u = Scan<num_scan_inputs = 1, body = step (float e) => (float[3] d) {{ {draw} }}>(e)
            k = Squeeze(u, axis)
            p = Add(a, k)
            q = Add(p, k)
            y = Add(q, k)
        }}""",
        {"axis": np.array([0])},
    )
    start = from_memory(before)
    assert [n.op for n in topological(opened(start)(start.graph.outputs))] == [
        "input",
        "input",
        "opaque",
        "add",
        "opaque",
    ]
    w = "w: input('w', float32[3])"
    three = f"""def f(a: input('a', float32[3]), x: input('x', float32[3]), {w}):
    def step(s: input('s', float32[3]), e: input('e', float32[()]), {w}):
        return add(s, w)
    return scan(a, x, w, body=step, states=1, sequences=1)"""
    one = f"""def f(x: input('x', float32[1]), {w}):
    def step(e: input('e', float32[()]), {w}):
        return w
    return scan(x, w, body=step, states=0, sequences=1)"""
    zeros = [[ONE[0], ONE[1].replace("(1,), [0.0]", f"({n},), {[0.0] * n}"), []] for n in (3, 1)]
    records = [*zeros, ["unrolled", three, [0, 5, 2]], ["unrolled", one, [6, 2]], ["equal", 0, {"x": 2, "y": 0}]]
    same = equality("squeeze(concat(unsqueeze(x, axes=(0,)), axis=0), axes=(0,))", "x")
    given = {"format": CERTIFICATE_FORMAT, "equalities": [same], "records": records}
    with pytest.raises(CheckFailed, match="terms of the steps"):
        follow(start, from_memory(after), given, CaseJudge(strict=True))


def test_a_user_gets_the_loop_in_its_fastest_form() -> None:
    """Written with measurements: an operator, or a loop that is lighter, if the model is faster."""
    proto = model(count=40)
    made, result = optimized(proto, measure=True, budget=5.0, kernels="off")
    feeds = {**FEEDS, "X": RNG.normal(size=(2, 40, 3)).astype(np.float32)}
    for a, b in zip(run(proto, **feeds), run(made, **feeds), strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)
    assert result.failure is None


def test_values_that_are_read_one_by_one_need_no_proofs() -> None:
    before, after, steps = rerolled(model(order=(2, 1, *range(3, COUNT + 1))))
    assert [len(each.obligations) for each in steps] == [COUNT]
    followed(before, after, steps)


def test_a_proof_about_many_terms_tries_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sets of three of the terms that a concatenation joins are too many to look at each."""
    seen = []

    def counted(*given: Any) -> Any:
        for each in combinations(*given):
            seen.append(each)
            yield each

    monkeypatch.setattr(lift_rules, "combinations", counted)
    leaves = [variable(f"x{i}", Tensor("float32", (1, 2 + i % 2, 4))) for i in range(60)]
    joined = term("concat", *leaves, axis=1)
    halves = [term("concat", *leaves[i : i + 30], axis=1) for i in (0, 30)]
    lift_rules.lift((joined,), (term("concat", *halves, axis=1),), finest=True)
    assert 0 < len(seen) < 2000
