"""Random models of the generator are valid, run, and are the same for a seed."""

from __future__ import annotations

import string

import onnx
import pytest
from fuzz.generated.bodies import every
from fuzz.generated.coverage import label
from fuzz.generated.kernels import operators
from fuzz.generated.model import model_of, model_with
from fuzz.generated.motifs import MOTIFS
from fuzz.generated.operators import STEPS
from fuzz.generated.running import feedable, feeds, session

ALL = {**STEPS, **MOTIFS}
OPSETS = (18, 24, 13, 26, 11, 21)


@pytest.mark.parametrize("letters", ["abcd", "efghijkl", "mnopqr", "stuvwxyz"])
def test_every_step_gives_models_that_run(letters: str) -> None:
    for name, step in ALL.items():
        if name[0].lower() in letters:
            made = [model for seed, opset in enumerate(OPSETS) if (model := model_with(step, seed, opset)) is not None]
            assert made, name
            for model in made[:2]:
                onnx.checker.check_model(model)
                running = session(model)
                if feedable(running):
                    running.run(None, next(feeds(running)))


def test_each_step_begins_with_a_letter_of_the_test() -> None:
    assert {name[0].lower() for name in ALL} <= {*string.ascii_lowercase}


def test_a_seed_gives_the_same_model_which_loads() -> None:
    contents = [model_of(seed).SerializeToString() for seed in range(12)]
    assert contents == [model_of(seed).SerializeToString() for seed in range(12)]
    for each in contents:
        session(onnx.load_from_string(each))


@pytest.mark.slow
def test_a_thousand_models_load_and_have_the_operators_of_the_runtime() -> None:
    found, loaded = set[str](), 0
    for seed in range(1000):
        model = model_of(seed)
        found |= {label(node) for node in every(model.graph.node)}
        try:
            session(model)
            loaded += 1
        except Exception:  # counted
            continue
    assert loaded >= 970
    assert len(found & operators()) >= 0.9 * len(operators())
