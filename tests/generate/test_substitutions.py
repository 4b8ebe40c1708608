"""The library of substitutions: its files, its commands, its pictures, its ONNX pairs, and the
optimizer that reads it."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

from taso_mirage.cli.substitutions import app
from taso_mirage.errors import InvalidOption, OutputError, SyntaxProblem, TasoMirageError, Unsupported
from taso_mirage.generate.readme import readme, refresh, write_laws, write_timings
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import Tensor, topological, users, variable
from taso_mirage.onnx_io import load, serialize
from taso_mirage.onnx_io.pairs import Pair, models, pair, rule_at_sizes, small_sizes
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.fuzz import typings
from taso_mirage.prove.rules.ladder import EquationSides
from taso_mirage.prove.rules.recheck import law_rules
from taso_mirage.report.drawing import draw
from taso_mirage.report.rule_in_words import chosen, find_rule, words
from taso_mirage.rewriting import library
from taso_mirage.rewriting.equation import apply_equation, matches
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.library import RejectedRule, Rule, rule_name
from taso_mirage.rewriting.text import laws, parse_equation
from taso_mirage.search.passes import Context, can_shrink, simplify
from taso_mirage.search.rulesets import rules
from taso_mirage.search.search import directions, rewrites
from taso_mirage.verdicts import Evidence, Failure, Proof

MODEL = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"


def rule(family: str, operators: int, given: str, attributes: str, text: str, proof: str = "symbolic") -> Rule:
    equation = parse_equation(text)
    equation = replace(equation, name=rule_name(family, equation), evidence="library")
    evidence = Evidence(16, 512, Proof(proof, 'every size of "3" typings', 1234))
    pairs = library.parse_given(given), library.parse_attributes(attributes)
    return Rule(equation.name, operators, *pairs, equation, evidence)


SAME = "strides: (1, 1), pads: (1, 1, 1, 1), dilations: (1, 1)"
RULES = (
    rule(
        "taso",
        3,
        "x: (n, c, h, w), v: (o, c, 3, 3), w: (p, c, 3, 3)",
        f"a: {{{SAME}}}",
        "concat(conv(x, v, group=1, **a), conv(x, w, group=1, **a), axis=1) == conv(x, concat(v, w, axis=0), group=1, **a) "
        "where shape(v)[1:] == shape(w)[1:]",
    ),
    rule(
        "taso",
        4,
        "x: (n, c), v: (c, o), w: (c, p)",
        "",
        "(matmul(x, v), relu(matmul(x, w))) == (item(split(matmul(x, concat(v, w, axis=1)), axis=1, split=(dim(v, 1), "
        "dim(w, 1))), index=0), relu(item(split(matmul(x, concat(v, w, axis=1)), axis=1, split=(dim(v, 1), dim(w, 1))), "
        "index=1))) where rank(v) == 2 and rank(w) == 2 and dim(v, 0) == dim(w, 0)",
        "bounded",
    ),
    rule("attention", 2, "x: (n, 2*m)", "p: (1, 0), q: (1, 0)",
         "transpose(transpose(x, perm=p), perm=q) == transpose(x, perm=compose(p, q))"),
    rule("attention", 2, "x: (n, c, h)", "s: (n*c, h), t: (n, c*h)",
         "reshape(reshape(x, shape=s), shape=t) == reshape(x, shape=t)", "bounded"),
    rule("norm", 5, "x: (n, c)", "", "mul(0.5, mul(x, add(1, tanh(mul(x, 0.5))))) == mul(x, sigmoid(x))"),
    rule("elementwise", 2, "x: (n, c)", "", "max(relu(x), 0) == relu(x)"),
    rule("elementwise", 2, "x: (), y: (n)", "", "sub(x, neg(y)) == add(x, y) where rank(x) < 2 and rank(y) > 0"),
    rule("attention", 2, "x: (n, c), i: int64 (k)", "", "gather(relu(x), i, axis=0) == relu(gather(x, i, axis=0))"),
    rule("elementwise", 2, "x: (n, c), w: (c, o), c: ()", "",
         "mul(matmul(x, w), c) == matmul(x, mul(w, c)) where is_weight(w) and is_constant(c)"),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for family in sorted({r.family for r in RULES}):
        library.write_rules(
            tmp_path / f"{family}.toml", [r for r in RULES if r.family == family], f"Rules of {family}."
        )
    library.load_rules.cache_clear()
    yield tmp_path
    library.load_rules.cache_clear()


# ---------------------------------------------------------------- files


def test_rules_are_read_as_they_were_written(folder: Path) -> None:
    read = library.load_rules(folder)
    assert sorted(read, key=lambda r: r.name) == sorted(RULES, key=lambda r: r.name)
    assert [r.family for r in read] == sorted(r.family for r in read)
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    for file in sorted(folder.glob("*.toml")):
        library.write_rules(file, library.read(file), f"Rules of {file.stem}.")
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before


def test_a_file_of_rules_reads_well(tmp_path: Path) -> None:
    library.write_rules(tmp_path / "taso.toml", RULES[:1], "Family taso.\n\nTwo lines.")
    assert (tmp_path / "taso.toml").read_text() == (
        '# Family taso.\n#\n# Two lines.\n\n[[rule]]\nname = "taso.concat_to_conv.9cd5"\noperators = 3\n'
        'given = "x: (n, c, h, w), v: (o, c, 3, 3), w: (p, c, 3, 3)"\n'
        'attributes = "a: {dilations: (1, 1), pads: (1, 1, 1, 1), strides: (1, 1)}"\n'
        'lhs = "concat(conv(x, v, group=1, **a), conv(x, w, group=1, **a), axis=1)"\n'
        'rhs = "conv(x, concat(v, w, axis=0), group=1, **a)"\n'
        'where = "shape(v)[1:] == shape(w)[1:]"\n'
        'evidence = { cases = 16, typings = 512, proof = "symbolic", bound = "every size of \\"3\\" typings", steps = 1234 }\n'
    )


@pytest.mark.parametrize("each", RULES, ids=lambda r: r.name)
def test_both_sides_have_a_type_at_the_typing(each: Rule) -> None:
    lhs, rhs = each.instance()
    assert [n.type for n in lhs] == [n.type for n in rhs]
    assert all(isinstance(n.type, Tensor) for n in lhs)


@pytest.mark.parametrize(
    "text",
    [
        "x: (n, c, 3), i: int64 (2*n)",
        "x: (), y: bool (n), z: (n + 1, 4)",
        "x: float16 (), y: (((h + 1)//(2)), h*h)",
    ],
)
def test_typings_print_and_parse_back(text: str) -> None:
    assert library.show_given(library.parse_given(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "i: 1, p: (1, 0), a: {strides: (1, 1)}",
        "s: (n, c*h), q: (), v: -inf, t: 'edge', z: None, y: (3,), f: 1e-05",
    ],
)
def test_attributes_print_and_parse_back(text: str) -> None:
    assert library.show_attributes(library.parse_attributes(text)) == text


def test_a_captured_rest_is_sorted_and_dims_are_symbols() -> None:
    found = dict(library.parse_attributes("a: {strides: (1, 1), group: 2}, s: (n, 2)"))
    assert found == {"a": (("group", 2), ("strides", (1, 1))), "s": (symbol("n"), 2)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('lhs = "', 'left = "', "no field is called left"),
        ("operators = 3", "operators = true", "field operators: True is no int"),
        ("operators = 3", "operator = 3", "no field is called operator"),
        ("(o, c, 3, 3)", "(o, c, 3.5, 3)", "field given: 3.5 is no size"),
        ("w: (p, c, 3, 3)", "w: float33 (p, c, 3, 3)", "field given: float33.*no dtype"),
        (", w: (p, c, 3, 3)", "", "field where: the variables of the left side are v, w, x"),
        ("a: {", "b: {", "field where: the attributes of the left side are a"),
        ("concat(v, w", "concat(v, z", "field where: 'z' names z, which the left side does not have"),
        ("shape(v)", "shape(q)", r"names q, which the left side does not have"),
        ('lhs = "concat(', 'lhs = "concatt(', "field lhs: no operator concatt"),
        ("strides: (1, 1)", "strides: (1, 1", "field attributes"),
        ('proof = "symbolic"', 'proof = "trust"', "field evidence, field proof: 'trust' is none of symbolic"),
        ("cases = 16", "casis = 16", "field evidence: no field is called casis"),
        ("[[rule]]", "[[rules]]", r"only \[\[rule\]\] is expected, not rules"),
        ('name = "', 'name = ', "Invalid value"),
    ],
)  # fmt: skip
def test_an_error_names_file_rule_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "taso.toml"
    library.write_rules(path, RULES[:1])
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SyntaxProblem, match=message) as caught:
        library.read(path)
    assert str(path) in str(caught.value)


def test_names_are_unique_in_a_file_and_in_a_folder(folder: Path) -> None:
    library.write_rules(folder / "zzz.toml", RULES[:1])
    with pytest.raises(SyntaxProblem, match=r"zzz.toml: the rule taso.concat_to_conv.9cd5 is in taso.toml too"):
        library.load_rules(folder)
    library.write_rules(folder / "zzz.toml", [*RULES[:1], *RULES[:1]])
    with pytest.raises(SyntaxProblem, match=r"2 rules are called taso.concat_to_conv.9cd5"):
        library.read(folder / "zzz.toml")
    with pytest.raises(InvalidOption, match="No such file"):
        library.read(folder / "none.toml")


def test_a_name_says_family_and_roots_and_is_never_taken_twice() -> None:
    assert [r.name.rpartition(".")[0] for r in RULES[:3]] == [
        "taso.concat_to_conv",
        "taso.merge_matmul_relu",
        "attention.transpose_to_transpose",
    ]
    name = rule_name("taso", RULES[0].equation)
    longer = rule_name("taso", RULES[0].equation, {name})
    assert name == RULES[0].name
    assert longer.startswith(name)
    assert len(longer) == len(name) + 1
    assert rule_name("x", parse_equation("neg(neg(x)) == x")).startswith("x.neg_to_operand.")


def test_rejected_candidates_keep_their_counterexample(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "x": [[1, -2], [0.5, 1e-30]],
        "attributes": {"axis": 1, "mode of pad": "edge"},
        "text": 'a "quoted"\\ line\nand\ttab\x01',
        "deep": [{"at": [0, 1], "lhs": float("inf")}],
        "flag": True,
        "empty": [],
    }
    rejected = [RejectedRule("relu(x) == x", "typings", values), RejectedRule("neg(x) == x", "field", {})]
    library.write_rejected(tmp_path / "rejected.toml", rejected, "Refuted.")
    assert library.read_rejected(tmp_path / "rejected.toml") == tuple(rejected)
    library.write_rules(tmp_path / "taso.toml", RULES[:1])
    assert len(library.load_rules(tmp_path)) == 1


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taso.toml").mkdir()
    with pytest.raises(OutputError, match=r"taso.toml"):
        library.write_rules(tmp_path / "taso.toml", RULES[:1])
    assert [f.name for f in tmp_path.iterdir()] == ["taso.toml"]
    with pytest.raises(TypeError, match="has no form in TOML"):
        library.write_rejected(tmp_path / "rejected.toml", [RejectedRule("a", "b", {"x": object()})])


# ---------------------------------------------------------------- the optimizer


def test_the_optimizer_reads_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load_rules", lambda: RULES)
    assert rules.__wrapped__().equations == (*laws(), *(r.equation for r in RULES))


def test_the_library_read_backwards_does_not_grow_a_graph() -> None:
    """Laws go both ways; of a library there are too many ways up."""
    x, y = (variable(n, Tensor("float32", (2, 3))) for n in "xy")
    state = (term("relu", term("neg", term("add", x, y))),)
    law = parse_equation("relu(neg(neg(neg(add(x, y))))) == relu(neg(add(x, y)))", "law.x")
    for each, grows in ((replace(law, evidence="library"), False), (law, True)):
        found = rewrites(state, Rules(directions((each,))), Rules([]), Context({"": 17}, {}))
        assert {name for r in found for name in r.equations} == ({"law.x~"} if grows else set())


def test_the_index_finds_what_trying_every_equation_finds() -> None:
    equations = [*directions(laws()), *(r.equation for r in RULES)]
    rules = Rules(equations)
    terms = topological(load(MODEL).graph.outputs)[:60]
    used_by = users(terms)
    for node in terms:
        every = [
            (len(e.roots), results)
            for e in equations
            for found in matches(e, node, used_by)
            if not isinstance(results := apply_equation(e, found), Failure) and results != found.outputs
        ]
        single = [a.results for a in rules.applications(node)]
        assert single == list(dict.fromkeys(r for n, r in every if n == 1))
        assert [a.results for a in rules.joint_applications(node, used_by)] == [r for n, r in every if n > 1]


def test_equations_that_cannot_shrink_a_graph_are_never_taken_by_the_passes() -> None:
    def shrinks(text: str) -> bool:
        return can_shrink(parse_equation(text))

    assert shrinks("relu(relu(x)) == relu(x)")
    assert shrinks("mul(conv(x, w, **a), c) == conv(x, mul(w, c), **a)")  # where w and c are weights
    assert not shrinks("add(x, y) == add(y, x)")
    assert not shrinks("matmul(x, neg(w)) == neg(matmul(x, w))")
    assert not shrinks("relu(x) == max(x, 0)")
    model = load(MODEL)
    context = Context({"com.microsoft": 1, **model.opsets}, dict.fromkeys(model.symbols(), 4))
    every, _ = simplify(model.graph.outputs, Rules(laws()), context)
    some, _ = simplify(model.graph.outputs, Rules([e for e in laws() if can_shrink(e)]), context)
    assert every == some


# ---------------------------------------------------------------- ONNX pairs

ROUNDING = 2e-4


def agree(made: Pair, seed: int) -> bool:
    """Whether both models agree in ONNX Runtime, as written: its own fusions would make the sides
    alike (and one of them is wrong for Pad)."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    inputs = random_inputs(made.lhs, seed)
    if any(min(a.shape, default=2) < 2 for a in inputs.values()):  # 1 may be no index of such a dim
        inputs = {name: a * 0 if a.dtype.kind == "i" else a for name, a in inputs.items()}
    results = []
    for side in (made.lhs, made.rhs):
        try:
            session = onnxruntime.InferenceSession(serialize(side), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if "NOT_IMPLEMENTED" in str(error):
                pytest.skip(str(error)[:200])
            raise
        results.append(session.run(None, inputs))
    return all(close(a, b) for a, b in zip(*results, strict=True))


def close(a: Any, b: Any) -> bool:
    """Equal up to float32 rounding where both are numbers."""
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    both = np.isfinite(a) & np.isfinite(b)
    scale = max(1.0, float(np.abs(a[both]).max(initial=0)))
    return a.shape == b.shape and bool(np.allclose(a[both], b[both], rtol=1e-3, atol=ROUNDING * scale))


def pairs_agree(each: Rule, wanted: int) -> bool:
    """Whether the runtime computes the same from both sides at two or more typings: at legal sizes
    of the rule's own, and at random legal ones that ONNX can express (a convolution has no negative
    pads there)."""
    own = filter(None, (rule_at_sizes(each, sizes) for sizes in small_sizes(each)))
    drawn = ((t.lhs, t.rhs) for t in typings(each.equation, 5, 400, each.given, each.attributes))
    made = [*islice(exported(own), 2), *islice(exported(drawn), wanted)]
    return len(made) >= 2 and all(agree(one, seed) for seed, one in enumerate(made))


def exported(sides: Iterable[EquationSides]) -> Iterator[Pair]:
    for each in sides:
        with suppress(Unsupported):
            yield models(*each)


@pytest.mark.parametrize("each", RULES, ids=lambda r: r.name)
def test_both_sides_give_equal_results_in_onnx_runtime(each: Rule) -> None:
    assert pairs_agree(each, 3)
    made = pair(each)
    assert (
        made.lhs.input_names
        == made.rhs.input_names
        == tuple(sorted(name for name, _ in each.given if f"is_constant({name})" not in str(each.equation.where)))
    )
    assert made.lhs.output_names == made.rhs.output_names


def test_a_pair_of_a_wrong_rule_differs() -> None:
    wrong = rule("wrong", 2, "x: (n, c)", "", "relu(neg(x)) == neg(relu(x))")
    assert not agree(pair(wrong), 0)


def test_a_pair_takes_sizes_that_are_legal_and_different() -> None:
    shapes = {n.attr("name"): n.shape for n in pair(RULES[0]).lhs.graph.inputs}
    sizes = {*shapes["x"], shapes["v"][0], shapes["w"][0]}
    assert len(sizes) == 6
    with pytest.raises(TasoMirageError, match="no sizes up to 12"):
        pair(rule("wrong", 1, "x: (n, c)", "", "relu(x) == neg(x) where dim(x, 0) > 99"))


SHIPPED = library.load_rules()


@pytest.mark.parametrize("each", SHIPPED[:: max(1, len(SHIPPED) // 48)], ids=lambda r: r.name)
def test_a_sample_of_the_shipped_pairs(each: Rule) -> None:
    assert pairs_agree(each, 2)


@pytest.mark.slow
@pytest.mark.parametrize("each", SHIPPED, ids=lambda r: r.name)
def test_every_shipped_pair(each: Rule) -> None:
    assert pairs_agree(each, 5)


@pytest.mark.lint("taso_mirage", "op_specs", "substitutions")
def test_the_shipped_page_is_that_of_the_shipped_rules() -> None:
    assert len({r.name for r in SHIPPED}) == len(SHIPPED)
    assert all(r.evidence.proof is not None for r in SHIPPED)
    shipped = library.data_folder("substitutions")
    if not SHIPPED:
        return
    counts = json.loads((shipped / "counts.json").read_text())
    rejected = shipped / "rejected.toml"
    refuted = library.read_rejected(rejected) if rejected.exists() else ()
    judged = json.loads((shipped / "laws.json").read_text())
    assert (shipped / "README.md").read_text() == readme(SHIPPED, refuted, counts, judged)
    assert list(judged) == [law.name for law in law_rules()], (
        "run `taso-mirage substitutions verify --laws --record substitutions`"
    )


# ---------------------------------------------------------------- words and pictures


def test_guards_are_explained_in_words() -> None:
    guard = "rank(x) <= 4 and (rank(x), rank(y)) in ((2, 2), (3, 2)) and dim(x, 0) < 9"
    found = set(words(rule("taso", 2, "x: (n, m), y: (m, k)", "", f"relu(matmul(x, y)) == matmul(x, y) where {guard}")))
    assert {
        "  - the rank of x is at most 4",
        "  - (the rank of x, the rank of y) is one of (2, 2), (3, 2)",
        "  - dimension 0 of x is below 9",
    } <= found


def test_rules_are_found_by_text_operator_and_beginning() -> None:
    assert [r.name for r in chosen(RULES, ["CONV", "axis=0"], ["conv", "concat"], [])] == [RULES[0].name]
    assert {r.family for r in chosen(RULES, [], ["relu"], ["taso", "elementwise"])} == {"taso", "elementwise"}
    assert chosen(RULES, [], ["softmax"], []) == []
    assert find_rule(RULES, "taso.con") is RULES[0]
    with pytest.raises(InvalidOption, match=r"2 rules begin with 'taso': taso.concat_to_conv.9cd5, taso.merge"):
        find_rule(RULES, "taso")
    with pytest.raises(
        InvalidOption, match=r"no rule is called 'taso.concat_to_conf.9cd5'; did you mean taso.concat_to_"
    ):
        find_rule(RULES, "taso.concat_to_conf.9cd5")
    with pytest.raises(InvalidOption, match=r"did you mean taso.concat_to_conv"):
        find_rule(RULES, "to_conv")


def test_a_rule_in_words() -> None:
    assert list(words(RULES[1]))[:6] == [
        f"{RULES[1].name} replaces 3 operators (relu, 2 matmul) by 4 operators (relu, split, matmul, concat).",
        "It replaces 2 values at once.",
        "Operands, at its typing: x [n, c], v [c, o], w [c, p].",
        "It applies where:",
        "  - the rank of v equals 2",
        "  - the rank of w equals 2",
    ]
    assert list(words(RULES[5]))[-3:] == [
        "It applies wherever the left side is found.",
        "Evidence: 16 cases; 512 random legal typings; proved for every size: every size of \"3\" typings "
        "(1234 steps).",
        "Work at c=2, n=3: 12 operations and 100 bytes moved before, 6 operations and 48 bytes moved after (terms over "
        "weights alone cost nothing at run time).",
    ]  # fmt: skip


@pytest.mark.parametrize("each", RULES, ids=lambda r: r.name)
def test_the_picture_shows_both_sides(each: Rule) -> None:
    text = draw(each)
    root = ET.fromstring(text)
    svg = "{http://www.w3.org/2000/svg}"
    said = [t.text or "" for t in root.iter(f"{svg}text")]
    terms = [n for side in (each.equation.lhs, each.equation.rhs) for n in side]
    wanted = [n.op for n in terms if n.op not in ("input", "splat", "item")]
    assert sorted(t for t in said if t in wanted) == sorted(wanted)
    assert each.name in said
    edges = sum(len(n.args) for n in terms) + 2 * len(each.equation.roots)
    arrows = [g for g in root.iter(f"{svg}g") if g.get("marker-end")]
    assert sum(len(g.findall(f"{svg}path")) for g in arrows) == edges
    assert inside(root, svg)
    assert draw(each) == text


def inside(root: ET.Element, svg: str) -> bool:
    """Boxes of one side do not overlap, and lie within the picture."""
    for group in (g for g in root.iter(f"{svg}g") if g.get("transform")):
        x, y = map(float, group.get("transform", "")[10:-1].split(","))
        boxes = [[float(r.get(k, "0")) for k in ("x", "y", "width", "height")] for r in group.iter(f"{svg}rect")]
        for i, (a, b, w, h) in enumerate(boxes):
            if (
                a + x < 0
                or b + y < 0
                or a + x + w > float(root.get("width", "0"))
                or b + y + h > float(root.get("height", "0"))
            ):
                return False
            for c, d, v, g in boxes[i + 1 :]:
                if a < c + v and c < a + w and b < d + g and d < b + h:
                    return False
    return True


# ---------------------------------------------------------------- the page


def test_the_page_counts_families_sizes_proofs_and_stages(folder: Path) -> None:
    counts = {"taso": {"terms": 10, "classes": 4}, "norm": {"terms": 7}}
    library.write_rejected(folder / "rejected.toml", [RejectedRule("relu(x) == x", "field", {})])
    refresh(folder, counts)
    page = (folder / "README.md").read_text()
    assert "9 rules: 8 replace one value, 1 replace several values at once." in page
    assert "1 candidates were refuted" in page
    assert "| family | 2 | 3 | 4 | 5 | all |" in page
    assert "| taso | 0 | 1 | 1 | 0 | 2 |" in page
    assert "| all | 6 | 1 | 1 | 1 | 9 |" in page
    assert "| attention | 2 | 1 | 3 |" in page
    assert "| stage | taso | norm |" in page
    assert "| classes | 4 |  |" in page
    refresh(folder)
    assert (folder / "README.md").read_text() == page
    write_timings(folder, {"b": 0.12345, "a": 1})
    assert (folder / "timings.json").read_text() == '{\n "a": 1,\n "b": 0.123\n}\n'


def test_the_page_has_the_cases_of_the_laws(folder: Path) -> None:
    write_laws(folder, {"add.1": {"proved": 7, "bounded": 2}, "relu.2": {"proved": 3, "refuted": 1, "unproved": 4}})
    page = (folder / "README.md").read_text()
    assert "| 2 | 10 | 2 | 5 | 17 |" in page
    assert "Laws with excluded cases: relu.2 (5)." in page
    assert json.loads((folder / "laws.json").read_text())["add.1"] == {"bounded": 2, "proved": 7}


def test_the_page_of_an_empty_library() -> None:
    assert "0 rules" in readme([], [], {}, {})


# ---------------------------------------------------------------- commands

runner = CliRunner()


def invoke(*args: str) -> str:
    result = runner.invoke(app, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_and_show(folder: Path) -> None:
    lines = invoke("list", "--operator", "conv", "--operator", "concat", "--library", str(folder)).splitlines()
    assert lines == [
        "taso.concat_to_conv.9cd5  3  symbolic  concat(conv(x, v, group=1, **a), conv(x, w, group=1, **a), axis=1) == "
        "conv(x, concat(v, w, axis=0), group=1, **a)  where shape(v)[1:] == shape(w)[1:]"
    ]
    found = json.loads(invoke("list", "--family", "norm", "--json", "--library", str(folder)))
    assert [r["name"] for r in found["rules"]] == [RULES[4].name]
    assert found["of"] == len(RULES)
    assert "where shape(v)[1:] == shape(w)[1:]" in invoke("show", "taso.con", "--library", str(folder))
    shown = json.loads(invoke("show", "taso.con", "--json", "--library", str(folder)))
    assert shown["given"]["v"] == "float32[o, c, 3, 3]"
    assert shown["attributes"] == {"a": "{dilations: (1, 1), pads: (1, 1, 1, 1), strides: (1, 1)}"}
    for args, message in (
        (("list", "--operator", "convolution"), "--operator convolution: no operator"),
        (("list", "--family", "tasso"), "--family tasso: the families are attention, elementwise"),
        (("show", "nothing"), "no rule is called 'nothing'"),
    ):
        with pytest.raises(InvalidOption, match=message):
            invoke(*args, "--library", str(folder))
    with pytest.raises(InvalidOption, match="no such folder"):
        invoke("list", "--library", str(folder / "none"))


def test_explain_writes_a_picture_and_models_that_its_script_runs(folder: Path, tmp_path: Path) -> None:
    name = RULES[0].name
    said = invoke("explain", "taso.con", "-o", str(tmp_path / "out"), "--library", str(folder))
    files = [f"{name}-lhs.onnx", f"{name}-rhs.onnx", f"{name}.npz", f"{name}.svg"]
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == files
    script = said[said.index("import numpy") :]
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"
    again = {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
    invoke("explain", name, "-o", str(tmp_path / "out"), "--library", str(folder))
    assert {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()} == again


def test_verify_counts_proofs_and_names_what_is_not_there(folder: Path) -> None:
    files = [str(f) for f in sorted(folder.glob("*.toml"))]
    good = invoke("verify", files[0], "--workers", "1", "--typings", "40").splitlines()
    assert good[0] == "family     symbolic   bounded    failed     rules"
    proved, bounded, failed, rules = map(int, good[1].split()[1:])
    assert (proved + bounded, failed, rules) == (3, 0, 3)
    assert good[3].startswith("cases: ")
    with pytest.raises(InvalidOption, match="--rule q: no rule begins so"):
        invoke("verify", *files, "--rule", "q")
    library.write_rules(folder / "empty.toml", [])
    with pytest.raises(InvalidOption, match="there are no rules"):
        invoke("verify", str(folder / "empty.toml"))
    with pytest.raises(InvalidOption, match="exclude each other"):
        invoke("verify", *files, "--laws")
    with pytest.raises(InvalidOption, match="is for laws"):
        invoke("verify", "--rule", "relu.2", "--record", str(folder))


def test_some_laws_are_recorded_and_the_others_stay(folder: Path) -> None:
    write_laws(folder, {"relu.0": {"proved": 1}, "relu.2": {"proved": 1}, "no law any more": {"proved": 1}})
    invoke("verify", "--laws", "--rule", "relu.2", "--record", str(folder), "--typings", "40", "--workers", "1")
    judged = json.loads((folder / "laws.json").read_text())
    assert list(judged) == ["relu.0", "relu.2"]
    assert judged["relu.0"] == {"proved": 1}
    assert judged["relu.2"]["proved"] > 1


def test_laws_claim_their_proved_cases() -> None:
    assert "cases: " in invoke("verify", "--laws", "--rule", "relu.2", "--typings", "40")


@pytest.mark.sampled(3)
def test_verify_says_the_same_with_any_number_of_workers(folder: Path) -> None:
    command = ["verify", str(folder / "attention.toml"), str(folder / "elementwise.toml"), "--json", "--typings", "40"]
    said = []
    for workers in ("1", "2"):
        result = runner.invoke(app, [*command, "--workers", workers])
        said.append([{**v, "seconds": 0} for v in json.loads(result.stdout)["rules"]])
    assert said[0] == said[1]


def test_generate_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[Any] = []
    fake = types.ModuleType("pipeline")
    monkeypatch.setattr(fake, "GenerateOptions", lambda *args: args, raising=False)
    monkeypatch.setattr(fake, "generate", taken.append, raising=False)
    monkeypatch.setitem(sys.modules, "taso_mirage.generate.pipeline", fake)
    monkeypatch.setattr("taso_mirage.generate.pipeline", fake, raising=False)
    options = "--ops 3 --family taso --family conv --seed 7 --workers 2 --resume -o"
    invoke("generate", *options.split(), str(tmp_path))
    assert taken == [(3, ("taso", "conv"), 7, 2, None, True, tmp_path)]
    with pytest.raises(InvalidOption, match="exclude each other"):
        invoke("generate", "--workers", "2", "--scheduler", "host:1")
