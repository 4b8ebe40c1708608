"""The two sides of a rule's applications in ONNX Runtime, compared: a check that depends neither on
the prover nor on our definitions of the operators."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

from fuzz.law_pairs import Inputs, Refusal, Style, applied, leaves, numbers, styles, subjects, typings
from fuzz.law_runs import Ran, side
from taso_mirage.errors import RunFailed, TasoMirageError, Unsupported
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_computed, is_float, numpy_dtype, topological
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.check import FLOOR, UNEXPLAINED, Difference, difference
from taso_mirage.measure.child import child, in_child
from taso_mirage.measure.reference import RoughReference
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.exactness import differs
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term, traits
from taso_mirage.prove.rules.fuzz import Typing
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.derived_traits import selects
from taso_mirage.rewriting.library import Rule
from taso_mirage.rewriting.text import show_graph

OPSETS = (21, 21, 17, 13, 23)
RUNS = 3
"""Inputs of each typing."""
SEEDS = (1, 2, 3, 4)
"""Ways of rounding that tell how far a rounding moves a result."""
EPSILON = float(np.finfo(np.float32).eps)
BROKEN = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError)
EQUAL, DIFFERENT, FAILS, DEFINITION = "equal", "different", "the right side fails", "the definition differs"
OPTIMIZER = "the runtime's own optimizations change the left side"
SINGLE = "equal, by a kernel of float64 with constants of single precision"
COMPARED = (EQUAL, SINGLE, DIFFERENT, FAILS, DEFINITION)
"""Verdicts of a comparison; in others nothing is claimed."""
WRONG = (DIFFERENT, FAILS, DEFINITION)
"""Verdicts that are a bug of a law, a definition, the writer, or a kernel of the runtime."""


@dataclass(frozen=True)
class Pair:
    """The two sides of an application as models of one opset over the same inputs; weights have one
    value each."""

    name: str
    typing: Typing
    opset: int
    weights: Mapping[str, StoredWeight]

    @cached_property
    def models(self) -> tuple[Model, Model]:
        left, right = (self._model(outputs) for outputs in (self.typing.lhs, self.typing.rhs))
        return left, right

    def _model(self, outputs: tuple[Node, ...]) -> Model:
        inputs = tuple(n for n in leaves(self.typing) if n.op == "input")
        return standalone(Graph(inputs, outputs), {"": self.opset, "com.microsoft": 1}, self.weights)

    @cached_property
    def contents(self) -> tuple[bytes, bytes]:
        left, right = map(serialize, self.models)
        return left, right

    def ran(self, feeds: Sequence[Inputs], optimized: bool) -> tuple[list[Ran] | str, list[Ran] | str]:
        """The outputs of both sides on each input; a text where one cannot be loaded, or ends its
        process."""
        left, right = (_in_runtime(content, feeds, optimized) for content in self.contents)
        return left, right


CRASHED = "crashed: "


def _in_runtime(content: bytes, feeds: Sequence[Inputs], optimized: bool) -> list[Ran] | str:
    try:
        return in_child(side, content, feeds, optimized)
    except RunFailed:  # one of the inputs ends the process: alone they tell which
        if len(feeds) == 1:
            return [f"{CRASHED}the runtime's process ended"]
        found = [_in_runtime(content, [feed], optimized) for feed in feeds]
        return [each if isinstance(each, str) else each[0] for each in found]


@dataclass(slots=True)
class Tally:
    """The outcome of a rule's typings: comparisons by verdict, dtype and rank, why others are none,
    and those that are wrong."""

    verdicts: Counter[str] = field(default_factory=Counter)
    typings: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    ranks: Counter[str] = field(default_factory=Counter)
    dims: Counter[str] = field(default_factory=Counter)
    why: dict[str, str] = field(default_factory=dict)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def note(self, kind: str, why: str = "") -> None:
        self.typings[kind] += 1
        if why:
            self.why.setdefault(kind, why)

    def compared(self, pair: Pair) -> None:
        shapes = [n.shape for n in leaves(pair.typing)]
        self.dtypes.update({n.dtype for n in leaves(pair.typing)})
        self.ranks[str(max(map(len, shapes), default=0))] += 1
        sizes = {int(d) for shape in shapes for d in shape}
        self.dims.update({f"a dim of {n}" for n in (0, 1) if n in sizes})

    @property
    def comparisons(self) -> int:
        return sum(self.verdicts[v] for v in COMPARED)

    def as_dict(self) -> dict[str, Any]:
        return {
            "comparisons": self.comparisons,
            "verdicts": dict(self.verdicts),
            "typings": dict(self.typings),
            "dtypes": dict(self.dtypes),
            "ranks": dict(self.ranks),
            "dims": dict(self.dims),
            "why": self.why,
            "wrong": self.wrong,
        }


@cache
def _proofs() -> Proofs:
    from taso_mirage.measure.cost_cache import proofs_path

    return Proofs(proofs_path())


def judged(job: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome for the rule of a job ("name", "seed", "typings", "runs"), see
    `Tally.as_dict`."""
    start, rule = time.process_time(), subjects()[str(job["name"])]
    found = compared(rule, int(job["seed"]), int(job["typings"]), _proofs(), runs=int(job["runs"]))
    wrong = [{**each, "job": dict(job)} for each in found.wrong]
    return {**found.as_dict(), "wrong": wrong, "seconds": round(time.process_time() - start, 3)}


