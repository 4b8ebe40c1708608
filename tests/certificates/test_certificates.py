"""Certificates: those that `optimize_model` writes are followed from one model to the other, and
none that was tampered with is accepted."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from certificate_cases import LARGE, Case, certified, followed
from certified_models import models
from commandline import one_line, run
from onnx import ModelProto, helper, numpy_helper

from taso_mirage import optimize
from taso_mirage.certificates import judge
from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.format import CERTIFICATE_FORMAT, CHECK
from taso_mirage.certificates.judge import AGAIN, CHECKED, FIELD, UNPROVED, CaseJudge
from taso_mirage.checker import Refused, check
from taso_mirage.checker.operators import OPS
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable, weight, with_args
from taso_mirage.onnx_io import load, save
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.rewriting.text import show_graph
from taso_mirage.search.config import Config

MODEL = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"
SIZES = {"g": (8,), "m": (8, 8)}
"""The sizes of two weights."""


def made(path: Path, folder: Path, **options: Any) -> Case:
    """A model, its optimized form, and the certificate. On a busy machine it is tried again with
    more time."""
    original = load(path)
    config = Config(**{"measure": False, "budget": 5, "cache": folder / "costs.sqlite", **options})
    results = (optimize_model(original, replace(config, budget=n * config.budget)) for n in (1, 10))
    return certified(original, next(each for each in results if each.changed), folder)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(MODEL, tmp_path_factory.mktemp("certificate"))


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
    monkeypatch.setattr(judge, "_check", check)  # which remembers no answer
    found = followed(case)
    assert found.equalities[AGAIN] >= len(found.alone) > 0
    assert set(found.alone.values()) == {"softmax is not read by this checker"}
    assert all(name in {" and ".join(e["equations"]) for e in case[2]["equalities"]} for name in found.alone)


def test_the_checker_is_asked_once_for_an_equality(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, check = Counter[tuple[str, str]](), judge.checker.check
    monkeypatch.setattr(judge.checker, "check", lambda lhs, rhs: asked.update([(lhs, rhs)]) or check(lhs, rhs))
    judge._check.cache_clear()
    assert followed(case).equalities.total() > 0
    assert set(asked.values()) == {1}


@pytest.mark.sampled(2)
def test_saturation_has_certificates_too(layer: Path, tmp_path: Path) -> None:
    assert set(followed(made(layer, tmp_path, strategy="saturate")).equalities) <= {CHECKED, AGAIN}


@pytest.mark.sampled(2)
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


QUICK = (
    *("default LeakyRelu", "default Selu", "default HardSigmoid", "default Swish", "opaque Hardmax", "opaque LSTM"),
    *(
        "opaque Hardmax of two sizes",
        "opaque two draws",
        "opaque same Hardmax",
        "body If",
        "body Loop",
        "body Scan",
        "body Scan, with a sum of weights that nothing reads",
        "body Scan over one of several results, with a sum that nothing reads",
        "body a branch inside of a loop",
    ),
    *("body two sequences that become one", "body a loop without a condition that nobody reads"),
    "body a size that is declared for an equal value",
    *("function", "function of another opset", "opset 7", "type half", "a default"),
    *("dims without a name", "hard swish before its operator", "weights that the reader folds"),
)
"""Models of `certified_models` that every run follows."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in models()])
def test_every_kind_of_node_is_followed(name: str, tmp_path: Path) -> None:
    """Facts that a file states and leaves out are read twice, once before the certificate is
    written."""
    original, output, steps = (tmp_path / each for each in ("model.onnx", "faster.onnx", "steps.json"))
    onnx.save(models()[name], original)
    given = {"x": np.array([list("abcd")] * 4, object)} if name == "type strings" else None
    options = {} if given is None else {"inputs": given}
    optimize(original, output=output, certificate=steps, measure=False, budget=1.0, **options)
    assert "the certificate leads from" in run("verify", original, output, steps).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_model_has_a_certificate(name: str, tmp_path: Path, small: Callable[..., ModelProto]) -> None:
    """tests/end_to_end/test_architectures.py follows those of all others."""
    (tmp_path / "model.onnx").write_bytes(small(name).SerializeToString())
    found = followed(made(tmp_path / "model.onnx", tmp_path, budget=10))
    assert set(found.equalities) <= {CHECKED, AGAIN}


# ---------------------------------------------------------------- tampering


@pytest.mark.sampled(2)
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

    An accepted certificate is a proof too: every equality in it was checked.
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


