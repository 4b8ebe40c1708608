"""States of loops whose values in all steps are known: shift registers and running sums leave the
loop, by an induction that the checker follows; false ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from bodies import optimized, parse
from loop_models import as_terms, gated_delta, shifted
from onnx_texts import run

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CaseJudge
from taso_mirage.errors import CheckFailed, TasoMirageError
from taso_mirage.ir.model import Model, random_array
from taso_mirage.ir.terms import Node, substitute, topological
from taso_mirage.meanings.reals import REALS
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.loops import as_scan
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.report.result import Result
from taso_mirage.search.loops.behind import LighterLoop, results_of
from taso_mirage.search.loops.states import StateProof, without_states
from taso_mirage.search.loops.taps import with_convolutions
from taso_mirage.search.loops.values import AllValues, Decay, Latest, RunningSum, ShiftRegister, StateForm, state_forms
from taso_mirage.search.steps import BODIES, RewriteStep

PROOFS = Proofs(None)
JUDGE = CaseJudge()
REGISTER = """
    g (float[2, 4, 3] b0, float[{t}, 2, 4] X, float[4, 4] W) => (float[2, 4, 3] b, float[{t}, 2, 4] Y) {{
        a2 = Constant<value = int64[1] {{2}}>() \n i0 = Constant<value = int64[1] {{0}}>()
        i1 = Constant<value = int64[1] {{1}}>() \n i3 = Constant<value = int64[1] {{3}}>() \n i4 = Constant<value = int64[1] {{4}}>()
        k2 = Constant<value = int64[2] {{1, 2}}>() \n end = Constant<value = int64[6] {{0, 0, 0, 0, 0, 1}}>()
        front = Constant<value = int64[6] {{0, 0, 2, 0, 0, 0}}>()
        b, Y = Scan<num_scan_inputs = 1{more}, body = step (float[2, 4, 3] s, float[2, 4] x) => (float[2, 4, 3] n, float[2, 4] y) {{
            e = Unsqueeze(x, a2) \n {new} \n n = Identity(new)
            w = Concat<axis = 2>({window}) \n p = Mul(w, W) \n c = ReduceSum<keepdims = 0>(p, a2) \n y = Tanh(c)
        }}>(b0, X)
    }}
"""
APPENDED = "v = Concat<axis = 2>(s, e) \n new = Slice(v, i1, i4, a2)"
NEW = {
    "the end of a concatenation": APPENDED,
    "a part and the element": "v = Slice(s, i1, i3, a2) \n new = Concat<axis = 2>(v, e)",
    "chosen elements": "v = Gather<axis = 2>(s, k2) \n new = Concat<axis = 2>(v, e)",
    "a sum of padded parts": "v = Slice(s, i1, i3, a2) \n u = Pad(v, end) \n z = Pad(e, front) \n new = Add(u, z)",
    "the element first": "v = Slice(s, i0, k, a2) \n new = Concat<axis = 2>(e, v)".replace("k,", "i2,"),
}
BACKWARD = ", scan_input_directions = [1], scan_output_directions = [1]"
STREAMED = """
    g (float[{b}, 3, 2] b0, float[{b}, 3, 4] c0, float[{t}, {b}, 3, 1] X, float[3, 3, 3] V, float[3] B, float[3, 1, {k}] W)
            => (float[{b}, 3, 2] b, float[{b}, 3, 4] c, float[{t}, {b}, 3, 1] Y) {{
        a2 = Constant<value = int64[1] {{2}}>() \n i1 = Constant<value = int64[1] {{1}}>()
        i3 = Constant<value = int64[1] {{3}}>() \n i5 = Constant<value = int64[1] {{5}}>()
        b, c, Y = Scan<num_scan_inputs = 1, body = step (float[{b}, 3, 2] s, float[{b}, 3, 4] r, float[{b}, 3, 1] x)
                => (float[{b}, 3, 2] s2, float[{b}, 3, 4] r2, float[{b}, 3, 1] y) {{
            u = Concat<axis = 2>(s, x) \n s2 = Slice(u, i1, i3, a2) \n p = Conv(u, V, B) \n h = Relu(p)
            w = Concat<axis = 2>(r, h) \n r2 = Slice(w, i1, i5, a2) \n q = Conv<group = 3, dilations = [{d}]>(w, W)
            y = {last}
        }}>(b0, c0, X)
    }}