def compared(
    rule: Rule, seed: int, count: int, proofs: Proofs | None = None, trusted: bool = False, runs: int = RUNS
) -> Tally:
    """A rule at up to `count` typings, each on so many inputs. `trusted`: also where it is not
    proved or would not be applied."""
    tally, proofs = Tally(), proofs or Proofs()
    for i, typing in enumerate(typings(rule, seed, count)):
        rng = Random(f"{rule.name} {seed} {i}")
        asked = typing if trusted else applied(rule, typing, proofs)
        if isinstance(asked, Refusal):
            tally.note(asked.why)
            continue
        try:
            _compare(written(rule.name, as_read(typing), rng), rng, runs, tally)
        except BROKEN as error:
            tally.note("cannot be written", f"{type(error).__name__}: {error}"[:300])
        if len(tally.wrong) >= 5:
            break
    return tally


def written(name: str, typing: Typing, rng: Random) -> Pair:
    """Write both sides at one of the opsets that have all of their operators."""
    weights = _weights(typing, rng)
    for opset in rng.sample(OPSETS, len(OPSETS)):
        pair = Pair(name, typing, opset, weights)
        with suppress(Unsupported):
            if pair.contents:
                return pair
    raise Unsupported("no opset has all of its operators")


def as_read(typing: Typing) -> Typing:
    """The typing with floats of attributes as a file holds them: in single precision."""
    done: dict[Node, Node] = {}
    for node in topological((*typing.lhs, *typing.rhs)):
        done[node] = node
        if node.args and node is not ABSENT:
            attrs = {k: _single(v) for k, v in node.attrs}
            done[node] = term(node.op, *[done[a] for a in node.args], **attrs)
    return Typing(tuple(done[n] for n in typing.lhs), tuple(done[n] for n in typing.rhs), typing.names)


def _single(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_single, value))
    return float(np.float32(value)) if isinstance(value, float) else value


def _weights(typing: Typing, rng: Random) -> dict[str, StoredWeight]:
    own, style = np.random.default_rng(rng.randrange(1 << 30)), Style(-2, 2)
    return {n.attr("name"): StoredWeight(numbers(n, style, own)) for n in leaves(typing) if n.op == "weight"}


