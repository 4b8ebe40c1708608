"""Hostile changes by others while a run goes on, or before: files that are replaced between a check
and its use, records and verdicts in a cache, checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commandline import one_line, run
from mutated import halved, side_by_side
from onnx import helper, numpy_helper

from taso_mirage.errors import InvalidOption, OutputError, RuntimeUnavailable, SyntaxProblem, TasoMirageError
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.measure.cost_cache import cache_path, proofs_path
from taso_mirage.mugraph import verification
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.onnx_io import load, save
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse.choices import KernelRecords
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.regions.kernel_regions import KernelRegion
from taso_mirage.regions.survey import _from_data
from taso_mirage.search.mutations import MutationStore
from taso_mirage.search.partial.source import mutation, programs
from taso_mirage.system import builds
from taso_mirage.system.files import write_file
from taso_mirage.system.store import Store
from taso_mirage.verdicts import Evidence

OWN, SECRET = np.arange(4, dtype=np.float32), np.arange(7, 11, dtype=np.float32)
MINI = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"


# ---------------------------------------------------------------- files that are replaced meanwhile


def folder_of(place: Path, location: str) -> Path:
    """A folder with a model whose weight lies in a file, beside another one with a secret."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    for name, array in (("in", OWN), ("hidden", SECRET)):
        (place / name / location).parent.mkdir(parents=True)
        (place / name / location).write_bytes(array.tobytes())
    (place / "in" / "m.onnx").write_bytes(content.SerializeToString())
    return place / "in"


def put_link(path: Path, to: Path) -> None:
    """A link in the place of a file."""
    path.rename(path.with_name("away"))
    path.symlink_to(to)


Replaced = Callable[[Path], None]
REPLACED: Mapping[str, tuple[str, Replaced]] = {
    "the weights": ("w.bin", lambda here: put_link(here / "in/w.bin", here / "hidden/w.bin")),
    "their folder": ("sub/w.bin", lambda here: put_link(here / "in/sub", here / "hidden/sub")),
    "the model's folder": ("w.bin", lambda here: put_link(here / "in", here / "hidden")),
    "what the model links to": ("w.bin", lambda here: put_link(here / "in/store", here / "hidden")),
}
LOOKING = ("open", "stat", "lstat", "fstat", "readlink")


def in_between(patch: pytest.MonkeyPatch, at: int, done: Callable[[], None]) -> list[int]:
    """Do something before the call of this number that looks at a file; gives how many there
    were."""
    count = [0]

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*args: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == at:
                done()
            return call(*args, **named)

        return watching

    for name in LOOKING:
        patch.setattr(os, name, watched(getattr(os, name)))
    return count


def read(path: Path) -> Any:
    """The weight of a model, as it is used."""
    (found,) = load(path).weights.values()
    return np.array(found.numpy())


