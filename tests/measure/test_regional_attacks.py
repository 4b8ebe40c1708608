"""The check of regions against wrong rewrites that hide: behind an equal region on which they are
right, and behind the end of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from deep_mutants import Change, Sizes, Transformer, right_ones

from taso_mirage.errors import OutOfTime
from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.measure import regional
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.compared import ClaimedModel
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.regional import RegionalCheck
from taso_mirage.measure.session import open_in_child
from taso_mirage.measure.target import CPU
from taso_mirage.measure.whole import cases_by_runs
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.search.steps import RewriteStep, claimed, replay

SIZES = Sizes(layers=3)


@pytest.fixture(autouse=True, params=[False, True], ids=["alone", "together"])
def _in_few_sessions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches run each in a session, and many in one."""
    monkeypatch.setattr(regional, "opens_slowly", lambda target: request.param)


def without_bias(f: Transformer, i: int, t: dict[str, Node]) -> tuple[Node, Node]:
    """The output product of a layer, its bias left out."""
    return t["out"], t["out"].args[0]


def at_layers(made: Transformer, change: Change, layers: Sequence[int]) -> ClaimedModel:
    """A model with one wrong rewrite in several layers, of which the deepest is first."""
    outputs = made.model.graph.outputs
    steps = [
        RewriteStep(("planted",), (old,), (new,)) for old, new in (change(made, i, made.layers[i]) for i in layers)
    ]
    model = made.model.with_graph(replay(outputs, steps), made.weights)
    return ClaimedModel(model, CPU, claimed(outputs, steps), {})


def cases_of(made: Transformer) -> list[CheckCase]:
    return list(cases_by_runs(made.model, open_in_child(made.model, CPU), {}))


def test_a_region_of_special_weights_vouches_for_no_other() -> None:
    """A bias that is zero in one layer of equal ones may be left out there, and in no other."""
    made = Transformer(SIZES)
    for i in (0, 1):
        name = f"bo.{i}"
        made.weights[name] = StoredWeight(np.zeros_like(made.weights[name].array))
    made.model = made.model.with_graph(made.model.graph.outputs, made.weights)
    check = RegionalCheck(made.model, cases_of(made)[:1])
    assert all(each.passed for each in check.differences(at_layers(made, without_bias, [1, 0])))
    found = check.differences(at_layers(made, without_bias, [2, 1, 0]))
    assert any(not each.passed for each in found)


def with_weight(made: Transformer, name: str, array: np.ndarray) -> None:
    """Replace a weight of the model."""
    made.weights[name] = StoredWeight(np.ascontiguousarray(array, np.float32))
    made.model = made.model.with_graph(made.model.graph.outputs, made.weights)


def identity(made: Transformer) -> Change:
    """A product with an identity matrix is left out."""
    with_weight(made, "wo.0", np.eye(made.sizes.width))
    return lambda f, i, t: (t["out"].args[0], t["joined"])


def symmetric(made: Transformer) -> Change:
    """A weight is transposed that is its own transpose."""
    array = made.weights["wo.0"].array
    with_weight(made, "wo.0", array + array.T)
    return lambda f, i, t: (
        t["out"].args[0],
        term("matmul", t["joined"], term("transpose", t["wo"], perm=(1, 0))),
    )


def equal_ones(made: Transformer) -> Change:
    """One of two equal biases is taken for both."""
    with_weight(made, "bk.0", made.weights["bq.0"].array)
    return lambda f, i, t: (t["k.sum"], term("add", t["k.product"], t["bq"]))


def computed(made: Transformer) -> Change:
    """A new bias is right in the first layer, and a number of it off in the others."""

    def bias(f: Transformer, i: int, t: dict[str, Node]) -> tuple[Node, Node]:
        array = f.weights[f"b1.{i}"].array.copy()
        array[-1] *= 1.0 if i == 0 else 1.001
        return t["wide"], term("add", t["wide"].args[0], f.weight(f"new.{i}", array))

    return bias


@pytest.mark.parametrize("special", [identity, symmetric, equal_ones, computed])
def test_a_layer_vouches_for_no_other_weights(special: Callable[[Transformer], Change]) -> None:
    """A change that is right for the weights of the compared layer may be wrong for those of its
    equals."""
    made = Transformer(SIZES)
    change = special(made)
    check = RegionalCheck(made.model, cases_of(made)[:1])
    assert all(each.passed for each in check.differences(at_layers(made, change, [0])))
    found = check.differences(at_layers(made, change, [2, 1, 0]))
    assert any(not each.passed for each in found)
    assert not all(each.passed for each in check.differences(at_layers(made, change, [1])))
    assert all(each.passed for each in check.differences(at_layers(made, change, [0])))


def test_equal_layers_have_one_float64_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other layers are near the original's values, each with its own weights."""
    made, evaluated = Transformer(SIZES), list[int]()
    given = FloatReference.__call__

    def counted(self: FloatReference, *args: object) -> object:
        evaluated.append(1)
        return given(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(FloatReference, "__call__", counted)
    check = RegionalCheck(made.model, cases_of(made)[:1])
    found = check.differences(at_layers(made, right_ones()["scale in a weight"], [2, 1, 0]))
    assert found
    assert all(each.passed for each in found)
    assert len(evaluated) == 1


def test_regions_are_compared_at_both_values_of_a_flag() -> None:
    """A branch that the first draws do not take is wrong in a region all the same."""
    x, flag = variable("x", Tensor("float32", (4, 8))), variable("flag", Tensor("bool", ()))
    branch = term("where", flag, term("tanh", x), term("neg", x))
    outputs = (term("sigmoid", branch),)
    model = standalone(Graph((x, flag), outputs), {"": 20})
    cases = list(cases_by_runs(model, open_in_child(model, CPU), {}))
    steps = [
        RewriteStep(("planted",), (branch,), (term("neg", x),)),
        RewriteStep(("planted",), (branch,), (term("tanh", x),)),
    ]
    for step in steps:
        changed = ClaimedModel(model.with_graph(replay(outputs, [step])), CPU, claimed(outputs, [step]), {})
        assert not all(each.passed for each in RegionalCheck(model, cases).differences(changed))


def test_what_failed_before_the_end_of_the_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region that is wrong on the first inputs is wrong, though there was no time for others."""
    made = Transformer(SIZES)
    check = RegionalCheck(made.model, cases_of(made))
    assert len(check.cases) > 1
    given = RegionalCheck._on

    def ending(self: RegionalCheck, patch: object, compared: object, run: int):  # type: ignore[no-untyped-def]
        if run:
            raise OutOfTime("the time is over")
        return given(self, patch, compared, run)  # type: ignore[arg-type]

    monkeypatch.setattr(regional.RegionalCheck, "_on", ending)
    found = check.differences(at_layers(made, without_bias, [2]))
    assert any(not each.passed for each in found)
    assert list(check.alone) == ["there was no time"]
