"""Mutants in `optimize_model`: those that pay are taken, corrected, explained, and kept on disk by
their structure."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from mutated import halved, model, side_by_side
from partial_programs import kernel
from scripts import script

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.measure import tasks
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.session import open_in_child
from taso_mirage.measure.target import CPU
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import candidates, optimize_model
from taso_mirage.report.data import result_data
from taso_mirage.report.explanations import as_lines, explained, explanation_data
from taso_mirage.report.html import page
from taso_mirage.report.result import Result
from taso_mirage.report.summary import search_facts
from taso_mirage.search import mutations
from taso_mirage.search.config import Config
from taso_mirage.search.cost import Cost, Weighted
from taso_mirage.search.mutations import MutationStore
from taso_mirage.search.partial import source
from taso_mirage.search.partial.candidates import CorrectedMutant, made_whole
from taso_mirage.search.partial.families import Mutant, mutants_of
from taso_mirage.search.partial.source import programs, tried
from taso_mirage.search.passes import Context
from taso_mirage.verdicts import Failure

CONFIG = Config(measure=False, budget=20.0)


@pytest.fixture
def batches_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Context.estimate

    def estimate(self: Context, node: Node) -> float:
        dear = node.op == "conv" and node.args[0].shape[0] == 2
        return 1.0 if dear else plain(self, node)

    def seams(program: Graph, mutant: Mutant) -> list[CorrectedMutant | Failure]:
        """Without the mutant that puts zeros between the images, which needs no correction."""
        found = made_whole(program, mutant)
        return [c for c in found if isinstance(c, Failure) or not c.agreement.total]

    monkeypatch.setattr(Context, "estimate", estimate)
    monkeypatch.setattr(source, "made_whole", seams)


@pytest.fixture
def result(batches_are_dear: None) -> Result:
    return optimize_model(side_by_side(), CONFIG)


def test_a_corrected_mutant_is_taken_and_explained(result: Result) -> None:
    """PET's example: two images beside each other through one convolution; the seam is
    corrected."""
    taken = [m for name, m in result.mutations.by_name.items() if name in result.equations]
    assert len(taken) == 1
    assert taken[0].right < 1
    assert "#" in taken[0].region
    assert all(d.passed for d in result.differences)
    inputs = random_inputs(result.original, 1, {})
    wanted, got = (open_in_child(m).run(inputs)[0] for m in (result.original, result.model))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    listed = explained(result, CONFIG, lambda stage, done, total: None)
    lines = list(as_lines(listed, result))
    assert any("corrected (#)" in line for line in lines)
    assert any("random field trials" in line for line in lines)
    assert any(taken[0].region == e["right without correction"] for c in explanation_data(listed, result)
               for e in c["equations"] if "right without correction" in e)  # fmt: skip
    assert taken[0].region.splitlines()[0] in page(result, listed, Path("m.onnx"), [], [], {})


def test_what_was_tried_is_reported(result: Result) -> None:
    data = result_data(result, Path("m.onnx"), [])["partial"]
    assert data["programs"] == 1
    assert data["mutants"] == 5
    assert [each["taken"] for each in data["paying"]].count(1) == 1
    assert "mutants" in search_facts(result)


def test_it_can_be_switched_off(batches_are_dear: None) -> None:
    result = optimize_model(side_by_side(), replace(CONFIG, partial=False))
    assert not result.mutations.programs
    assert not any(name.startswith("partial") for name in result.equations)


def test_no_time_no_mutants(batches_are_dear: None) -> None:
    result = optimize_model(side_by_side(), replace(CONFIG, budget=0.0))
    assert result.mutations.late == result.mutations.programs == 1


def test_free_dims_have_no_mutants(batches_are_dear: None) -> None:
    x = variable("x", Tensor("float32", (2, 3, symbol("height"), 7)))
    attributes = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    free = optimize_model(model(x, term("conv", x, kernel(4, 3, 3, 3), **attributes)), CONFIG)
    assert not free.mutations.programs


def test_other_options_measure_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search gives them a deadline; mutants, which come before it, had none."""
    deadlines: list[float] = []

    def seen(outputs: object, cost: object, term: Weighted, *others: object) -> mutations.Mutations:
        deadlines.extend(each.deadline for each in term.measured)
        return mutations.NO_MUTATIONS

    monkeypatch.setattr(candidates, "mutations", seen)
    monkeypatch.setattr(type(CPU), "variants", property(lambda self: (replace(self, options=(("one", "more"),)),)))
    start = time.monotonic()
    optimize_model(side_by_side(), Config(budget=0.5, seconds=0.1))
    assert [start < each < math.inf for each in deadlines] == [True]


