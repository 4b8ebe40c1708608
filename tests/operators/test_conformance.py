"""All node test cases of the onnx package through the border: same structure, same results, and our
definitions' results."""

from __future__ import annotations

import functools
import itertools
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from conformance_cases import bind, binding_choices, collected
from sampling import DAY

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Tensor
from taso_mirage.meanings.reals import REALS
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.onnx_io import from_proto, serialize
from taso_mirage.onnx_io.read import BROKEN, from_ir
from taso_mirage.operators.interpret import interpret
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.text import laws, show_graph
from taso_mirage.search.available import Available
from taso_mirage.search.cost import Cost, Roofline
from taso_mirage.search.passes import Context, simplify
from taso_mirage.search.search import Budget, directions, rewrites, search_model
from taso_mirage.search.steps import RewriteStep, replay
from taso_mirage.search.weights import fold_weights

Rewritten = tuple[Model, list[RewriteStep]]


class Start:
    """An imported model, and the data with which every transformation of it begins."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.model = from_ir(from_proto(proto))

    @functools.cached_property
    def context(self) -> Context:
        opsets = {"com.microsoft": 1, **self.model.opsets}
        asked = Context(opsets, self.model.sizes)
        return replace(asked, available=Available(self.model.nodes(), asked, IMPLEMENTED))

    @functools.cached_property
    def passed(self) -> Rewritten:
        return self.passes(self.model)

    def passes(self, model: Model) -> Rewritten:
        """Every law where it makes the graph smaller, then the folding of weights."""
        outputs, steps = simplify(model.graph.outputs, _rules()[0], self.context)
        folded, more = fold_weights(model.with_graph(outputs))
        return folded, [*steps, *more]


IMPLEMENTED = CostCache(None)
"""Answers of ONNX Runtime: they are the same for all cases."""


def optimized(start: Start) -> Rewritten:
    """The graph that `optimize` would measure and check next: passes, search, passes again.

    There is no check to hide a bug.
    """
    before, first = start.passed
    eager, rules = _rules()
    cost, budget = Cost(Roofline(start.context)), Budget(0.5, states_per_part=20)
    outputs, taken, _ = search_model(before.graph.outputs, rules, eager, cost, start.context, budget)
    after, last = start.passes(before.with_graph(outputs))
    return after, [*first, *taken, *last]


def rewritten(start: Start) -> Rewritten:
    """One law, any that applies, whether it pays or not."""
    eager, rules = _rules()
    model = start.model
    states = list(itertools.islice(rewrites(model.graph.outputs, rules, eager, start.context), 40))
    if not states:
        return model, []
    outputs = states[zlib.crc32(show_graph(model.graph).encode()) % len(states)].outputs
    return model.with_graph(outputs), [RewriteStep(("a law",), model.graph.outputs, outputs)]


@functools.cache
def _rules() -> tuple[Rules, Rules]:
    return Rules(laws()), Rules(directions(laws()))


TRANSFORMATIONS: dict[str, Callable[[Start], Rewritten]] = {
    "import": lambda start: (start.model, []),
    "passes": lambda start: start.passed,
    "rewrite": rewritten,
    "optimize": optimized,
}
"""The steps between import and export. Structure is compared for `import` only."""

CHUNKS, THIRD, EIGHTH = 24, 3, 8
CASES = 1884
AT_LEAST = {"ORT runs": 1500, "ORT equal": 1500, "defined": 1189, "reals": 1189}
"""Counts that may grow, with the operators' definitions and with ONNX Runtime."""

RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
"""Operators whose result differs from run to run: not compared."""

NEUTRAL = {
    **dict.fromkeys(["Cast", "CastLike"], "a cast to the operand's own type, or of a known value"),
    **dict.fromkeys(["Slice", "Pad"], "the whole slice, no padding"),
    **dict.fromkeys(["Reshape", "Expand", "Transpose", "Squeeze", "Unsqueeze"], "to the operand's own shape"),
    "Dropout": "inference",
    "Concat": "one part",
}
"""Operators that may be their first operand, and when.

Where they are gone, the rest is still compared.
"""

RESPELLED = {
    "Einsum": "written as the operators that it consists of",
}
"""Operators around which the trees may differ, with the reason: these cases are counted apart."""


