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
BORDER = 4
"""The steps of the first part of a loop in two parts."""


@cache
def right() -> tuple[Model, Model, RewriteStep, Node, Result]:
    """The model, the one with the loop, the step, the loop, and any result."""
    before, after, (step,) = stepped(model(cell={name: MASKED[name] for name in ORDER}))
    (loop,) = loops(after)
    any_result = optimized(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))[1]
    return before, after, step, loop, any_result


def leads(step: RewriteStep) -> None:
    """Follow the certificate of a step to the model with it."""
    before, _, _, _, any_result = right()
    after = before.with_graph(substitute(before.graph.outputs, step.table))
    done = replace(any_result, original=before, model=after, steps=(step,), changed=True)
    follow(before, after, certificate(done, {}, PROOFS), CaseJudge(strict=True))


def with_loop(made: Node) -> RewriteStep:
    """The step with another loop."""
    *_, step, loop, _ = right()
    return replace(step, new=substitute(step.new, {loop: made}), unrolled=(made,))


def differs(made: Node) -> bool:
    """Whether a loop gives other results."""
    *_, loop, _ = right()
    leaves = {a: variable(f"a{i}", a.tensor) for i, a in enumerate(loop.args)}
    rng = np.random.default_rng(0)
    given = {leaf: EXACT.load(random_array(leaf, rng, {})) for leaf in leaves.values()}
    found = [[*interpret(substitute(results(each), leaves), EXACT, given).values()] for each in (loop, made)]
    return any(a.shape != b.shape or abs(a - b).max() > 1e-9 for a, b in zip(*found, strict=True))


def false_loops() -> Iterator[tuple[str, Node]]:
    *_, loop, _ = right()
    for said, made in variants(loop):
        try:
            if made.type == loop.type and differs(made):
                yield said, made
        except TasoMirageError:
            continue


def is_followed(step: RewriteStep) -> bool:
    try:
        leads(step)
    except CheckFailed:
        return False
    return True


def test_the_loop_itself_is_followed() -> None:
    *_, loop, _ = right()
    assert is_followed(with_loop(loop))


@pytest.mark.sampled(3)
def test_no_certificate_leads_to_a_wrong_loop() -> None:
    wrong = [*false_loops()]
    names = {said for said, _ in wrong}
    assert {"the other direction", "where left out, for its operand 1", "the sequence 2 a step later"} <= names
    assert len({made for _, made in wrong}) >= 30
    assert [said for said, made in wrong if is_followed(with_loop(made))] == []


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
