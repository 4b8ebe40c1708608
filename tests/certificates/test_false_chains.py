"""Certificates of recurrences that are written out, with a wrong loop in the place of the steps:
each differs in one thing, and none leads to a model with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from bodies import optimized, parse
from false_loops import variants
from loop_models import results
from onnx import numpy_helper
from written_chains import CELL, COUNT, PROOFS, loops, model, stepped

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CaseJudge
from taso_mirage.errors import CheckFailed, TasoMirageError
from taso_mirage.ir.model import Model, random_array
from taso_mirage.ir.terms import Node, constant, substitute, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.report.certificate import certificate
from taso_mirage.report.result import Result
from taso_mirage.search.steps import RewriteStep

MASKED = {**CELL, "b": "Less(p{t}, q{t})", "d": "Mul(f{t}, e{t})", "h": "Where(b{t}, d{t}, h{s})"}
"""A step whose hidden state is masked: some elements stay."""
ORDER = ("x", "p", "q", "g", "f", "k", "n", "c", "e", "b", "d", "h", "y", "u")
FALSE = {"a sequence": 30, "none": 20, "a weight of each step": 20}
"""The fewest wrong loops for each cell."""
BORDER = 4
"""The steps of the first part of a loop in two parts."""


ALONE = {name: MASKED[name] for name in ORDER if name not in ("x", "p", "g")}
ALONE |= {"f": "Sigmoid(q{t})", "n": "Tanh(q{t})", "b": "Less(q{t}, h{s})"}
OWN = {name: MASKED[name] for name in ORDER if name not in ("x", "p", "g")}
OWN = {"q": MASKED["q"], "g": "Add(q{t}, b{t})", **{name: OWN[name] for name in OWN if name not in ("b", "h")}}
OWN |= {"h": "Mul(f{t}, e{t})", **{name: OWN[name] for name in ("y", "u")}}
CELLS = {"a sequence": {name: MASKED[name] for name in ORDER}, "none": ALONE, "a weight of each step": OWN}


@cache
def right(name: str = "a sequence") -> tuple[Model, Model, RewriteStep, Node, Result]:
    """The model, the one with the loop, the step, the loop, and any result."""
    proto = model(cell=CELLS[name])
    rng = np.random.default_rng(1)
    own = [(f"b{t}", rng.normal(size=4).astype(np.float32)) for t in range(1, COUNT + 1)]
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in own if name == "a weight of each step")
    before, after, (step,) = stepped(proto)
    (loop,) = loops(after)
    any_result = optimized(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))[1]
    return before, after, step, loop, any_result


def leads(step: RewriteStep, name: str = "a sequence") -> None:
    """Follow the certificate of a step to the model with it."""
    before, _, _, _, any_result = right(name)
    after = before.with_graph(substitute(before.graph.outputs, step.table))
    done = replace(any_result, original=before, model=after, steps=(step,), changed=True)
    follow(before, after, certificate(done, {}, PROOFS), CaseJudge(strict=True))


def with_loop(made: Node, name: str = "a sequence") -> RewriteStep:
    """The step with another loop."""
    *_, step, loop, _ = right(name)
    return replace(step, new=substitute(step.new, {loop: made}), unrolled=(made,))


def differs(made: Node, name: str = "a sequence") -> bool:
    """Whether a loop gives other results."""
    *_, loop, _ = right(name)
    leaves = {a: variable(f"a{i}", a.tensor) for i, a in enumerate(loop.args)}
    rng = np.random.default_rng(0)
    given = {leaf: EXACT.load(random_array(leaf, rng, {})) for leaf in leaves.values()}
    found = [[*interpret(substitute(results(each), leaves), EXACT, given).values()] for each in (loop, made)]
    return any(a.shape != b.shape or abs(a - b).max() > 1e-9 for a, b in zip(*found, strict=True))


def false_loops(name: str) -> Iterator[tuple[str, Node]]:
    *_, loop, _ = right(name)
    for said, made in variants(loop):
        try:
            if made.type == loop.type and differs(made, name):
                yield said, made
        except TasoMirageError:
            continue


def is_followed(step: RewriteStep, name: str = "a sequence") -> bool:
    try:
        leads(step, name)
    except CheckFailed:
        return False
    return True


@pytest.mark.parametrize("name", CELLS)
def test_the_loop_itself_is_followed(name: str) -> None:
    *_, loop, _ = right(name)
    assert is_followed(with_loop(loop, name), name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CELLS)
def test_no_certificate_leads_to_a_wrong_loop(name: str) -> None:
    wrong = [*false_loops(name)]
    names = {said for said, _ in wrong}
    assert name != "a sequence" or {"the other direction", "where left out, for its operand 1"} <= names
    assert name == "none" or "the sequence 2 a step later" in names
    assert len({made for _, made in wrong}) >= FALSE[name]
    assert [said for said, made in wrong if is_followed(with_loop(made, name), name)] == []


def in_two(states: int = 0, start: int = BORDER, border: int = BORDER) -> RewriteStep:
    """The loop in two parts: the second begins at the step `start`, with the states after `border`
    steps, but for the first `states` of them, which are those before the first step."""
    *_, step, loop, _ = right()
    count = loop.attr("states")
    end = count + loop.attr("sequences")
    proved = [*step.obligations, *groups(step)]

    def part(firsts: tuple[Node, ...], first: int, last: int) -> Node:
        cut = {"starts": (first,), "ends": (last,), "axes": (0,), "steps": (1,)}
        parts = [term("slice", x, **cut) for x in loop.args[count:end]]
        for x, taken in zip(loop.args[count:end], parts, strict=True):
            proved.extend(equal(element(taken, i), element(x, first + i), x) for i in range(last - first))
        return term(loop.op, *firsts, *parts, *loop.args[end:], **dict(loop.attrs))

    one, short = part(loop.args[:count], 0, BORDER), part(loop.args[:count], 0, border)
    after = results(short)[:count]
    two = part((*loop.args[:states], *after[states:]), start, start + COUNT - BORDER)
    values = zip(results(one)[count:], results(two)[count:], strict=True)
    news = (*results(two)[:count], *(term("concat", a, b, axis=0) for a, b in values))
    table = dict(zip(results(loop), news, strict=True))
    made = tuple(dict.fromkeys((one, short, two)))
    return replace(step, new=substitute(step.new, table), unrolled=made, obligations=tuple(proved))


def element(whole: Node, place: int) -> Node:
    return term("gather", whole, constant(place), axis=0)


def equal(old: Node, new: Node, *over: Node) -> RewriteStep:
    return RewriteStep(("parts",), (old,), (new,), over=frozenset(over))


def groups(step: RewriteStep) -> Iterator[RewriteStep]:
    """Equalities: the values of all steps are those of the first ones, and of the others."""
    for each in step.obligations:
        (whole,) = each.new
        if whole.op == "concat" and len(whole.args) == COUNT:
            parts = [term("concat", *some, axis=0) for some in (whole.args[:BORDER], whole.args[BORDER:])]
            yield equal(term("concat", *parts, axis=0), whole, *(a.args[0] for a in whole.args))


def test_a_loop_in_two_parts_is_followed() -> None:
    assert is_followed(in_two())


BORDERS = {
    "the states of the first step": {"states": 2},
    "one state of the first step": {"states": 1},
    "the states of a step before": {"border": BORDER - 1},
    "a step twice": {"start": BORDER - 1},
    "a step twice, with its states": {"start": BORDER - 1, "border": BORDER - 1},
}


@pytest.mark.parametrize("name", BORDERS)
def test_no_certificate_leads_over_a_wrong_border(name: str) -> None:
    with pytest.raises(CheckFailed):
        leads(in_two(**BORDERS[name]))
