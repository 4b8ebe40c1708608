"""A law with a star is two equations, each printed, matched and proved for itself; no law is stated
twice for an operand."""

from __future__ import annotations

import ast
from itertools import chain, combinations

import pytest
from fuzzed import fuzz

from taso_mirage.errors import SyntaxProblem
from taso_mirage.ir.terms import Node, Tensor, constant, variable
from taso_mirage.operators.ops import Op, get, load_specs, term
from taso_mirage.prove.rules.recheck import law_rules, verdict_of
from taso_mirage.rewriting.equation import apply_equation, match
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.library import Rule, parse_attributes, parse_given
from taso_mirage.rewriting.optional_operands import LawVariant, law_parts, law_variants, optional_places
from taso_mirage.rewriting.text import law_typing, laws, parse_equation, show_equation
from taso_mirage.verdicts import Failure, FailureKind

NEGATED = "conv(neg(x), w, *b, **a) == conv(x, neg(w), *b, **a)"
PIXEL = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


@pytest.mark.parametrize(
    ("text", "without", "with_it"),
    [
        (
            NEGATED,
            "conv(neg(x), w, **a) == conv(x, neg(w), **a)",
            "conv(neg(x), w, b, **a) == conv(x, neg(w), b, **a)",
        ),
        (
            "mul(conv(x, w, *b, **a), c) == conv(x, mul(w, c), mul(*b, c), **a)",
            "mul(conv(x, w, **a), c) == conv(x, mul(w, c), **a)",
            "mul(conv(x, w, b, **a), c) == conv(x, mul(w, c), mul(b, c), **a)",
        ),
        (
            "add(conv(x, w, *b, **a), c) == conv(x, w, add(*b, reshape(c, shape=(dim(w, 0),))), **a)",
            "add(conv(x, w, **a), c) == conv(x, w, reshape(c, shape=(dim(w, 0),)), **a)",
            "add(conv(x, w, b, **a), c) == conv(x, w, add(b, reshape(c, shape=(dim(w, 0),))), **a)",
        ),
        (
            "concat(conv(x, v, *c), conv(x, w, *d), axis=1) == conv(x, concat(v, w, axis=0), concat(*c, *d, axis=0))",
            "concat(conv(x, v), conv(x, w), axis=1) == conv(x, concat(v, w, axis=0))",
            "concat(conv(x, v, c), conv(x, w, d), axis=1) == conv(x, concat(v, w, axis=0), concat(c, d, axis=0))",
        ),
        (
            "skip_layer_norm(x, y, g, *o, b) == skip_layer_norm(y, x, g, *o, b)",
            "skip_layer_norm(x, y, g, None, b) == skip_layer_norm(y, x, g, None, b)",
            "skip_layer_norm(x, y, g, o, b) == skip_layer_norm(y, x, g, o, b)",
        ),
        (
            "multi_head_attention(add(q, 0), k, v, None, *m, **a) == multi_head_attention(q, k, v, None, *m, **a)",
            "multi_head_attention(add(q, 0), k, v, **a) == multi_head_attention(q, k, v, **a)",
            "multi_head_attention(add(q, 0), k, v, None, m, **a) == multi_head_attention(q, k, v, None, m, **a)",
        ),
        (
            "(relu(add(add(x, *b), y)), neg(x)) == (relu(add(x, add(y, *b))), neg(x))",
            "(relu(add(x, y)), neg(x)) == (relu(add(x, y)), neg(x))",
            "(relu(add(add(x, b), y)), neg(x)) == (relu(add(x, add(y, b))), neg(x))",
        ),
    ],
)
def test_a_star_is_two_equations(text: str, without: str, with_it: str) -> None:
    assert law_variants(text) == (LawVariant(without, ""), LawVariant(with_it, ""))


@pytest.mark.parametrize(
    ("guard", "without"),
    [
        ("is_weight(b)", ""),
        ("is_weight(w) and is_weight(b)", " where is_weight(w)"),
        ('dtype(x) == "float16"', ' where dtype(x) == "float16"'),
        (
            "is_weight(b) and (rank(x) == 3 or rank(x) == 4) and rank(x) == rank(w) == 4",
            " where (rank(x) == 3 or rank(x) == 4) and rank(x) == rank(w) == 4",
        ),
        ("is_weight(w) and (rank(x) == 3 or size(b) == 1)", " where is_weight(w)"),
    ],
)
def test_conditions_of_the_operand_are_left_out(guard: str, without: str) -> None:
    found = [variant.text.partition(" == ")[2] for variant in law_variants(f"{NEGATED} where {guard}")]
    assert found == [f"conv(x, neg(w), **a){without}", f"conv(x, neg(w), b, **a) where {guard}"]


