"""Certificates: what `optimize_model` writes is followed from one model to the other, and nothing
that was tampered with is accepted."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commandline import run
from onnx import ModelProto

from taso_mirage.checker.operators import OPS
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable, weight, with_args
from taso_mirage.onnx_io import load, save
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import CHECK, certificate
from taso_mirage.report.follow import AGAIN, CHECKED, CaseJudge, Followed, follow
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config
from taso_mirage.search.rulesets import rules

MODEL = Path(__file__).parent.parent / "models" / "mini_transformer.onnx"
SIZES = {"g": (8,), "m": (8, 8)}
"""Of two weights."""
Case = tuple[Model, Model, dict[str, Any]]


def made(path: Path, folder: Path, **options: Any) -> Case:
    """A model, what it becomes, and the certificate. On a busy machine it is tried again with more
    time."""
    original = load(path)
    config = Config(**{"measure": False, "budget": 5, "cache": folder / "costs.sqlite", **options})
    results = (optimize_model(original, replace(config, budget=n * config.budget)) for n in (1, 10))
    return certified(original, next(each for each in results if each.changed), folder)


def certified(original: Model, result: Result, folder: Path) -> Case:
    """A model, what it becomes, read back from its file, and the certificate as JSON."""
    save(result.model, folder / "optimized.onnx")
    mutants = (m.equation for m in result.mutations.by_name.values())
    found = certificate(result, {e.name: e for e in (*rules(), *mutants)}, Proofs())
    return original, load(folder / "optimized.onnx"), json.loads(json.dumps(found))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(MODEL, tmp_path_factory.mktemp("certificate"))


def followed(case: Case, strict: bool = False) -> Followed:
    return follow(*case, CaseJudge(strict))


def test_a_certificate_leads_from_one_model_to_the_other(case: Case) -> None:
    found = followed(case)
    assert found.places > 20
    assert found.computed > 5
    assert set(found.equalities) <= {CHECKED, AGAIN}
    assert found.equalities[CHECKED] == found.equalities.total()
    assert not found.alone
    assert not any(e["proof"] == CHECK for e in case[2]["equalities"])


def test_what_rests_on_the_prover_alone_is_named(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OPS, "softmax")
    found = followed(case)
    assert found.equalities[AGAIN] >= len(found.alone) > 0
    assert set(found.alone.values()) == {"softmax is not read by this checker"}
    assert all(name in {" and ".join(e["equations"]) for e in case[2]["equalities"]} for name in found.alone)


def test_saturation_has_certificates_too(layer: Path, tmp_path: Path) -> None:
    assert set(followed(made(layer, tmp_path, strategy="saturate")).equalities) <= {CHECKED, AGAIN}


@pytest.mark.parametrize("opset", [11, 17, 23])
def test_a_certificate_leads_through_what_is_written_for_an_operator(tmp_path: Path, opset: int) -> None:
    """Before opset 20 a Gelu is five nodes in the file, before opset 23 such a norm is six."""
    folder = tmp_path / "original"
    folder.mkdir()
    x, g, m = variable("x", Tensor("float32", (2, 3, 8))), *(weight(n, Tensor("float32", s)) for n, s in SIZES.items())
    square = term("reduce_mean", term("pow", x, constant(2.0, "float32")), axes=(2,))
    deviation = term("sqrt", term("add", square, constant(1e-3, "float32")))
    product = term("matmul", term("mul", term("div", x, deviation), g), m)
    root = constant(math.sqrt(2), "float32")
    tail = term("add", term("erf", term("div", product, root)), constant(1.0, "float32"))
    gelu = term("mul", term("mul", product, tail), constant(0.5, "float32"))
    rng = np.random.default_rng(0)
    weights = {n: StoredWeight(rng.normal(size=s).astype(np.float32)) for n, s in SIZES.items()}
    save(standalone(Graph((x,), (gelu,)), {"": opset}, weights), folder / "model.onnx")
    case = made(folder / "model.onnx", tmp_path, portable=True)
    names = {n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert ("Gelu" in names, "RMSNormalization" in names) == (opset >= 20, opset >= 23)
    assert set(followed(case).equalities) <= {CHECKED, AGAIN}


LARGE = (
    *("light_vgg19", "light_zfnet512", "light_alexnet"),
    *("light_resnet50", "light_inception_v2", "light_densenet121"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_model_has_a_certificate(name: str, tmp_path: Path, small: Callable[..., ModelProto]) -> None:
    """tests/test_architectures.py follows those of all others."""
    (tmp_path / "model.onnx").write_bytes(small(name).SerializeToString())
    found = followed(made(tmp_path / "model.onnx", tmp_path, budget=10))
    assert set(found.equalities) <= {CHECKED, AGAIN}


# ---------------------------------------------------------------- tampering


def test_another_result_is_refused(case: Case) -> None:
    original, optimized, text = case
    for changed in _changed(optimized):
        with pytest.raises(CheckFailed, match="does not lead to the output"):
            follow(original, changed, text, CaseJudge())


def _changed(model: Model) -> Iterator[Model]:
    (first, *others), weights = model.graph.outputs, dict(model.weights)
    yield model.with_graph((term("neg", term("abs", first)), *others))
    name = max((n for n in weights if weights[n].numpy().dtype == np.float32), key=lambda n: weights[n].numpy().size)
    array = weights[name].numpy().copy()
    array.flat[0] += 1e-3
    yield replace(model, weights={**weights, name: StoredWeight(array)})
    product = (
        next(n for n in model.nodes() if n.op == "matmul" and n.args[0].type == n.args[1].type)
        if any(n.op == "matmul" and n.args[0].type == n.args[1].type for n in model.nodes())
        else None
    )
    if product is not None:
        yield model.with_graph(_with(model.graph.outputs, product, with_args(product, product.args[::-1])))


def _with(outputs: tuple[Node, ...], old: Node, new: Node) -> tuple[Node, ...]:
    from taso_mirage.ir.terms import substitute

    return substitute(outputs, {old: new})


def tampered(text: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The certificate with one thing changed."""
    found = copy.deepcopy(text)
    equality = rng.choice(found["equalities"])
    record = rng.choice(found["records"])
    kind = rng.randrange(7)
    side = rng.choice(("lhs", "rhs"))
    if kind == 0:  # a number of a side, and of its case
        numbers = list(re.finditer(r"(?<![\w.])\d+(?:\.\d+)?", equality[side]))
        if numbers:
            at = rng.choice(numbers)
            equality[side] = equality[side][: at.start()] + str(rng.randint(0, 9)) + equality[side][at.end() :]
            equality.pop("case", None)
    elif kind == 1:  # operators exchanged
        for a, b in (("add(", "mul("), ("sigmoid(", "relu("), ("matmul(", "add("), ("concat(", "add(")):
            if a in equality[side]:
                equality[side] = equality[side].replace(a, b, 1)
                equality.pop("case", None)
                break
    elif kind == 2:
        found["records"].remove(record)
    elif kind == 3 and record[0] == "equal":
        name = rng.choice(list(record[2]))
        record[2][name] = rng.randrange(400)
    elif kind == 4 and "case" in equality and equality["case"]["sizes"]:
        equality["case"]["sizes"][rng.choice(list(equality["case"]["sizes"]))] = "3"
    elif kind == 5:
        record[1] = rng.randrange(300)
    else:
        equality["lhs"], equality["rhs"] = equality["lhs"], equality["lhs"].replace("def lhs", "def rhs")
        equality.pop("case", None)
    return found