@pytest.mark.parametrize("count", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_tampered_certificates_are_refused(case: Case, count: int) -> None:
    refused, accepted = check_tampering(case, count, 0)
    assert refused + accepted == count
    assert (
        refused > 0.6 * count
    )  # a record less may still be enough, and a number changed on both sides a true equality


@pytest.mark.sampled(3)
def test_a_tampered_certificate_never_leads_to_another_model(case: Case) -> None:
    original, optimized, text = case
    rng = random.Random(1)
    wrong = next(_changed(optimized))
    for _ in range(10):
        with pytest.raises(CheckFailed):
            follow(original, wrong, tampered(text, rng), lambda kind, lhs, rhs: "not asked")


@pytest.mark.slow
def test_two_thousand_tampered_certificates(case: Case) -> None:
    refused, accepted = check_tampering(case, 2000, 2)
    assert refused > 1200
    assert refused + accepted == 2000


# ---------------------------------------------------------------- the border


def bordered() -> ModelProto:
    """A model with all that a border can have."""
    made = models()["a default"]
    made.graph.input.extend([copy.deepcopy(made.graph.input[0]), *models()["type a sequence is given"].graph.input[:1]])
    made.graph.input[2].name, made.graph.input[3].name = "u", "q"
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    made.graph.node.add(op_type="Relu", input=["u"], output=["v"])
    made.graph.output.append(copy.deepcopy(made.graph.input[2]))
    made.graph.output[1].name = "v"
    made.metadata_props.add(key="labels", value="cat,dog")
    made.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "scale"))
    note = made.graph.quantization_annotation.add(tensor_name="x")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    return made


def _tensor(model: ModelProto, name: str) -> onnx.TensorProto:
    return next(t for t in model.graph.initializer if t.name == name)


def _first_dim(model: ModelProto) -> Any:
    return model.graph.input[0].type.tensor_type.shape.dim[0]


def _store(model: ModelProto, name: str, array: np.ndarray) -> None:
    _tensor(model, name).CopyFrom(numpy_helper.from_array(array, name))


BORDERS: dict[str, tuple[Callable[[ModelProto], Any], str]] = {
    "another default": (lambda m: _store(m, "w", np.ones((4, 4), np.float32)), "of the input 'w' the default"),
    "another sign of zero": (lambda m: _store(m, "scale", np.float32(-0.5)), "of the input 'x' the quantization"),
    "no default": (lambda m: m.graph.initializer.remove(_tensor(m, "w")), "of the input 'w' the default"),
    "a new default": (
        lambda m: m.graph.initializer.append(numpy_helper.from_array(np.ones((2, 4), np.float32), "u")),
        "of the input 'u' the default",
    ),
    "an input gone": (lambda m: m.graph.input.pop(), "input 4 is 'q' in the original and missing"),
    "an input more": (
        lambda m: m.graph.input.add(name="k").CopyFrom(helper.make_tensor_value_info("k", 1, [1])),
        "input 5 is missing in the original and 'k'",
    ),
    "a sequence of another type": (
        lambda m: setattr(m.graph.input[3].type.sequence_type.elem_type.tensor_type, "elem_type", 11),
        "of the input 'q' the type",
    ),
    "the outputs exchanged": (
        lambda m: m.graph.output.extend([m.graph.output.pop(0)]),
        "output 1 is 'y' in the original and 'v'",
    ),
    "another name of a dim": (lambda m: setattr(_first_dim(m), "dim_param", "k"), "of the input 'x' the shape"),
    "a dim with a number": (lambda m: setattr(_first_dim(m), "dim_value", 2), "of the input 'x' the shape"),
    "a dim with a meaning": (
        lambda m: setattr(_first_dim(m), "denotation", "BATCH"),
        "of the input 'x' the meaning of dims",
    ),
    "other metadata": (lambda m: setattr(m.metadata_props[0], "value", "dog,cat"), "the model's metadata 'labels'"),
    "no metadata": (lambda m: m.metadata_props.pop(), "the model's metadata 'labels'"),
    "an older version of operators": (lambda m: setattr(m.opset_import[0], "version", 17), "the version of operators"),
    "no quantization": (lambda m: m.graph.quantization_annotation.pop(), "of the input 'x' the quantization"),
}