def test_its_type_is_left_out_of_the_typing() -> None:
    typing = "x: (n, 2*c, h, k), w: (2*o, c, 3, 3), b: (2*o) | a: {group: 2}"
    without, with_it = law_variants(NEGATED, typing)
    assert with_it.typing == typing
    given, _, attributes = without.typing.partition("|")
    assert parse_given(given) == parse_given("x: (n, 2*c, h, k), w: (2*o, c, 3, 3)")
    assert parse_attributes(attributes) == parse_attributes("a: {group: 2}")


def test_a_law_without_a_star_stays_as_it_is() -> None:
    text = "conv(neg(x), w,  b, **a) == conv(x, neg(w), b, **a) where is_weight(w)"
    assert law_variants(text, "x: (n)") == (LawVariant(text, "x: (n)"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv(neg(x), w, *b, **a) == conv(x, neg(w), b, **a)", "b has a star in one place and none in another"),
        ("conv(x, w, *neg(b), **a) == x", "a star marks a variable"),
        ("sub(x, *b) == neg(sub(*b, x))", "no term without b"),
        ("(neg(x), neg(*b)) == (neg(x), sub(0, *b))", "no term without b"),
        ("conv(x, w, *b, **a) == reshape(conv(x, w, *b, **a), shape=(dim(b, 0),))", "no term without b"),
        ("nothing(*b) == neg(*b)", "no operator nothing"),
        ("conv(x, w, *b, **a)", "no equation"),
    ],
)
def test_laws_that_do_not_expand(text: str, message: str) -> None:
    with pytest.raises(SyntaxProblem, match=message):
        law_variants(text)


def test_an_equation_has_no_star() -> None:
    with pytest.raises(SyntaxProblem, match="only laws beside operators"):
        parse_equation(NEGATED)


def test_a_signature_says_which_operands_are_optional() -> None:
    found = {name: optional_places(get(name)) for name in ("conv", "multi_head_attention", "clip", "add", "concat")}
    assert found == {"conv": {2}, "multi_head_attention": {3, 4}, "clip": {1, 2}, "add": set(), "concat": set()}


# ---------------------------------------------------------------- the laws beside the operators


def test_both_variants_print_and_parse_back() -> None:
    for variant in law_variants(f"{NEGATED} where is_weight(w) and is_weight(b)"):
        equation = parse_equation(variant.text)
        assert show_equation(equation) == variant.text
        assert parse_equation(show_equation(equation)) == equation


def starred() -> list[tuple[Op, str]]:
    return [(op, text) for op in load_specs().values() for text in op.law_texts if len(law_variants(text)) == 2]


def test_variants_have_names_and_typings_of_their_own() -> None:
    names = [law.name for law in laws()]
    assert len(set(names)) == len(names)
    assert len(starred()) >= 20
    by_text = {show_equation(law): law for law in laws()}
    for op, text in starred():
        equations = [parse_equation(variant.text) for variant in law_variants(text)]
        first, second = [by_text[show_equation(each)].name for each in equations]
        number = int(first.removeprefix(f"{op.name}."))
        assert second == f"{op.name}.{number + 1}"
    typed = {rule.name: rule for rule in law_rules() if rule.given}
    for name, rule in typed.items():
        assert {n for n, _ in rule.given} == {n.attr("name") for n in rule.equation.lhs.inputs}, name
    assert law_typing("no law") == ""


def test_each_variant_matches_its_own_terms() -> None:
    """The matcher binds no variable to an operand that is absent, so each needs its equation."""
    x, w, b = (variable(n, Tensor("float32", s)) for n, s in (("x", (1, 2, 4, 4)), ("w", (3, 2, 1, 1)), ("b", (3,))))
    without, with_it = (parse_equation(variant.text) for variant in law_variants(NEGATED))
    bare, biased = (term("conv", term("neg", x), w, bias, **PIXEL) for bias in (None, b))
    for equation, node, other, bias in ((without, bare, biased, None), (with_it, biased, bare, b)):
        found = match(equation, node)
        assert found
        assert apply_equation(equation, found) == (term("conv", x, term("neg", w), bias, **PIXEL),)
        assert not match(equation, other)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_found_with_a_mask_and_without(masked: bool) -> None:
    q, k, v, m = (variable(n, Tensor("float32", s)) for n, s in zip("qkvm", [*[(1, 2, 3, 4)] * 3, (3, 3)], strict=True))
    scores = term("mul", term("matmul", q, term("transpose", k, perm=(0, 1, 3, 2))), constant(0.5, "float32"))
    product = term("matmul", term("softmax", term("add", scores, m) if masked else scores, axis=3), v)
    expected = term("attention", q, k, v, m if masked else None, scale=0.5)
    assert expected in [result for each in Rules(laws()).applications(product) for result in each.results]


