"""The check of large models: patches on the values of one run, with the float64 evaluation of the
whole model switched off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from deep_mutants import Sizes, Transformer, but_rows, mutants, planted, right_ones, sliced

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, topological, variable, weight
from taso_mirage.measure import compared, cuts, regional
from taso_mirage.measure.bulk import evaluation_seconds
from taso_mirage.measure.check import Difference, compare
from taso_mirage.measure.compared import ClaimedModel
from taso_mirage.measure.cuts import Sides
from taso_mirage.measure.joint import Ran
from taso_mirage.measure.patches import patches
from taso_mirage.measure.perturbation import Perturbed
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.regional import RegionalCheck
from taso_mirage.measure.session import Session, open_in_child
from taso_mirage.measure.target import CPU
from taso_mirage.measure.whole import cases_by_runs
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model, problem
from taso_mirage.rewriting.text import parse_equation
from taso_mirage.search.config import Config
from taso_mirage.search.rulesets import RuleSet
from taso_mirage.search.steps import FOLDING, RewriteStep, claimed, folded_from, replay

MANY = 60
"""Terms of a float64 evaluation that is one of the whole model."""
MUTANTS, RIGHT = mutants(), right_ones()


class Checked:
    """A model with its cases, and the patches that were compared."""

    def __init__(self, sizes: Sizes) -> None:
        self.made = Transformer(sizes)
        model = self.made.model
        self.cases = list(cases_by_runs(model, open_in_child(model, CPU), {}))[:1]
        self.regions = RegionalCheck(model, self.cases)

    def regional(self, change, layer: int) -> list[Difference]:  # type: ignore[no-untyped-def]
        found = planted(self.made, change, layer)
        return self.regions.differences(ClaimedModel(found.model, CPU, found.claims, {}))

    def whole(self, change, layer: int) -> list[Difference]:  # type: ignore[no-untyped-def]
        model = planted(self.made, change, layer).model
        return compare(model, open_in_child(model, CPU), self.cases)


@pytest.fixture(scope="module")
def checked() -> Iterator[Checked]:
    """The whole model is never evaluated, every patch is cut, and patches run in few sessions."""
    patch = pytest.MonkeyPatch()
    given = FloatReference.__call__

    def small(self: FloatReference, *args: object) -> object:
        assert len(self.model.nodes()) < MANY
        return given(self, *args)  # type: ignore[arg-type]

    patch.setattr(FloatReference, "__call__", small)
    patch.setattr(cuts, "LIFTING", 0.0)
    patch.setattr(cuts, "LONG", 0.0)
    patch.setattr(regional, "opens_slowly", lambda target: True)
    yield Checked(Sizes())
    patch.undo()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rewrite_deep_in_a_model_is_found(checked: Checked, name: str) -> None:
    layer = 1 + list(MUTANTS).index(name) % (checked.made.sizes.layers - 1)
    found = checked.regional(MUTANTS[name], layer)
    assert found
    assert any(not each.passed for each in found)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_one_passes(checked: Checked, name: str) -> None:
    found = [*checked.regional(RIGHT[name], 4), *checked.whole(RIGHT[name], 4)]
    assert found
    assert all(each.passed for each in found), [str(each) for each in found if not each.passed]


def test_what_there_is_no_time_for_is_said(checked: Checked) -> None:
    late = RegionalCheck(checked.made.model, checked.cases, lambda: True)
    found = planted(checked.made, RIGHT["scale in the queries"], 2)
    assert late.differences(ClaimedModel(found.model, CPU, found.claims, {})) == []
    assert list(late.alone) == ["there was no time"]


def test_regions_run_in_few_sessions_where_one_takes_long_to_open(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six kinds in three layers, at full size and cut: two sessions; and each in its own where
    together they do not run."""
    outputs, layers = checked.made.model.graph.outputs, (5, 3, 1)
    pairs = [RIGHT[name](checked.made, i, checked.made.layers[i]) for i in layers for name in list(RIGHT)[:6]]
    steps = [RewriteStep(("planted",), (old,), (new,)) for old, new in pairs]
    model = checked.made.model.with_graph(replay(outputs, steps), checked.made.weights)
    opened, given = list[Model](), compared.open_part
    monkeypatch.setattr(compared, "open_part", lambda model, target: (opened.append(model), given(model, target))[1])
    counts, found = list[int](), list[list[Difference]]()
    for joint in (True, False):
        opened.clear()
        monkeypatch.setattr(regional, "opens_slowly", lambda target, joint=joint: joint)
        check = RegionalCheck(checked.made.model, checked.cases)
        found.append(check.differences(ClaimedModel(model, CPU, claimed(outputs, steps), {})))
        counts.append(len(opened))
    assert counts[0] == 2 < counts[1]
    assert [d.passed for d in found[0]] == [d.passed for d in found[1]]
    assert [d.error for d in found[0]] == [d.error for d in found[1]]
    monkeypatch.setattr(regional, "opens_slowly", lambda target: True)
    monkeypatch.setattr(regional, "run_together", lambda places, opened: [None] * len(places))
    opened.clear()
    check = RegionalCheck(checked.made.model, checked.cases)
    alone = check.differences(ClaimedModel(model, CPU, claimed(outputs, steps), {}))
    assert [d.error for d in alone] == [d.error for d in found[1]]
    assert len(opened) > 2