@pytest.mark.parametrize("what", REPLACED)
def test_what_is_replaced_at_any_moment_is_not_read(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every single look at a file, from the first to the use of the weights."""
    location, replaced = REPLACED[what]
    at, there, kept = 0, 0, 0
    while at <= there:
        place = tmp_path / str(at)
        model = folder_of(place, location) / "m.onnx"
        if what == "what the model links to":
            (place / "in/store").mkdir()
            for name in ("m.onnx", "w.bin"):
                (place / "in" / name).rename(place / "in/store" / name)
                (place / "in" / name).symlink_to(f"store/{name}")
        with monkeypatch.context() as patch:
            count = in_between(patch, at, lambda here=place: replaced(here))  # type: ignore[misc]
            with suppress(TasoMirageError):
                found = read(model)
                assert not np.array_equal(found, SECRET), at
                kept += np.array_equal(found, OWN)
        there = max(there, count[0])
        at += 1
    assert there > 5
    assert kept


@pytest.mark.parametrize("size", [4, 1 << 19])
def test_weights_are_those_that_were_there_when_the_model_was_read(size: int, tmp_path: Path) -> None:
    """In memory where the file is small, else mapped; and the written model has them."""
    proto = onnx.load(MINI)
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(size, dtype=np.float32), "more"))
    proto.graph.node.append(helper.make_node("Identity", ["more"], ["kept"]))
    proto.graph.output.append(helper.make_tensor_value_info("kept", onnx.TensorProto.FLOAT, [size]))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    model = load(tmp_path / "m.onnx")
    (tmp_path / "w.bin").unlink()
    (tmp_path / "secret").write_bytes(bytes(1 << 24))
    (tmp_path / "w.bin").symlink_to("secret")
    np.testing.assert_array_equal(model.weights["more"].numpy(), np.arange(size, dtype=np.float32))
    (tmp_path / "out").mkdir()
    save(model, tmp_path / "out" / "m.onnx")
    for each in onnx.load(tmp_path / "out" / "m.onnx").graph.initializer:
        if each.name == "more":
            np.testing.assert_array_equal(numpy_helper.to_array(each), np.arange(size, dtype=np.float32))


def test_a_model_that_becomes_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(MINI, tmp_path / "m.onnx")

    def pipe() -> None:
        (tmp_path / "m.onnx").unlink()
        os.mkfifo(tmp_path / "m.onnx")

    for at in range(1, 8):
        with monkeypatch.context() as patch:
            in_between(patch, at, pipe)
            with suppress(TasoMirageError):
                load(tmp_path / "m.onnx")
        (tmp_path / "m.onnx").unlink()
        shutil.copy(MINI, tmp_path / "m.onnx")


def test_an_output_that_becomes_a_link_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link's target stays, whenever the link is put there."""
    (tmp_path / "precious").write_text("precious")
    model = load(MINI)
    for write in (lambda path: write_file(path, "written"), lambda path: save(model, path)):
        for at in range(1, 30):
            path = tmp_path / f"{at}"

            def link(path: Path = path) -> None:
                path.unlink(missing_ok=True)
                path.symlink_to("precious")

            with monkeypatch.context() as patch:
                in_between(patch, at, link)
                with suppress(OutputError):
                    write(path)
            assert (tmp_path / "precious").read_text() == "precious"
            path.unlink(missing_ok=True)


# ---------------------------------------------------------------- caches


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that everybody can write to."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("TASO_MIRAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def relu_of_sum(*shape: Any) -> Graph:
    x = variable("i0", Tensor("float32", shape))
    return Graph((x,), (term("relu", term("add", x, x)),))


def relu(*shape: Any) -> Graph:
    x = variable("i0", Tensor("float32", shape))
    return Graph((x,), (term("relu", x),))


@pytest.mark.parametrize("free", [None, FreeSizes(((symbol("n0"), 4),), ((symbol("n0"), 4),))])
def test_a_planted_record_is_compared_with_its_goal(cache: Path, free: FreeSizes | None) -> None:
    """Records of this user are trusted; others are once found to be right."""
    goal, choices = relu_of_sum(8, 4), KernelRecords("cpu", "here")
    rows = 8 if free is None else symbol("n0")
    right, wrong = ({"mugraph": to_json(make(rows, 4))} for make in (relu_of_sum, relu))
    file = choices._path(goal, free, ())
    for each, believed in (
        (right, True),
        (wrong, False),
        (right | {"before": [wrong | {"most": 2}]}, False),
        (right | {"before": [right | {"most": 2}]}, True),
        ({}, False),
        ({"mugraph": to_json(relu_of_sum(8, 5))}, False),
        ({"mugraph": [1]}, False),
    ):
        write_file(file, json.dumps(each))
        assert choices.record(goal, free, ()) == (each if believed else None)
    choices.keep(right, goal, free, ())
    assert choices.record(goal, free, ()) == right
    write_file(file, json.dumps(wrong))
    assert choices.record(goal, free, ()) is None


def test_a_planted_record_that_overflows_is_no_choice(cache: Path) -> None:
    """Equal in exact arithmetic."""
    x = variable("i0", Tensor("float32", (8, 4)))
    powers = term("exp", x)
    unsafe = Graph((x,), (term("div", powers, term("reduce_sum", powers, axes=(1,), keepdims=True)),))
    goal, choices = Graph((x,), (term("softmax", x, axis=1),)), KernelRecords("cpu", "here")
    write_file(choices._path(goal, None, ()), json.dumps({"mugraph": to_json(unsafe)}))
    assert choices.record(goal, None, ()) is None


def test_what_this_user_found_is_not_verified_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goal, choices = relu_of_sum(8, 4), KernelRecords("cpu", "here")
    choices.keep({"mugraph": to_json(goal)}, goal, None, ())
    monkeypatch.setattr("taso_mirage.pipeline.fuse.choices._computes", lambda *_: False)
    assert choices.record(goal, None, ()) is not None
    shutil.rmtree(cache / "receipts")
    assert choices.record(goal, None, ()) is None


def test_a_planted_mutant_is_verified(cache: Path) -> None:
    """One of a right form, whose name has the digest of both programs, whatever it says of its
    evidence."""
    (program,) = programs(side_by_side().graph.outputs)
    store, made = MutationStore(cache / "mutants", "here"), halved(program)
    store.write(program, made)
    (file,) = (cache / "mutants").glob("*.json")
    value, (first, *_) = json.loads(file.read_text()), made.mutations
    (output,) = first.corrected.outputs
    wrong = Graph(first.corrected.inputs, (term("add", output, output),))
    named = mutation(program, wrong, first.families, "", first.right, first.region, first.seconds).equation.name
    value["mutations"] = [value["mutations"][0] | {"corrected": to_json(wrong), "name": named, "evidence": "library"}]
    file.write_text(json.dumps(value))
    assert store.read(program) is None
    value["mutations"][0] |= {"corrected": to_json(first.corrected), "name": first.equation.name, "evidence": "planted"}
    file.write_text(json.dumps(value))
    again = store.read(program)
    assert again is not None
    assert "field trials" in again.mutations[0].equation.evidence


def false_instance() -> Instance:
    """relu(x) == x."""
    x = variable("x", Tensor("float32", (3,)))
    return Instance((term("relu", x),), (x,))


def test_planted_verdicts_are_not_read(cache: Path, tmp_path: Path) -> None:
    """Beside the measured costs anybody may write; verdicts are in a folder of this user's own."""
    with closing(Proofs(tmp_path / "made.sqlite")) as proofs:
        assert not proofs.judge(false_instance())
    with closing(sqlite3.connect(tmp_path / "made.sqlite")) as database, database:
        assert database.execute("UPDATE verdict SET proved = 1").rowcount > 0
    with closing(Proofs(tmp_path / "made.sqlite")) as proofs:
        assert proofs.judge(false_instance())  # so a planted verdict would be believed
    shutil.copy(tmp_path / "made.sqlite", cache / "proofs.sqlite")
    path = proofs_path()
    assert path is not None
    assert path.parent.stat().st_mode & 0o022 == 0
    with closing(Proofs(path)) as proofs:
        assert not proofs.judge(false_instance())


def test_where_no_folder_is_ones_own_nothing_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All folders of its names belong to others: verdicts and receipts stay in memory."""
    for name in ("proofs", "receipts"):
        for each in (name, f"{name}-{os.getuid() + 4711}"):
            (cache / each).mkdir()
    monkeypatch.setattr(builds.os, "getuid", lambda: os.stat(cache).st_uid + 4711)
    assert proofs_path() is None
    with closing(Proofs(None)) as proofs:
        assert not proofs.judge(false_instance())
    goal, choices = relu_of_sum(8, 4), KernelRecords("cpu", "here")
    choices.keep({"mugraph": to_json(goal)}, goal, None, ())
    assert choices.record(goal, None, ()) is not None
    with pytest.raises(RuntimeUnavailable):
        builds.private_folder("receipts")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make links of another user")
def test_a_link_of_another_users_is_no_database(cache: Path, tmp_path: Path) -> None:
    """The link would lead to one of this user's databases, in which a table would be made."""
    with closing(sqlite3.connect(tmp_path / "mine.sqlite")) as database, database:
        database.execute("CREATE TABLE mine (x TEXT)")
    before = (tmp_path / "mine.sqlite").read_bytes()
    cache_path().symlink_to(tmp_path / "mine.sqlite")
    os.lchown(cache_path(), 4711, 4711)
    with closing(Store(cache_path(), "cost", ("target TEXT", "seconds REAL"), 1)) as store:
        store.put("cpu", 1.0)
        assert store.count() == 0
    assert (tmp_path / "mine.sqlite").read_bytes() == before


# ---------------------------------------------------------------- checkpoints


def surveyed(goal: Graph) -> tuple[KernelRegion, dict[str, Any]]:
    """A region, and its row of a checkpoint."""
    evidence = verification.verified_mugraph(goal, goal)
    assert isinstance(evidence, Evidence)
    row = {"mugraph": to_json(goal), "device": "H100", "seconds": {"fused": 1e-6, "apart": 1e-5}}
    return KernelRegion(goal, (), 0, 0, 0), row | {
        "search": {"seconds": 1.0},
        "evidence": verification.tests_json(evidence),
    }


def changed_rows(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**row, "mugraph": to_json(relu(8, 4))}
    yield {**row, "mugraph": to_json(relu(4, 8))}
    yield {**row, "mugraph": None}


def test_a_checkpoint_vouches_for_no_mugraph() -> None:
    """A checkpoint neither proves another muGraph, nor tests that nobody made."""
    region, row = surveyed(relu_of_sum(8, 4))
    said = {**row["evidence"], "tests": 10**9, "bound": 0.0}
    found = _from_data(region, {**row, "evidence": said}).found
    assert found is not None
    assert found.evidence.tests < 100
    for each in changed_rows({**row, "evidence": said}):
        with pytest.raises(SyntaxProblem):
            _from_data(region, each)


def test_a_checkpoint_of_a_search_vouches_for_no_mugraph() -> None:
    goal = relu_of_sum(8, 4)
    evidence = verification.verified_mugraph(goal, goal)
    assert isinstance(evidence, Evidence)
    kept = FoundMuGraph(goal, goal, 1e-6, "H100", evidence).as_json()
    assert FoundMuGraph.of_json(kept, goal).graph == goal
    with pytest.raises(InvalidOption, match="does not compute the goal"):
        FoundMuGraph.of_json({**kept, "graph": to_json(relu(8, 4))}, goal)


@pytest.mark.sampled(3)
def test_a_changed_checkpoint_is_refused_by_the_command(tmp_path: Path) -> None:
    shutil.copy(MINI, tmp_path / "m.onnx")
    command = ("kernels", tmp_path / "m.onnx", "--budget", "8", "--checkpoint", tmp_path / "c.json")
    run(*command)
    kept = json.loads((tmp_path / "c.json").read_text())
    row = next(row for row in kept["regions"] if row["mugraph"] is not None)
    program = row["goal"]["program"]
    row["mugraph"] = {**row["goal"], "program": [*program[:-1], program[-1].replace("return ", "return neg(") + ")"]}
    (tmp_path / "c.json").write_text(json.dumps(kept))
    done = run(*command, check=2)
    assert "computes something else" in one_line(done) or "differs from the goal's" in one_line(done)