# ---------------------------------------------------------------- proofs

TAKEN_ALONG = "add(sub(y, x), *b) == add(y, sub(*b, x))"
"""True with b; without it x is subtracted on the left alone, because `sub(*b, x)` goes with b."""
COUNTED_ONCE = "conv(add(x, y), w, *b, **a) == add(conv(x, w, *b, **a), conv(y, w, *b, **a)) where shape(x) == shape(y)"
"""True without b, which the right side counts twice."""


@pytest.mark.parametrize(
    ("text", "given", "false"),
    [
        (TAKEN_ALONG, "x: (n, m), y: (n, m), b: (m)", 0),
        (COUNTED_ONCE, "x: (n, c, h, k), y: (n, c, h, k), w: (o, c, 1, 1), b: (o)", 1),
    ],
)
def test_a_variant_that_is_false_is_refused(text: str, given: str, false: int) -> None:
    attributes = "a: {dilations: (1, 1), group: 1, pads: (0, 0, 0, 0), strides: (1, 1)}" if "**a" in text else ""
    for i, variant in enumerate(law_variants(text, given)):
        equation = parse_equation(variant.text)
        found = fuzz(equation, wanted=20, given=parse_given(variant.typing), attributes=parse_attributes(attributes))
        assert (found.counterexample is not None) == (i == false)
        rule = Rule("law", 0, parse_given(variant.typing), parse_attributes(attributes), equation)
        verdict = verdict_of(rule, 0, 20).found
        assert isinstance(verdict, Failure) == (i == false)
        if isinstance(verdict, Failure):
            assert verdict.kind is FailureKind.REFUTED


# ---------------------------------------------------------------- nothing twice


def optional_variables(tree: ast.expr) -> set[str]:
    """The variables that stand where an operator may do without its operand."""
    found: set[str] = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in load_specs():
            places = optional_places(get(call.func.id))
            found |= {a.id for i, a in enumerate(call.args) if isinstance(a, ast.Name) and i in places}
    return found


def with_stars(tree: ast.expr, names: frozenset[str]) -> ast.expr:
    match tree:
        case ast.Name(id=name) if name in names:
            return ast.Starred(tree, ast.Load())
        case ast.Tuple(elts=elements):
            return ast.Tuple([with_stars(e, names) for e in elements], ast.Load())
        case ast.Call(func=func, args=args, keywords=keywords):
            return ast.Call(func, [with_stars(a, names) for a in args], keywords)
    return tree


def without_some(text: str) -> list[str]:
    """The equation without some of its optional operands, for all of their sets for which that is a
    law."""
    left, right, guard = law_parts(text)
    names = sorted(optional_variables(left) | optional_variables(right))
    sets = chain.from_iterable(combinations(names, k) for k in range(1, len(names) + 1))
    found = []
    for chosen in map(frozenset, sets):
        sides = " == ".join(ast.unparse(with_stars(side, chosen)) for side in (left, right))
        try:
            found.append(law_variants(f"{sides} where {guard}" if guard else sides)[0].text)
        except SyntaxProblem:
            continue
    return found


def key(text: str) -> tuple[tuple[Node, ...], tuple[Node, ...], str]:
    equation = parse_equation(text)
    guard = ast.unparse(ast.parse(equation.where.source)) if equation.where is not None else ""
    return equation.lhs.outputs, equation.rhs.outputs, guard


def stated_twice(texts: list[str]) -> list[str]:
    plain = [text for text in texts if len(law_variants(text)) == 1]
    stated = {key(variant.text) for text in texts for variant in law_variants(text)}
    return [text for text in plain for other in without_some(text) if key(other) in stated]


def test_no_law_is_stated_twice_for_an_operand() -> None:
    assert stated_twice([text for op in load_specs().values() for text in op.law_texts]) == []


def test_a_law_that_is_stated_twice_is_seen() -> None:
    texts = [variant.text for variant in law_variants(f"{NEGATED} where is_weight(w) and is_weight(b)")]
    assert stated_twice(texts) == [texts[1]]