"""
"""Two layers of a convolution that streams."""
SUMS = """
    g (float[2, 4] a0, int64[1] k0, float[{t}, 2, 4] X, bool[{t}, 2, 1] M)
            => (float[2, 4] a, int64[1] k, float[{t}, 2, 4] Y, float[{t}, 2, 4] Z) {{
        one = Constant<value = int64[1] {{1}}>()
        a, k, Y, Z = Scan<num_scan_inputs = 2{more}, body = step (float[2, 4] s, int64[1] c, float[2, 4] x, bool[2, 1] m)
                => (float[2, 4] n, int64[1] d, float[2, 4] y, float[2, 4] z) {{
            q = Sigmoid(x) \n {new} \n n = Identity(new) \n d = Add(c, one)
            f = Cast<to = 1>(d) \n y = Mul(n, f) \n z = Mul(s, x)
        }}>(a0, k0, X, M)
    }}
"""
DECAY = "u = Neg(q) \n e = Exp(u) \n new = Mul(s, e)"
SUMMED = {
    "a product of exponentials": DECAY,
    "a sum": "new = Add(s, q)",
    "a difference": "new = Sub(s, q)",
    "a masked sum": "u = Add(s, q) \n new = Where(m, u, s)",
}


def register(new: str, t: int | str = 5, more: str = "", window: str = "s, e") -> onnx.ModelProto:
    text = REGISTER.format(t=t, more=more, new=new, window=window)
    return parse(text.replace("i3 =", "i2 = Constant<value = int64[1] {2}>() \n i3 =", 1))


def sums(new: str, t: int | str = 5, more: str = "") -> onnx.ModelProto:
    return parse(SUMS.format(t=t, more=more, new=new))


@cache
def any_result() -> Result:
    return optimized(register(APPENDED))[1]


def rewritten(proto: onnx.ModelProto, convolved: bool = False) -> tuple[Model, LighterLoop | None, RewriteStep | None]:
    before = from_memory(proto)
    (node,) = [n for n in before.nodes() if as_scan(before, n) is not None]
    found = as_scan(before, node)
    assert found is not None
    used = {i for i, result in enumerate(results_of(node)) if result in set(before.nodes())}
    made = without_states(found.term, PROOFS, used)
    if made is not None and convolved:
        made = with_convolutions(made, PROOFS)
    if made is None:
        return before, None, None
    parts: dict[str, Any] = {"obligations": made.obligations, "behind": made.behind, "closed": made.closed}
    return before, made, RewriteStep((BODIES,), results_of(node), made.results, **parts)


def written(before: Model, step: RewriteStep) -> tuple[Model, Any]:
    after = before.with_graph(substitute(before.graph.outputs, step.table))
    done = replace(any_result(), original=before, model=after, unfused=None, steps=(step,), changed=True)
    return after, json.loads(json.dumps(certificate(done, {}, PROOFS)))


def same(proto: onnx.ModelProto, before: Model, step: RewriteStep, undecided: int = 0) -> onnx.ModelProto:
    """The rewritten model gives the same numbers, and the checker follows its certificate."""
    after, text = written(before, step)
    made = onnx.load_from_string(serialize(after))
    onnx.checker.check_model(made, full_check=True)
    assert len(follow(before, from_memory(made), text, JUDGE).alone) <= undecided
    rng = np.random.default_rng(0)
    for count in (1, 4):
        feed = {n.attr("name"): random_array(n, rng, {"t": count}) for n in before.graph.inputs}
        for a, b in zip(run(proto, **feed), run(made, **feed), strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    return made


CASES = [(name, 5, "") for name in NEW] + [("a part and the element", "t", ""), ("the element first", 5, BACKWARD)]


@pytest.mark.parametrize(("name", "t", "more"), [*CASES, ("the end of a concatenation", 5, BACKWARD)])
def test_a_shift_register_is_a_window_of_its_sequence(name: str, t: int | str, more: str) -> None:
    proto = register(NEW[name], t, more)
    before, made, step = rewritten(proto)
    assert made is not None
    assert step is not None
    assert made.term is None
    assert len(made.closed) == 1
    assert "Scan" not in {n.op_type for n in same(proto, before, step, int(name == "chosen elements")).graph.node}


@pytest.mark.parametrize("window", ["s, e", "e, s"])
@pytest.mark.parametrize(("name", "more"), [("a part and the element", ""), ("the element first", BACKWARD)])
def test_a_sum_over_a_register_is_a_convolution(name: str, more: str, window: str) -> None:
    proto = register(NEW[name], 5, more, window)
    consecutive = (window == "s, e") == (name != "the element first")
    before, made, step = rewritten(proto, convolved=True)
    assert (made is not None) == consecutive
    if step is not None:
        assert "Conv" in {n.op_type for n in same(proto, before, step).graph.node}


@pytest.mark.parametrize(("b", "k", "d"), [(1, 5, 1), (2, 3, 2)])
def test_convolutions_that_stream_are_convolutions_of_the_sequence(b: int, k: int, d: int) -> None:
    proto = parse(STREAMED.format(t=6, b=b, k=k, d=d, last="Add(q, x)"))
    before, made, step = rewritten(proto, convolved=True)
    assert made is not None
    assert step is not None
    assert made.term is None
    convolutions = [n for n in topological(made.results) if n.op == "conv"]
    assert [(n.shape[0], n.shape[2]) for n in convolutions] == [(b, 6), (b, 6)]
    same(proto, before, step)


def test_a_convolution_inside_of_a_window_stays_one_of_each_step() -> None:
    proto = parse(STREAMED.format(t=6, b=1, k=3, d=1, last="ReduceMax<axes = [2]>(q)"))
    before, made, step = rewritten(proto, convolved=True)
    assert made is not None
    assert step is not None
    assert sorted(n.shape[0] for n in topological(made.results) if n.op == "conv") == [1, 6]
    same(proto, before, step)


LOOP = """
    g (float[2, 3, 2] b0, float[t, 2, 3] X, float[3, 3] W) => (float[2, 3, 2] b, float[t, 2, 3] Y) {
        zero = Constant<value = int64 {0}>() \n yes = Constant<value = bool {1}>() \n shape = Shape(X) \n trips = Gather(shape, zero)
        a2 = Constant<value = int64[1] {2}>() \n i1 = Constant<value = int64[1] {1}>() \n i3 = Constant<value = int64[1] {3}>()
        b, Y = Loop(trips, yes, b0) <body = step (int64 i, bool c, float[2, 3, 2] s)
                => (bool c2, float[2, 3, 2] n, float[2, 3] y) {
            c2 = Identity(c) \n x = Gather(X, i) \n e = Unsqueeze(x, a2) \n w = Concat<axis = 2>(s, e)
            n = Slice(w, i1, i3, a2) \n p = Mul(w, W) \n y = ReduceSum<keepdims = 0>(p, a2)
        }>
    }