def _compare(pair: Pair, rng: Random, runs: int, tally: Tally) -> None:
    chosen, optimized = styles(pair.typing, rng, runs), rng.random() < 0.2
    seeds = [rng.randrange(1 << 30) for _ in chosen]
    inputs = [n for n in leaves(pair.typing) if n.op == "input"]
    feeds = [
        {n.attr("name"): numbers(n, style, np.random.default_rng([seed, k])) for k, n in enumerate(inputs)}
        for style, seed in zip(chosen, seeds, strict=True)
    ]
    left, right = pair.ran(feeds, optimized)
    for which, loaded in (("left", left), ("right", right)):
        if isinstance(loaded, str):
            tally.note(f"no kernel on the {which}", loaded)
            return
    tally.note("run")
    for feed, a, b in zip(feeds, left, right, strict=True):
        verdict, found = verdict_of(pair, feed, a, b)
        if optimized and verdict in (DIFFERENT, DEFINITION) and not _explained(pair, feed, a):
            verdict = OPTIMIZER
        tally.verdicts[verdict] += 1
        if verdict in COMPARED:
            tally.compared(pair)
        if verdict in WRONG:
            tally.wrong.append(_record(pair, verdict, feed, a, b, optimized, found))


def _explained(pair: Pair, feed: Inputs, left: Ran) -> bool:
    """Whether the left side gives the same without optimizations."""
    plain = _in_runtime(pair.contents[0], [feed], False)
    return not isinstance(plain, str) and verdict_of(pair, feed, plain[0], left)[0] == EQUAL


# ---------------------------------------------------------------- one comparison


def verdict_of(pair: Pair, feed: Inputs, left: Ran, right: Ran) -> tuple[str, str]:
    """The verdict on one input, and its text. Nothing is claimed where the left side fails, is not
    defined in real numbers, or leaves the range of its dtype."""
    if isinstance(left, str):
        return "the left side fails", left
    env = {n: EXACT.load(_value(pair, n, feed)) for n in leaves(pair.typing)}
    watch = Watch(env)
    try:
        with np.errstate(all="ignore"):
            reference = _values(pair.typing.lhs, env, watch)
    except BROKEN as error:
        return "not defined", f"{type(error).__name__}: {error}"
    if watch.undefined:
        return "not defined", ""
    if isinstance(right, str):
        return FAILS, right
    try:
        with np.errstate(all="ignore"):
            references = reference, _values(pair.typing.rhs, env, partial(watch, right=True))
    except BROKEN as error:
        return DEFINITION, f"right side: {type(error).__name__}: {error}"
    if watch.overflows:
        return "beyond the dtype's range", ""
    rough = cache(partial(_resolutions, pair, feed, references))
    worst = [_difference(i, b, a, r, rough) for i, (b, a, r) in enumerate(zip(right, left, reference, strict=True))]
    failed = [d for d in worst if not d.passed]
    if failed:
        return DIFFERENT, str(failed[0])
    own = [_difference(i, a, r, r, rough) for i, (a, r) in enumerate(zip(left, _rounded(left, reference), strict=True))]
    unlike = [d for d in own if not d.passed] if not _known(pair) else []
    if not unlike:
        return EQUAL, ""
    single = all(_in_single(d, a, r) for d, a, r in zip(own, left, reference, strict=True))
    return SINGLE if single else DEFINITION, str(unlike[0])


def _values(outputs: Sequence[Node], env: Mapping[Node, Any], watch: Callable[..., Any]) -> list[Any]:
    found = interpret(outputs, EXACT, env, after=watch)
    return [np.asarray(found[o]) for o in outputs]


def _in_single(found: Difference, left: Any, exact: Any) -> bool:
    """Whether an output of float64 is as near the definition as one of float32 has to be."""
    if found.passed or left.dtype != np.float64:
        return found.passed
    return bool(found.error <= FLOOR[4] * EPSILON * float(np.abs(exact).max(initial=0.0)))


class Watch:
    """Whether a term gives NaN or an infinity of finite operands, or is larger than its dtype
    holds."""

    def __init__(self, env: Mapping[Node, Any]) -> None:
        self.undefined = self.overflows = False
        self.values = dict(env)

    def __call__(self, node: Node, value: Any, right: bool = False) -> Any:
        self.values[node] = value
        if not right and (node.op == "div" or traits(node).quantized):  # also of nothing
            self.undefined |= any(self._is_zero(a) for a in node.args[1:])
        parts = zip(value, node.type, strict=False) if isinstance(value, tuple) else [(value, node.type)]
        for part, type in parts if not selects(node.op) else ():
            if not isinstance(part, np.ndarray) or not isinstance(type, Tensor) or not is_computed(type.dtype):
                continue
            if not right:
                self.undefined |= not bool(np.isfinite(part).all())
            limit = float(ml_dtypes.finfo(numpy_dtype(type.dtype)).max)
            self.overflows |= bool((np.abs(part[np.isfinite(part)]) > limit / 4).any())
        return value

    def _is_zero(self, scale: Node) -> bool:
        """Whether a scale, or another divisor of floats, has a zero."""
        if scale is ABSENT or not is_float(scale.dtype):
            return False
        value = scale.attr("value").numpy() if scale.op == "constant" else self.values[scale]
        return bool((np.asarray(value, np.float64) == 0).any())