def test_a_size_that_only_the_run_shows_is_estimated() -> None:
    """A named one behind an opaque node is none of an input's, and has no value to measure at."""
    x = variable("x", Tensor("float32", (symbol("found"), 4)))
    measured = Cost(Weighted(Context({"": 17}, {}), [({}, 1.0)], CostCache(None)))
    estimated = Cost(Weighted(Context({"": 17}, {}), [({}, 1.0)], None))
    output = (term("matmul", x, weight("w", Tensor("float32", (4, 8)))),)
    assert measured(output) == estimated(output)


def test_what_was_found_is_kept_on_disk(tmp_path: Path) -> None:
    (program,) = programs(side_by_side().graph.outputs)
    store, made = MutationStore(tmp_path / "mutants", "this machine"), halved(program)
    assert store.read(program) is None
    store.write(program, made)
    again = store.read(program)
    assert again is not None
    assert [(m.corrected, m.equation.name, m.region, m.seconds) for m in again.mutations] == [
        (m.corrected, m.equation.name, m.region, m.seconds) for m in made.mutations
    ]
    assert [m.equation.rhs for m in again.mutations] == [m.equation.rhs for m in made.mutations]
    assert MutationStore(tmp_path / "mutants", "another").read(program) is None


def test_where_a_slow_mutant_agrees_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corrections only add to it."""
    (program,) = programs(side_by_side().graph.outputs)
    graphs = [m.graph for m in mutants_of(program)]
    asked: list[Graph] = []

    def seen(program: Graph, mutant: Mutant) -> list[CorrectedMutant | Failure]:
        asked.append(mutant.graph)
        return made_whole(program, mutant)

    monkeypatch.setattr(source, "made_whole", seen)
    cheap = [graphs[1].outputs, source._largest(graphs[1]).outputs]
    made = tried(program, lambda g: 0.5 if g.outputs in cheap else 1.0)
    assert [g.outputs for g in asked] == [graphs[1].outputs]
    assert made is not None
    assert made.mutants == len(graphs) > 1


@pytest.mark.parametrize(
    ("old", "new"), [("{", ""), ('"seconds": [', '"seconds": [7, '), ("ends=(", "ends=(1, "), ("pads=(", "pads=(1, ")]
)
def test_a_damaged_file_is_no_mutation(tmp_path: Path, old: str, new: str) -> None:
    (program,) = programs(side_by_side().graph.outputs)
    store = MutationStore(tmp_path, "here")
    store.write(program, halved(program))
    (file,) = tmp_path.glob("*.json")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert store.read(program) is None


def test_a_changed_program_is_no_mutation(tmp_path: Path) -> None:
    """A file that reads well, but of which the corrected program is another one."""
    (program,) = programs(side_by_side().graph.outputs)
    store = MutationStore(tmp_path, "here")
    store.write(program, halved(program))
    (file,) = tmp_path.glob("*.json")
    value = json.loads(file.read_text())
    first, second, *_ = value["mutations"]
    assert first["corrected"] != second["corrected"]
    first["corrected"] = second["corrected"]
    file.write_text(json.dumps(value))
    assert store.read(program) is None


@pytest.mark.slow
def test_the_benchmark_times_every_mutant_beside_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = script("partial")
    small = {"small": lambda n, dtype: bench.conv((2 * n, 3, 6, 8), (4, 3, 3, 3), dtype)}
    monkeypatch.setattr(bench, "PROGRAMS", small)
    monkeypatch.setattr(bench, "WHOLE", ("small",))
    monkeypatch.setattr(bench, "rounds", lambda session, inputs: 2)
    monkeypatch.setattr(mutations, "EACH", 0.005)
    monkeypatch.setattr(tasks, "SECONDS", 0.002)
    monkeypatch.setattr(
        bench.models, "build", lambda name, small, batch: onnx.load_from_string(serialize(side_by_side()))
    )
    file = tmp_path / "out.json"
    options = ["partial.py", "--batch", "1", "--seconds", "0.1", "--budget", "60", "-o", str(file)]
    monkeypatch.setattr("sys.argv", [*options, "--cache", str(tmp_path / "costs.sqlite")])
    bench.main()
    found = json.loads(file.read_text())
    (part,), (whole,) = found["parts"], found["models"]
    assert part["mutants"] > 2
    assert part["exact"]["right"] == 1 > part["corrected"]["right"] > 0
    assert part["exact"]["verified"]
    assert part["corrected"]["verified"]
    assert whole["programs"] == 1
    assert whole["mutants"] == 5
    assert whole["ratio"] > 0