"""


def test_a_convolution_of_a_free_length_has_a_result_of_no_step() -> None:
    proto = parse(LOOP)
    before, made, step = rewritten(proto, convolved=True)
    assert made is not None
    assert step is not None
    found = same(proto, before, step, undecided=1)
    assert "Conv" in {n.op_type for n in found.graph.node}
    feed = {n.attr("name"): random_array(n, np.random.default_rng(0), {"t": 0}) for n in before.graph.inputs}
    for a, b in zip(run(proto, **feed), run(found, **feed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_registers_of_several_states_are_found_one_after_the_other() -> None:
    proto = shifted()
    before, made, step = rewritten(proto)
    assert made is not None
    assert step is not None
    assert made.term is None
    assert [part.state for part in made.closed] == [0, 0]
    same(proto, before, step)


@pytest.mark.parametrize(("t", "more"), [(5, ""), ("t", ""), (5, BACKWARD.replace("[1]", "[1, 1]"))])
@pytest.mark.parametrize("name", SUMMED)
def test_sums_counters_and_decays_are_running_sums(name: str, t: int | str, more: str) -> None:
    proto = sums(SUMMED[name], t, more)
    before, made, step = rewritten(proto)
    assert made is not None
    assert step is not None
    assert made.term is None
    found = same(proto, before, step, undecided=4)
    assert [n.op_type for n in found.graph.node].count("CumSum") == 2


@pytest.mark.parametrize(
    "new", ["new = Mul(s, q)", "u = Concat<axis = 1>(q, x) \n v, w = Split<axis = 1>(u) \n new = Mul(s, v)"]
)
def test_a_product_of_other_factors_stays(new: str) -> None:
    """A factor that is no exponential may be negative, and has no logarithm then."""
    made = rewritten(sums(new))[1]
    assert made is not None
    assert [part.state for part in made.closed] == [1]


UNUSED = """
    g (float[2] d0, float[2] s0, float[5, 2] X) => (float[5, 2] Y) <float[40] W = {%s}> {
        i = Constant<value = int64[2] {3, 7}>()
        d, s, Y = Scan<num_scan_inputs = 1, body = step (float[2] e, float[2] a, float[2] x) => (float[2] e2, float[2] a2, float[2] y) {
            w = Gather(W, i) \n u = Mul(x, w) \n e2 = Add(e, u) \n p = Add(a, x) \n a2 = Identity(p) \n y = Tanh(p)
        }>(d0, s0, X)
    }