def _value(pair: Pair, node: Node, feed: Inputs) -> Any:
    name = node.attr("name")
    return pair.weights[name].numpy() if node.op == "weight" else feed[name]


def _rounded(left: Sequence[Any], reference: Sequence[Any]) -> list[Any]:
    """The reference in the dtypes of the results."""
    return [np.asarray(r).astype(a.dtype) if a.dtype != r.dtype else r for a, r in zip(left, reference, strict=True)]


def _known(pair: Pair) -> bool:
    """Whether the runtime is known to compute integers of the left side otherwise than ONNX defines
    them (`operators/exactness.py`)."""
    return any(differs(n) for n in topological(pair.typing.lhs))


def _difference(i: int, new: Any, old: Any, exact: Any, rough: Callable[[], list[Any]]) -> Difference:
    """The criterion of `measure.check`; where it is missed, with the part that a rounding of every
    intermediate result of either side explains."""
    name = f"output_{i}"
    found = difference("a run", name, new, old, exact)
    if found.passed and found.against != UNEXPLAINED:
        return found
    if np.shape(new) != np.shape(old) or new.dtype != old.dtype:
        return found
    moved = rough()[i]
    if not is_computed(new.dtype.name):  # a decision that a rounding turns
        same = (new == old) | moved
        return found if not same.all() else Difference("a run", name, 0.0, 0.0, 0.0)
    return difference("a run", name, new, old, exact, moved, np.inf)


def _resolutions(pair: Pair, feed: Inputs, references: Sequence[Sequence[Any]]) -> list[Any]:
    """How far a rounding of every intermediate result moves each output of one side from its
    float64 value, the larger of both; of integers, which elements it turns."""
    found: list[Any] = [0.0 if r.dtype.kind == "f" else np.zeros(r.shape, bool) for r in references[0]]
    for model, reference in zip(pair.models, references, strict=True):
        for seed in SEEDS:
            with np.errstate(all="ignore"):
                moved = RoughReference(model, seed, 1.0)(feed)
            for i, (value, exact) in enumerate(zip(moved, reference, strict=True)):
                if exact.dtype.kind == "f":
                    apart = np.abs(np.asarray(value, np.float64) - exact)
                    found[i] = max(found[i], float(apart[np.isfinite(apart)].max(initial=0.0)))
                else:
                    found[i] = found[i] | (value != exact)
    return found


def _record(
    pair: Pair, verdict: str, feed: Inputs, left: Any, right: Any, optimized: bool, found: str
) -> dict[str, Any]:
    """All that is needed to see one failure again."""
    inputs = tuple(n for n in leaves(pair.typing) if n.op == "input")
    values = {n.attr("name"): _value(pair, n, feed) for n in leaves(pair.typing)}
    return {
        "name": pair.name,
        "verdict": verdict,
        "opset": pair.opset,
        "optimized": optimized,
        "found": found,
        "left": show_graph(Graph(inputs, pair.typing.lhs), "left"),
        "right": show_graph(Graph(inputs, pair.typing.rhs), "right"),
        "values": {name: _plain(v) for name, v in values.items()},
        "results": [_plain(each) for each in (*left, *([] if isinstance(right, str) else right))],
    }


def _plain(array: Any) -> Any:
    flat = np.asarray(array)
    return flat.astype(np.float64).tolist() if flat.dtype.kind in "fV" else flat.tolist()


def close() -> None:
    """End the runtime's process."""
    child().stop()