def test_float64_is_evaluated_while_patches_run(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, here = threading.Event(), threading.get_ident()
    evaluate, run_together = FloatReference.__call__, regional.run_together

    def noted(self: FloatReference, *args: object) -> object:
        if threading.get_ident() != here:
            begun.set()
        return evaluate(self, *args)  # type: ignore[arg-type]

    def waiting(places: Sequence[Sides], opened: Callable[[Sides], Session]) -> list[Ran | None]:
        assert begun.wait(60)
        return run_together(places, opened)

    monkeypatch.setattr(FloatReference, "__call__", noted)
    monkeypatch.setattr(regional, "run_together", waiting)
    found = checked.regional(RIGHT["scale in the queries"], 2)
    assert found
    assert all(each.passed for each in found)


def test_the_cheapest_regions_come_first(checked: Checked) -> None:
    """One that takes all of the time takes it from no other."""
    outputs, layer = checked.made.model.graph.outputs, checked.made.layers[2]
    names = ("scale in the queries", "scale in a weight")
    pairs = [RIGHT[name](checked.made, 2, layer) for name in names]
    steps = [RewriteStep(("planted",), (old,), (new,)) for old, new in pairs]
    model = checked.made.model.with_graph(replay(outputs, steps), checked.made.weights)
    kinds = checked.regions._kinds(ClaimedModel(model, CPU, claimed(outputs, steps), {}))
    takes = [evaluation_seconds(topological(next(iter(each.values())).before), {}) for each in kinds]
    assert len(takes) == 2
    assert takes == sorted(takes)
    assert takes[0] < takes[1]


def test_equal_layers_are_compared_once(checked: Checked) -> None:
    """One patch at two layers, and another one where a weight of another layer is in it."""
    change, outputs = RIGHT["scale in the queries"], checked.made.model.graph.outputs
    pairs = [change(checked.made, i, checked.made.layers[i]) for i in (5, 2)]
    steps = [RewriteStep(("planted",), (old,), (new,)) for old, new in pairs]
    found = patches(outputs, replay(outputs, steps), claimed(outputs, steps))
    assert len(found) == 2
    assert len({each.key({}) for each in found}) == 1
    wrong = [planted(checked.made, MUTANTS["gain of another layer"], i) for i in (2, 5)]
    (first,), (second,) = (patches(outputs, each.model.graph.outputs, each.claims) for each in wrong)
    assert first.key({}) == second.key({})
    assert first.key({}) != found[0].key({})


def test_a_constant_that_folds_to_its_own_operand_stands_for_itself() -> None:
    """The reshape of a constant to its own shape; a key over such a cycle never ended."""
    one, x = constant(1.0, "float32"), variable("x", Tensor("float32", (4,)))
    made = folded_from([RewriteStep((FOLDING,), (term("reshape", one, shape=()),), (one,))])
    assert one not in made
    outputs, results = [term("add", x, one)], [term("add", one, x)]
    (patch,) = patches(outputs, results, dict(zip(outputs, results, strict=True)))
    assert patch.key(made)[1] == (term("add", one, variable("x1", x.tensor)),)


def test_sizes_that_may_vary_are_found_once_for_the_values_of_all_runs(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list(cases_by_runs(checked.made.model, open_in_child(checked.made.model, CPU), {}))[:2]
    found = planted(checked.made, RIGHT["scale in the queries"], 2)
    lifted: list[object] = []
    cuts._lifted.cache_clear()
    monkeypatch.setattr(cuts, "lift", lambda before, after, **_: lifted.append((before, after)))
    regions = RegionalCheck(checked.made.model, cases)
    assert len({each.case for each in regions.differences(ClaimedModel(found.model, CPU, found.claims, {}))}) == 2
    cuts._lifted.cache_clear()
    assert len(lifted) == 2  # equal sizes as one, and alone


TOKENS, HEADS, INNER = 64, 2, 8


def attention(scale: float = 1.0) -> tuple[tuple[Node, ...], Node, Node]:
    """An attention over three values of one size, which many models split and join so, and the
    runtime's own in its place."""
    q, k, v = (variable(name, Tensor("float32", (2, TOKENS, HEADS * INNER))) for name in "qkv")
    split = (
        term("transpose", term("reshape", each, shape=(2, TOKENS, HEADS, INNER)), perm=(0, 2, 1, 3))
        for each in (q, k, v)
    )
    queries, keys, values = split
    scores = term("matmul", queries, term("transpose", keys, perm=(0, 1, 3, 2)))
    joined = term("transpose", term("matmul", term("softmax", scores, axis=3), values), perm=(0, 2, 1, 3))
    old = term("reshape", joined, shape=(2, TOKENS, HEADS * INNER))
    return (q, k, v), old, term("multi_head_attention", q, k, v, num_heads=HEADS, scale=scale)


@pytest.mark.parametrize("wrong", ["", "scale", "last queries", "a head", "last keys"])
def test_attention_of_many_tokens_is_evaluated_for_few_queries(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """The scores of all queries would take seconds; an error in the others alone is far from the
    original's run."""
    inputs, old, new = attention(1.01 if wrong == "scale" else 1.0)
    if wrong == "last queries":
        new = but_rows(new, term("neg", new), 1, TOKENS - 2, TOKENS)
    if wrong == "a head":
        new = but_rows(new, term("neg", new), 2, INNER, 2 * INNER)
    if wrong == "last keys":
        few = [inputs[0], *(sliced(each, 1, 0, TOKENS - 8) for each in inputs[1:])]
        new = term("multi_head_attention", *few, num_heads=HEADS, scale=1.0)
    model = standalone(Graph(inputs, (term("tanh", old),)), {"": 20, "com.microsoft": 1})
    steps = [RewriteStep(("planted",), (old,), (new,))]
    outputs = model.graph.outputs
    shapes, given = list[list[int]](), FloatReference.__call__

    def seen(self: FloatReference, *args: object) -> object:
        shapes.append([int(each.shape[1]) for each in self.model.graph.inputs])
        return given(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(FloatReference, "__call__", seen)
    monkeypatch.setattr(cuts, "LIFTING", 0.0)
    monkeypatch.setattr(cuts, "LONG", 0.0)
    check = RegionalCheck(model, list(cases_by_runs(model, open_in_child(model, CPU), {}))[:1])
    changed = model.with_graph(replay(outputs, steps))
    shapes.clear()
    found = check.differences(ClaimedModel(changed, CPU, claimed(outputs, steps), {}))
    assert all(each.passed for each in found) == (wrong == "")
    if not wrong:
        assert shapes[-1] == [cuts.ROWS, TOKENS, TOKENS]
    assert not wrong or found


def test_what_is_evaluated_sooner_than_a_cut_is_found_is_not_cut(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planted(checked.made, RIGHT["scale in the queries"], 2)
    monkeypatch.setattr(cuts, "LIFTING", 1.0)
    monkeypatch.setattr(cuts, "lift", lambda *_, **__: pytest.fail("it was cut"))
    regions = RegionalCheck(checked.made.model, checked.cases)
    differences = regions.differences(ClaimedModel(found.model, CPU, found.claims, {}))
    assert differences
    assert all(each.passed for each in differences)


def test_an_output_that_jumps_has_no_resolution() -> None:
    """A rounding moves a sum by about one, and a choice between two numbers by their distance."""
    x = variable("x", Tensor("float32", (64,)))
    near = term("add", x, constant(np.float32(1.0)))
    far = term(
        "where", term("less", near, constant(np.float32(2.0))), near, term("mul", near, constant(np.float32(9.0)))
    )
    model = standalone(Graph((x,), (near, far)), {"": 20})
    inputs = {"x": np.ones(64, np.float32)}
    outputs = open_in_child(model, CPU).run(inputs)
    smooth, jump = Perturbed(model, CPU)(inputs, outputs)
    assert 1e-7 < smooth < 1e-6
    assert jump == 0.0


def repeated(op: str, count: int) -> Model:
    """A product, and operators of which each second one is needless."""
    x, w = variable("x", Tensor("float32", (4, 64))), weight("w", Tensor("float32", (64, 64)))
    y = term("matmul", x, w)
    for _ in range(count):
        y = term("tanh", term("neg", term(op, term(op, y))))
    values = {"w": StoredWeight(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))}
    return from_ir(to_ir(standalone(Graph((x,), (y,)), {"": 20}, values)))


def test_a_model_without_a_float64_reference_is_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note says how it was checked, and the wrong rule is named and left out."""
    monkeypatch.setattr(problem, "LONGEST", 0.0)
    wrong = parse_equation("tanh(neg(x)) == tanh(x)", name="wrong.0", evidence="taken on trust")
    good = parse_equation("relu(relu(x)) == relu(x)", name="good.0")
    alone = optimize_model(repeated("relu", 3), Config(measure=False, budget=5, rules=RuleSet((good,))))
    assert alone.changed
    assert alone.failure is None
    assert any("no float64 reference of the whole model" in note for note in alone.notes)
    assert {d.against for d in alone.differences if not d.region} == {"the original"}
    assert "float64" in {d.against for d in alone.differences if d.region}
    both = optimize_model(repeated("relu", 3), Config(measure=False, budget=5, rules=RuleSet((good, wrong))))
    assert both.changed
    assert "'wrong.0'" in str(both.failure)


def test_a_table_that_is_computed_on_the_way_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of angles is written as equal halves and folded again: neither model has a half."""
    monkeypatch.setattr(problem, "LONGEST", 0.0)
    tensor = Tensor("float32", (1, 4, 8))
    x, w = variable("x", Tensor("float32", (2, 4, 8))), weight("w", tensor)
    y = term("tanh", term("relu", term("relu", term("mul", x, w))))
    half = np.random.default_rng(0).normal(size=(1, 4, 4)).astype(np.float32)
    values = {"w": StoredWeight(np.concatenate([half, half], axis=-1))}
    model = from_ir(to_ir(standalone(Graph((x,), (y,)), {"": 20}, values)))
    found = optimize_model(model, Config(measure=False, budget=5))
    assert found.changed
    assert {d.against for d in found.differences if d.region} >= {"float64"}
    assert all(d.passed for d in found.differences)


def test_there_are_many_mutants() -> None:
    assert len(MUTANTS) >= 50