@dataclass
class Outcome:
    """The outcome of one case: `passed` stages, `skipped` ones with their reasons, and errors."""

    name: str
    passed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def judge(self, stage: str, complaint: str | None) -> None:
        if complaint is None:
            self.passed.append(stage)
        else:
            self.wrong.append(f"{self.name}: {stage}: {complaint}")


class Case:
    """A node test case, and the data common to all transformations: its imports, and the original's
    results."""

    def __init__(self, given: Any) -> None:
        self.given, self.model, self.name = given, given.model, given.name
        self._starts: dict[int, Start] = {}

    @functools.cached_property
    def data(self) -> tuple[list[Any], list[Any]]:
        """The inputs and the expected outputs of the first data set."""
        inputs, expected = [[_plain(v) for v in values] for values in self.given.data_sets[0]]
        return inputs, expected

    @functools.cached_property
    def bindings(self) -> list[dict[str, Any]]:
        return list(binding_choices(self.model.graph, self.data[0]))

    def start(self, binding: int) -> Start:
        """The model with the inputs of a binding fixed; the first binds none."""
        if binding not in self._starts:
            self._starts[binding] = Start(bind(self.model, self.bindings[binding]))
        return self._starts[binding]

    @functools.cached_property
    def refused(self) -> str | None:
        """The reason why the checker refuses the original."""
        return _checked(self.model)

    @functools.cached_property
    def before(self) -> list[tuple[dict[str, Any], list[Any]] | str]:
        """Inputs and results of the original by data set, up to the first that cannot run, and why
        that is."""
        found: list[tuple[dict[str, Any], list[Any]] | str] = []
        for inputs, _ in self.given.data_sets:
            try:
                feeds = _feeds(self.model.graph, inputs)
                found.append((feeds, run(self.model.SerializeToString(), feeds)))
            except Exception as error:
                return [*found, _cause(error)]
        return found


def outcomes(folder: Path, chunk: int, names: Sequence[str]) -> dict[str, list[Outcome]]:
    """By transformation.

    Examined once in a run of the tests, by one of its workers, and kept in `folder`.
    """
    path = folder / f"node_cases_{chunk}_{len(names)}.json"
    if not path.exists():
        cases = map(Case, collected()[chunk::CHUNKS])
        rows = [[asdict(examine(case, name)) for name in names] for case in cases]
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(rows))
        partial.replace(path)
    columns = zip(*json.loads(path.read_text()), strict=True)
    return {name: [Outcome(**o) for o in column] for name, column in zip(names, columns, strict=True)}


def asked(chunk: int, whole: bool) -> Sequence[str]:
    """The transformations of a chunk: all if the `whole` is asked for; else the day has all for an
    EIGHTH of the chunks, the first two, which do not search, for a THIRD, and none for others."""
    every, turn = tuple(TRANSFORMATIONS), DAY + chunk
    if whole or turn % EIGHTH == 0:
        return every
    return every[:2] if turn % THIRD == 0 else ()


def examine(case: Case, transformation: str) -> Outcome:
    outcome, transform = Outcome(case.name, ["cases"]), TRANSFORMATIONS[transformation]
    try:
        start = case.start(0)
        result, steps = transform(start)
        data = serialize(result)
    except Exception as error:
        outcome.judge("round trip", f"{type(error).__name__}: {error}")
        return outcome
    imported = start.model
    outcome.judge("round trip", next((r for r in imported.opaque.values() if r.startswith(BROKEN)), None))
    led = replay(imported.graph.outputs, steps) == result.graph.outputs
    outcome.judge("steps", None if led else "replaying them does not lead to the result")
    after = onnx.load_model_from_string(data)
    _judge_checker(outcome, case, after)
    if transformation == "import":
        _judge_structure(outcome, case.model, after)
    _judge_runtime(outcome, case, data)
    _judge_reals(outcome, case, result, transform)
    return outcome


def _judge_checker(outcome: Outcome, case: Case, after: onnx.ModelProto) -> None:
    if case.refused is not None:
        outcome.skipped["checker"] = f"refuses the original: {case.refused}"
    else:
        outcome.judge("checker", _checked(after))


def _checked(model: onnx.ModelProto) -> str | None:
    try:
        onnx.checker.check_model(model)
        return None
    except Exception as error:
        return _brief(error)


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