@pytest.fixture(scope="module")
def with_border(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("border")
    for name in ("model.onnx", "optimized.onnx"):
        onnx.save(bordered(), folder / name)
    text = {"format": CERTIFICATE_FORMAT, "equalities": [], "records": []}
    (folder / "steps.json").write_text(json.dumps(text))
    run("verify", folder / "model.onnx", folder / "optimized.onnx", folder / "steps.json")
    return folder


@pytest.mark.parametrize("name", BORDERS)
def test_another_border_is_refused(name: str, with_border: Path, tmp_path: Path) -> None:
    change, said = BORDERS[name]
    model = onnx.load(with_border / "optimized.onnx")
    change(model)
    onnx.save(model, tmp_path / "other.onnx")
    found = run("verify", with_border / "model.onnx", tmp_path / "other.onnx", with_border / "steps.json", check=5)
    assert said in one_line(found)


def test_inputs_with_a_default_are_weights_where_the_user_says_so(tmp_path: Path) -> None:
    original, output, steps = (tmp_path / each for each in ("model.onnx", "faster.onnx", "steps.json"))
    onnx.save(models()["a default"], original)
    options = ("--no-measure", "--budget", "1", "--fix-defaults", "-o", output, "--certificate", steps)
    run("optimize", original, *options)
    assert "input 2 is 'w' in the original and missing" in one_line(run("verify", original, output, steps, check=5))
    run("verify", original, output, steps, "--fix-defaults")


@pytest.mark.sampled(3)
def test_weights_in_another_file_count_by_their_bytes(layer: Path, tmp_path: Path) -> None:
    case = made(layer, tmp_path)
    onnx.save(
        onnx.load(tmp_path / "optimized.onnx"),
        tmp_path / "apart.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=64,
    )
    original, _, text = case
    assert follow(original, load(tmp_path / "apart.onnx"), text, CaseJudge()).places
    content = bytearray((tmp_path / "weights.bin").read_bytes())
    content[40] ^= 1
    (tmp_path / "weights.bin").write_bytes(content)
    with pytest.raises(CheckFailed, match="does not lead to the output"):
        follow(original, load(tmp_path / "apart.onnx"), text, CaseJudge())


# ---------------------------------------------------------------- draws and bodies


def changed_file(name: str, folder: Path, change: Callable[[ModelProto], Any]) -> str:
    """The answer of `verify` where the optimized model was changed."""
    onnx.save(models()[name], folder / "model.onnx")
    found = made(folder / "model.onnx", folder)
    (folder / "steps.json").write_text(json.dumps(found[2]))
    model = onnx.load(folder / "optimized.onnx")
    change(model)
    onnx.save(model, folder / "other.onnx")
    return one_line(run("verify", folder / "model.onnx", folder / "other.onnx", folder / "steps.json", check=5))


def test_two_draws_are_not_one(tmp_path: Path) -> None:
    def merge(model: ModelProto) -> None:
        draws = [n for n in model.graph.node if n.op_type == "RandomNormalLike"]
        for node in model.graph.node:
            node.input[:] = [draws[0].output[0] if i == draws[1].output[0] else i for i in node.input]

    assert "does not lead to the output 'y'" in changed_file("opaque two draws", tmp_path, merge)


def test_a_draw_in_a_loop_is_none_outside_of_it(tmp_path: Path) -> None:
    def move(model: ModelProto) -> None:
        loop = next(n for n in model.graph.node if n.op_type == "Loop")
        body = next(a.g for a in loop.attribute if a.name == "body")
        draw = next(n for n in body.node if n.op_type == "RandomNormalLike")
        body.node.remove(draw)
        draw.input[0] = "x"
        model.graph.node.insert(0, draw)

    assert "does not lead to the output 'y'" in changed_file("body draws in a loop", tmp_path, move)


def _inside(model: ModelProto, op: str) -> Any:
    """The first node of an operator, in any body."""
    parts = [model.graph]
    while parts:
        for node in parts.pop(0).node:
            if node.op_type == op:
                return node
            parts += [a.g for a in node.attribute if a.HasField("g")]
    raise AssertionError(op)


INSIDE: dict[str, tuple[str, Callable[[ModelProto], Any]]] = {
    "another operator in a branch": ("body If", lambda m: setattr(_inside(m, "LeakyRelu"), "op_type", "Elu")),
    "an attribute of a node without a definition": (
        "body If",
        lambda m: _inside(m, "Hardmax").attribute.append(helper.make_attribute("axis", 0)),
    ),
    "another captured value": (
        "body If that captures what is rewritten",
        lambda m: (
            m.graph.node.insert(0, helper.make_node("Abs", ["x"], ["k"])),
            _inside(m, "Neg").input.__setitem__(0, "k"),
        ),
    ),
    "the results of a loop exchanged": (
        "body Loop",
        lambda m: next(a.g for a in _inside(m, "Loop").attribute if a.name == "body").output.reverse(),
    ),
    "one of two captured sequences": (
        "body two sequences",
        lambda m: [
            each.g.node[0].input.__setitem__(0, "k")
            for each in _inside(m, "If").attribute
            if each.name == "else_branch"
        ],
    ),
    "the captured sequences exchanged": (
        "body two sequences",
        lambda m: [
            each.g.node[0].input.__setitem__(0, {"then_branch": "l", "else_branch": "k"}[each.name])
            for each in _inside(m, "If").attribute
        ],
    ),
    "another body of a scan": ("body Scan", lambda m: setattr(_inside(m, "Selu"), "op_type", "Elu")),
    "two results exchanged": ("opaque two Hardmax", lambda m: _inside(m, "Sub").input.reverse()),
    "another function": ("function of another opset", lambda m: setattr(m.functions[0].node[-1], "op_type", "Softmax")),
    "another version of a function's operators": (
        "function of another opset",
        lambda m: setattr(m.functions[0].opset_import[0], "version", 11),
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_inside_of_a_node_counts(name: str, tmp_path: Path) -> None:
    model, change = INSIDE[name]
    said = changed_file(model, tmp_path, change)
    assert "does not lead to the output" in said or "is damaged" in said


# ---------------------------------------------------------------- the grounds of an equality

X = variable("x0", Tensor("float32", (4,)))
LARGE_NUMBER, ZERO = constant(1e6, "float32"), constant(0.0, "float32")
SELDOM = term("where", term("less", X, LARGE_NUMBER), X, ZERO)
"""Another number than X where this is large."""


def judged(kind: str, first: Node, second: Node, leaves: tuple[Node, ...] = (X,), **options: bool) -> str:
    lhs, rhs = (show_graph(Graph(leaves, (side,)), name) for name, side in (("lhs", first), ("rhs", second)))
    return CaseJudge(**options)(kind, lhs, rhs)


@pytest.mark.parametrize("kind", [CHECK, "symbolic", "bounded", "anything"])
def test_what_random_inputs_do_not_show_is_refused(kind: str) -> None:
    for wrong in (SELDOM, term("add", X, constant(1e-9, "float32"))):
        with pytest.raises(CheckFailed, match=r"rests on the float check|has no proof|not accept|differ"):
            judged(kind, X, wrong)


def test_numbers_alone_are_believed_where_the_user_says_so() -> None:
    assert judged(CHECK, X, SELDOM, numbers=True) == UNPROVED
    with pytest.raises(CheckFailed, match="the checker does not accept it"):
        judged(CHECK, X, SELDOM, numbers=True, strict=True)
    with pytest.raises(CheckFailed, match="differ on random inputs"):
        judged(CHECK, X, term("neg", X), numbers=True)


def test_polynomials_are_compared_in_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random elements tell two polynomials apart; a term that is no polynomial, or names a number
    that the field may have as 0, is none for them."""
    monkeypatch.setattr(judge, "_check", lambda lhs, rhs: Refused("not asked"))
    twice = term("add", X, X)
    assert judged(CHECK, term("mul", twice, twice), term("mul", term("add", twice, twice), X)) == FIELD
    tiny = term("mul", X, constant(1e-12, "float32"))
    whole = constant(65063.0, "float32")
    for wrong in (term("add", X, tiny), term("add", X, term("mul", tiny, whole)), term("relu", term("exp", X))):
        with pytest.raises(CheckFailed):
            judged(CHECK, X if wrong.op == "add" else term("exp", X), wrong)


FORGED = {
    "nothing divided by nothing": term("div", term("mul", X, X), X),
    "more than a float holds": term(
        "mul", term("mul", X, constant(2.0**126, "float32")), constant(2.0**-126, "float32")
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_is_equal_for_real_numbers_alone_is_seen_in_the_runtime(name: str, tmp_path: Path) -> None:
    """The sides of both equalities are equal wherever they are numbers, so the checker accepts
    them."""
    paths = [tmp_path / each for each in ("model.onnx", "other.onnx", "steps.json")]
    for path, output in zip(paths, (X, FORGED[name]), strict=False):
        save(standalone(Graph((X,), (term("abs", output),)), {"": 18}), path)
    lhs, rhs = (show_graph(Graph((X,), (side,)), n) for n, side in (("lhs", X), ("rhs", FORGED[name])))
    equality = {"equations": ["forged"], "lhs": lhs, "rhs": rhs, "proof": "symbolic"}
    records = [["equal", 0, {"x0": 0}], ["term", 1, [3 if name.startswith("nothing") else 5]]]
    text = {"format": CERTIFICATE_FORMAT, "equalities": [equality], "records": records}
    paths[2].write_text(json.dumps(text))
    assert "accepted by the checker" in run("verify", *paths, "--no-run").stdout
    assert "the models differ" in one_line(run("verify", *paths, check=5))


def test_a_case_is_one_of_sizes_of_at_least_one(case: Case) -> None:
    original, optimized, text = case
    wrong = copy.deepcopy(text)
    lettered = next(e for e in wrong["equalities"] if e.get("case", {}).get("sizes"))
    lettered["case"]["sizes"][next(iter(lettered["case"]["sizes"]))] = "0"
    with pytest.raises(CheckFailed, match="sizes of at least 1"):
        follow(original, optimized, wrong, CaseJudge())


# ---------------------------------------------------------------- the command line


@pytest.mark.sampled(2)
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