"""
"""A state that nothing reads, with a weight of its own."""


def test_a_state_that_nothing_reads_is_in_no_record() -> None:
    proto = parse(UNUSED % ",".join(map(str, range(40))))
    before, made, step = rewritten(proto)
    assert made is not None
    assert step is not None
    assert made.term is None
    assert [part.state for part in made.closed] == [1]
    same(proto, before, step, undecided=2)


@pytest.mark.parametrize(
    "new",
    [
        "v = Concat<axis = 2>(s, e) \n new = Slice(v, i0, i3, a2)",
        "v = Slice(s, i0, i2, a2) \n new = Concat<axis = 2>(v, e)",
        "v = Slice(s, i1, i3, a2) \n z = Slice(s, i0, i1, a2) \n new = Concat<axis = 2>(v, z)",
        "v = Slice(s, i1, i3, a2) \n u = Neg(v) \n new = Concat<axis = 2>(u, e)",
        "v = Slice(s, i1, i3, a2) \n z = Slice(s, i0, i1, a2) \n u = Add(z, e) \n new = Concat<axis = 2>(v, u)",
    ],
)
def test_what_is_no_shift_register_stays(new: str) -> None:
    assert rewritten(register(new))[1] is None


def test_large_states_are_not_kept_of_all_steps() -> None:
    text = """
        g (float[8, 8] s0, float[4, 8, 1] K, float[4, 1, 8] V) => (float[8, 8] s, float[4, 1, 8] Y) {
            s, Y = Scan<num_scan_inputs = 2, body = step (float[8, 8] a, float[8, 1] k, float[1, 8] v)
                    => (float[8, 8] n, float[1, 8] y) { u = Mul(k, v) \n n = Add(a, u) \n y = ReduceMax<axes = [0]>(n) }>(s0, K, V)
        }
    """
    assert rewritten(parse(text))[1] is None
    (loop,) = [n for n in as_terms(gated_delta()).nodes() if n.op == "scan"]
    assert without_states(loop, PROOFS) is None


# ---------------------------------------------------------------- false laws

RIGHT: dict[str, tuple[onnx.ModelProto, StateForm]] = {
    "a decay": (sums(DECAY), Decay()),
    "a decay from the end": (sums(DECAY, 5, BACKWARD.replace("[1]", "[1, 1]")), Decay()),
    "a register": (register(APPENDED), ShiftRegister(2, 3, False)),
    "a register of any length": (register(APPENDED, "t"), ShiftRegister(2, 3, False)),
    "a reversed register": (register(NEW["the element first"]), ShiftRegister(2, 3, True)),
    "a register from the end": (register(APPENDED, 5, BACKWARD), ShiftRegister(2, 3, False)),
    "a sum": (sums(SUMMED["a sum"]), RunningSum()),
    "a sum from the end": (sums(SUMMED["a sum"], 5, BACKWARD.replace("[1]", "[1, 1]")), RunningSum()),
    "the element before": (shifted(5), Latest()),
}


@cache
def loop_of(name: str) -> Node:
    """The loop of a right law."""
    (loop,) = [n for n in as_terms(RIGHT[name][0]).nodes() if n.op == "scan"]
    return loop


def each_of(name: str) -> Node:
    """The term of a step that its form has."""
    body = loop_of(name).attr("body")
    forms = state_forms(body, loop_of(name).attr("states"), 0)
    return next(each for form, each in forms if form == RIGHT[name][1])


def proved(name: str, form: StateForm, state: int = 0, each: Node | None = None) -> bool:
    try:
        return StateProof(loop_of(name), state, form, each or each_of(name), PROOFS).found() is not None
    except TasoMirageError:
        return False


@dataclass(frozen=True)
class Wrong:
    """A form with other values."""

    form: StateForm
    change: Callable[[AllValues, Node], AllValues]

    def new(self, before: Node, each: Node) -> Node:
        return self.form.new(before, each)

    def all(self, first: Node, every: Node, backward: int) -> AllValues:
        made = self.form.all(first, every, backward)
        return replace(self.change(made, first), lemmas=made.lemmas, parts=made.parts)


def part(x: Node, start: int, end: int) -> Node:
    return term("slice", x, starts=(start,), ends=(end,), axes=(0,), steps=(1,))


def later(x: Node, steps: int = 1) -> Node:
    return term("concat", part(x, steps, 5), part(x, 0, steps), axis=0)


def turned(x: Node) -> Node:
    return term("slice", x, starts=(x.shape[0] - 1,), ends=(-1,), axes=(0,), steps=(-1,))


CHANGES: dict[str, Callable[[AllValues, Node], AllValues]] = {
    "the values after a step before it": lambda v, _: replace(v, before=v.values),
    "the values before a step after it": lambda v, _: replace(v, values=v.before),
    "both one step later": lambda v, _: replace(v, before=later(v.before), values=later(v.values)),
    "both one step earlier": lambda v, _: replace(v, before=later(v.before, 4), values=later(v.values, 4)),
    "the wrong direction": lambda v, _: replace(v, before=turned(v.before), values=turned(v.values)),
    "twice the values": lambda v, _: replace(v, before=twice(v.before), values=twice(v.values)),
    "a sum that goes on": lambda v, _: replace(v, values=term("cumsum", v.values, axis=0)),
    "another first state": lambda v, first: AllValues(*substitute((v.values, v.before, v.last), {first: twice(first)})),
    "the first state in the end": lambda v, first: replace(v, last=first),
    "the last state one step too early": lambda v, _: replace(v, last=term("squeeze", part(v.before, 4, 5), axes=(0,))),
    "the first step's in the end": lambda v, _: replace(v, last=term("squeeze", part(v.values, 0, 1), axes=(0,))),
}


def twice(x: Node) -> Node:
    return term("add", x, x)


@pytest.mark.parametrize("name", RIGHT)
def test_no_other_values_are_proved(name: str) -> None:
    form = RIGHT[name][1]
    assert proved(name, form)
    backward = loop_of(name).attr("backward")
    for said, change in CHANGES.items():
        if backward and said in ("the last state one step too early", "the first step's in the end"):
            continue
        assert not proved(name, Wrong(form, change)), said


FORMS = (
    Latest(),
    RunningSum(),
    Decay(),
    *(ShiftRegister(axis, size, r) for axis, size in ((0, 2), (1, 4), (2, 3)) for r in (False, True)),
)


@pytest.mark.parametrize("name", RIGHT)
def test_no_other_form_is_proved(name: str) -> None:
    assert [form for form in FORMS if form != RIGHT[name][1] and proved(name, form)] == []


def test_no_other_term_of_a_step_is_proved() -> None:
    body = loop_of("a sum").attr("body")
    for each in topological(body.outputs[:1]):
        if each.type == body.inputs[0].type and each is not each_of("a sum"):
            assert not proved("a sum", RunningSum(), each=each)


# ---------------------------------------------------------------- certificates


@cache
def certified(name: str, convolved: bool = False) -> tuple[Model, RewriteStep, Model, Any]:
    before, _, step = rewritten(RIGHT[name][0], convolved)
    assert step is not None
    return before, step, *written(before, step)


def wrong_terms(step: RewriteStep, before: Model) -> Iterator[tuple[str, dict[Node, Node]]]:
    """Terms for others of a result, of the same types."""
    for node in topological(step.new):
        rows = len(node.shape) > 2 and node.args and node.shape[0] == 5
        if rows and node.op in ("slice", "concat", "unsqueeze", "cumsum", "add"):
            yield f"{node.op} one step later", {node: later(node)}
            yield f"{node.op} from the end", {node: turned(node)}
        if node.op == "concat" and len(node.args) > 1 and node.args[0].type == node.args[1].type:
            first, second, *rest = node.args
            yield "parts exchanged", {node: term("concat", second, first, *rest, axis=node.attr("axis"))}
    for leaf in before.graph.inputs:
        if leaf.dtype == "float32":
            yield f"another {leaf.attr('name')}", {leaf: twice(leaf)}


@pytest.mark.parametrize(("name", "convolved"), [("a register", False), ("a register", True), ("a sum", False)])
def test_a_certificate_never_leads_to_other_values(name: str, convolved: bool) -> None:
    before, step, after, text = certified(name, convolved)
    inputs = {n: random_array(n, np.random.default_rng(0), {}) for n in before.graph.inputs}
    right = [*interpret(after.graph.outputs, REALS, inputs).values()]
    count = 0
    for said, table in wrong_terms(step, before):
        there = after.with_graph(substitute(after.graph.outputs, table))
        found = [*interpret(there.graph.outputs, REALS, inputs).values()]
        if all(np.allclose(a, b) for a, b in zip(right, found, strict=True)):
            continue
        count += 1
        with pytest.raises(CheckFailed):
            follow(before, there, text, JUDGE)
        if not any(leaf in before.graph.inputs for leaf in table):
            closed = tuple(
                replace(c, values=substitute((c.values,), table)[0], before=substitute((c.before,), table)[0])
                for c in step.closed
            )
            behind = tuple(replace(b, whole=substitute((b.whole,), table)[0]) for b in step.behind)
            claim = replace(step, new=substitute(step.new, table), closed=closed, behind=behind)
            with pytest.raises(CheckFailed):
                follow(before, there, written(before, claim)[1], JUDGE)
        assert said
    assert count >= 3


@pytest.mark.parametrize(
    "places",
    [[None, 1, None, None], [None, -1, None, None], [None, None, 0, None], [None, None, None, 0], [9999, 0, 0, 0]],
)
def test_a_record_of_other_terms_is_refused(places: list[Any]) -> None:
    before, _, after, text = certified("a register")
    index = next(i for i, record in enumerate(text["records"]) if record[0] == "closed")
    old = text["records"][index][1:]
    new = ["closed", *(o if p is None else p for p, o in zip(places, old, strict=True))]
    records = [*text["records"][:index], new, *text["records"][index + 1 :]]
    assert records != text["records"]
    with pytest.raises(CheckFailed):
        follow(before, after, {**text, "records": records}, JUDGE)


def test_without_its_equalities_a_certificate_does_not_lead() -> None:
    before, _, after, text = certified("a sum")
    used = [i for i, record in enumerate(text["records"]) if record[0] in ("equal", "closed", "behind")]
    refused = 0
    for i in used:
        try:
            follow(before, after, {**text, "records": [r for j, r in enumerate(text["records"]) if j != i]}, JUDGE)
        except CheckFailed:
            refused += 1
    assert refused >= len(used) - 2