def check_tampering(case: Case, count: int, seed: int) -> tuple[int, int]:
    """How many were refused, and how many were accepted.

    What is accepted is a proof too: every equality in it was checked.
    """
    rng, refused, accepted = random.Random(seed), 0, 0
    original, optimized, text = case
    known: dict[tuple[str, str, str], str | CheckFailed] = {}

    def judge(kind: str, lhs: str, rhs: str) -> str:
        key = (kind, lhs, rhs)
        if key not in known:
            try:
                known[key] = CaseJudge()(kind, lhs, rhs)
            except CheckFailed as error:
                known[key] = error
        found = known[key]
        if isinstance(found, CheckFailed):
            raise found
        return found

    for _ in range(count):
        wrong = tampered(text, rng)
        try:
            follow(original, optimized, wrong, judge)
            accepted += 1
        except CheckFailed:
            refused += 1
    return refused, accepted


@pytest.mark.parametrize("count", [25, pytest.param(60, marks=pytest.mark.slow)])
def test_tampered_certificates_are_refused(case: Case, count: int) -> None:
    refused, accepted = check_tampering(case, count, 0)
    assert refused + accepted == count
    assert (
        refused > 0.6 * count
    )  # a record less may still be enough, and a number changed on both sides a true equality


def test_a_tampered_certificate_never_leads_to_another_model(case: Case) -> None:
    original, optimized, text = case
    rng = random.Random(1)
    wrong = next(_changed(optimized))
    for _ in range(30):
        with pytest.raises(CheckFailed):
            follow(original, wrong, tampered(text, rng), lambda kind, lhs, rhs: "not asked")


@pytest.mark.slow
def test_two_thousand_tampered_certificates(case: Case) -> None:
    refused, accepted = check_tampering(case, 2000, 2)
    assert refused > 1200
    assert refused + accepted == 2000


# ---------------------------------------------------------------- the command line


def test_the_commands(layer: Path, tmp_path: Path) -> None:
    output, steps = tmp_path / "faster.onnx", tmp_path / "steps.json"
    options = ["--no-measure", "--budget", "5", "-o", str(output), "--certificate", str(steps)]
    run("optimize", layer, *options)
    good = run("verify", layer, output, steps)
    assert "the certificate leads from" in good.stdout
    original = load(layer)
    save(next(_changed(original)), tmp_path / "other.onnx")
    other = run("verify", layer, tmp_path / "other.onnx", steps, check=5)
    assert "does not lead to the output" in other.stderr
    steps.write_text("[]")
    run("verify", layer, output, steps, check=5)
    run("verify", layer, output, tmp_path / "none.json", check=2)