# ---------------------------------------------------------------- structure


def _judge_structure(outcome: Outcome, before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    stage, complaint = structural_difference(before, after)
    respelled = sorted(set(_operators(before.graph)) & RESPELLED.keys())
    if complaint is not None and respelled:
        outcome.skipped["structure"] = f"{respelled[0]}: {RESPELLED[respelled[0]]}"
    elif complaint is not None and f":If.0({KNOWN})" in complaint.partition(" became ")[0]:
        outcome.skipped["structure"] = "If: of a condition that is a constant, its branch is read"
    else:
        outcome.judge(stage, complaint)


def structural_difference(before: onnx.ModelProto, after: onnx.ModelProto) -> tuple[str, str | None]:
    """The stage that was reached, and the differences at the last one; None if there are none.

    An output's tree of (domain, operator, output number, operands) is compared, so that names,
    order, dead nodes and shared subterms do not matter. A value known before the model runs
    (weights, constants, sizes, and terms computed from them alone) is one leaf, as it may be
    folded. First as it is, then without the operators that are `NEUTRAL` somewhere. Values, which
    are not compared here, are judged by the results.
    """
    if [o.name for o in before.graph.output] != [o.name for o in after.graph.output]:
        return "structure", "the outputs' names differ"
    if [i.name for i in before.graph.input] != [i.name for i in after.graph.input]:
        return "structure", "the inputs' names differ"
    if trees(before.graph) == trees(after.graph):
        return "structure", None
    was, now = trees(before.graph, NEUTRAL), trees(after.graph, NEUTRAL)
    differing = [f"{a} became {b}" for a, b in zip(was, now, strict=True) if a != b]
    return "structure without neutral operators", differing[0] if differing else None


KNOWN = "known"


def trees(
    graph: onnx.GraphProto, neutral: Container[str] = (), outer: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """The outputs of a graph as trees in text. `outer` are the values around a body."""
    found = {**outer, **{i.name: i.name for i in graph.input}}
    found |= {t.name: KNOWN for t in graph.initializer if t.name not in found}
    for node in graph.node:
        bodies = [tuple(trees(a.g, neutral, found)) for a in node.attribute if a.HasField("g")]
        for i, name in enumerate(node.output):
            found[name] = _tree(node, i, [found.get(n, "") for n in node.input], bodies, neutral)
    return [found[o.name] for o in graph.output]


def _tree(node: onnx.NodeProto, i: int, operands: list[str], bodies: list[Any], neutral: Container[str]) -> str:
    name = {"CastLike": "Cast", "Sum": "Add"}.get(node.op_type, node.op_type)
    if node.op_type in ("CastLike", "Split") or name.startswith("Reduce"):
        operands = [operands[0], *(o for o in operands[1:] if o != KNOWN)]  # defaults may be written out
        operands = operands[:1] if node.op_type == "CastLike" else operands
    while operands and operands[-1] == "":
        operands.pop()
    known = not bodies and all(o in (KNOWN, "") for o in operands) and name not in RANDOM
    if known or name in ("Shape", "Size"):
        return KNOWN
    first_only = all(o in (KNOWN, "") for o in operands[1:]) or name == "Dropout"
    if name == "Identity" or (node.op_type in neutral and first_only) or (name == "Add" and len(operands) == 1):
        return operands[0]
    head = f"{node.domain}:{name}.{i}"
    if name in ("Add", "Max", "Min"):  # of many operands: two at a time
        return functools.reduce(lambda a, b: f"{head}({a}, {b})", operands)
    return f"{head}({', '.join(operands)}){bodies or ''}"


# ---------------------------------------------------------------- ONNX Runtime


def _judge_runtime(outcome: Outcome, case: Case, data: bytes) -> None:
    operators = set(_operators(case.model.graph)) | {n.op_type for f in case.model.functions for n in f.node}
    for known in case.before:
        if isinstance(known, str):
            outcome.skipped["ORT runs"] = known
            return
        feeds, before = known
        outcome.passed.append("ORT runs")
        if random := operators & RANDOM:
            outcome.skipped["ORT equal"] = f"random: {sorted(random)[0]}"
            return
        try:
            after = run(data, feeds)
            complaint = None if equal(before, after) else "the results differ"
        except Exception as error:
            complaint = _brief(error)
        if complaint is None and all(map(identical, before, after)):
            outcome.passed.append("ORT equal to the bit")
        outcome.judge("ORT equal", complaint)


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            yield from _operators(attribute.g)


def _cause(error: Exception) -> str:
    text = str(error)
    if "Numpy type" in text:
        return "its Python interface cannot return the dtype"
    for kind in ("NOT_IMPLEMENTED", "INVALID_GRAPH", "INVALID_ARGUMENT", "RUNTIME_EXCEPTION", "FAIL"):
        if kind in text:
            return f"ONNX Runtime: {kind}"
    return f"ONNX Runtime: {type(error).__name__}"


NEWEST_IR = 12
"""The newest IR version that ONNX Runtime reads; cases of a newer one run as this one, before and
after."""
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"  # ONNX Runtime then tries operators of opsets to come


def run(data: bytes, feeds: dict[str, Any]) -> list[Any]:
    proto = onnx.load_model_from_string(data)
    proto.ir_version = min(proto.ir_version, NEWEST_IR)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    if not any(isinstance(v, onnxruntime.OrtValue) for v in feeds.values()):
        return list(session.run(None, feeds))
    values = {k: v if isinstance(v, onnxruntime.OrtValue) else _ort_value(v) for k, v in feeds.items()}
    return [v.numpy() for v in session.run_with_ort_values(None, values)]


def _ort_value(value: Any) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(value)


def _feeds(graph: onnx.GraphProto, inputs: Sequence[Any]) -> dict[str, Any]:
    named = zip(graph.input, inputs, strict=False)
    return {info.name: _feed(value, info.type.tensor_type.elem_type) for info, value in named}


def _plain(value: Any) -> Any:
    """Test cases give arrays, scalars or protos."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _feed(value: Any, elem_type: int) -> Any:
    array = _plain(value)
    if isinstance(array, np.ndarray) and array.dtype.name in EXOTIC:
        bits = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, elem_type)
    return array


EXOTIC = {name for name in dir(ml_dtypes) if name.startswith(("bfloat", "float", "int", "uint"))}


def equal(a: Any, b: Any) -> bool:
    """Whether two values have the same structure and dtypes, and the same numbers up to two units
    in the last place: constants are folded."""
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(equal, a, b))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return bool(a == b)
    if a.dtype.kind not in "fV" or a.dtype != b.dtype or a.shape != b.shape:
        return identical(a, b)
    step = 2 * float(ml_dtypes.finfo(a.dtype).eps)
    return bool(np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=step, atol=step, equal_nan=True))


def identical(a: Any, b: Any) -> bool:
    """Whether two values are equal to the bit."""
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(identical, a, b))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.tobytes() == b.tobytes() if a.dtype != object else bool(a.tolist() == b.tolist())


# ---------------------------------------------------------------- our definitions


def _judge_reals(outcome: Outcome, case: Case, result: Model, transform: Callable[[Start], Rewritten]) -> None:
    """Where every operator has a definition, it gives the outputs that the case expects.

    `result` binds no input.
    """
    if random := set(_operators(case.model.graph)) & RANDOM:
        outcome.skipped["defined"] = f"random: {sorted(random)[0]}"
        return
    reason = ""
    for number, bound in enumerate(case.bindings):
        try:
            model = transform(case.start(number))[0] if number else result
        except Exception as error:
            outcome.judge("reals", f"binding {sorted(bound)}: {type(error).__name__}: {error}")
            return
        undefined = [n for n in model.nodes() if n.op == "opaque"]
        if undefined:
            reason = reason or f"{undefined[0].attr('call')}: {model.opaque.get(undefined[0], '')}"
            continue
        outcome.passed.append("defined")
        outcome.judge("reals", _difference(model, case, *case.data))
        return
    outcome.skipped["defined"] = reason


def _difference(model: Model, case: Case, inputs: Sequence[Any], expected: Sequence[Any]) -> str | None:
    named = dict(zip((i.name for i in case.model.graph.input), inputs, strict=False))
    env = {n: np.asarray(named[n.attr("name")]) for n in model.graph.inputs}
    for node in model.nodes():
        if node.op == "weight":
            env[node] = np.asarray(model.weights[node.attr("name")].numpy())
    try:
        values = interpret(model.graph.outputs, REALS, env)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for node, want in zip(model.graph.outputs, expected, strict=True):
        complaint = unlike(np.asarray(values[node]), np.asarray(want), node.tensor, case.given.rtol, case.given.atol)
        if complaint is not None:
            return complaint
    return None


def unlike(got: Any, want: Any, type: Tensor, rtol: float, atol: float) -> str | None:
    """How a result differs from the expected one by more than its dtype's rounding; None if it does
    not."""
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, expected {want.dtype}"
    few_bits = got.dtype.name.startswith(("int", "uint"))  # ml_dtypes' have the kind of floats
    if got.dtype == object or got.dtype.kind in "biuSUT" or few_bits:
        differing = int((got != want).sum())
        return None if differing == 0 else f"{differing} of {got.size} elements differ"
    wide = np.float64 if got.dtype.kind != "c" else np.complex128
    step = float(ml_dtypes.finfo(got.dtype).eps)
    a, b = got.astype(wide), want.astype(wide)
    close = np.isclose(a, b, rtol=max(rtol, 2 * step), atol=max(atol, 1e-6, step / 8), equal_nan=True)
    return None if close.all() else f"{(~close).sum()} of {close.size} differ, by up to {np.nanmax(np.abs(a - b)):.3g}"


# ---------------------------------------------------------------- tests


WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("chunk", "whole"),
    [
        *((n, False) for n in range(CHUNKS) if asked(n, whole=False)),
        *(pytest.param(n, True, marks=pytest.mark.slow) for n in range(CHUNKS)),
    ],
)
def test_node_cases(shared: Path, chunk: int, whole: bool) -> None:
    """A chunk of the cases by every transformation: they share the import and the original's
    results."""
    examined = outcomes(shared, chunk, asked(chunk, whole))
    wrong = [f"{name}: {line}" for name, found in examined.items() for o in found for line in o.wrong]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@WHOLE
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_counts(shared: Path, transformation: str, whole: bool, capsys: pytest.CaptureFixture[str]) -> None:
    chunks = [n for n in range(CHUNKS) if transformation in asked(n, whole)]
    every = [outcome for n in chunks for outcome in outcomes(shared, n, asked(n, whole))[transformation]]
    cases = sum(len(collected()[n::CHUNKS]) for n in chunks)
    assert len(collected()) == CASES
    passed = Counter(stage for outcome in every for stage in set(outcome.passed))
    skipped = Counter(item for outcome in every for item in outcome.skipped.items())
    with capsys.disabled():
        print(f"\nnode test cases, {transformation}: " + ", ".join(f"{passed[s]} {s}" for s in sorted(passed)))
        reasons = skipped.items() if transformation == "import" else ()  # the same for all, but for folded operators
        for (stage, reason), n in sorted(reasons, key=lambda item: (item[0][0], -item[1])):
            print(f"  not {stage}: {n:5} {reason}")
    for stage in ("cases", "round trip", "steps", "checker"):
        assert passed[stage] == cases, stage
    if transformation == "import":
        respelled = sum(n for (stage, _), n in skipped.items() if stage == "structure")
        assert passed["structure"] + passed["structure without neutral operators"] + respelled == cases
        assert passed["structure"] >= (1600 if cases == CASES else 0.9 * 1600 * cases / CASES)
    for stage, n in AT_LEAST.items():
        assert passed[stage] >= (n if cases == CASES else 0.9 * n * cases / CASES), stage
    assert passed["reals"] == passed["defined"]


def test_structure_sees_a_difference() -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y)'
    before = onnx.parser.parse_model(header + "{ a = Relu(x) \n y = Add(a, x) }")
    same = onnx.parser.parse_model(header + "{ b = Identity(x) \n c = Relu(b) \n y = Add(c, b) }")
    swapped = onnx.parser.parse_model(header + "{ a = Relu(x) \n y = Add(x, a) }")
    other = onnx.parser.parse_model(header + "{ a = Neg(x) \n y = Add(a, x) }")
    assert structural_difference(before, same) == ("structure", None)
    assert structural_difference(before, swapped)[1] is not None
    assert structural_difference(before, other)[1] is not None
