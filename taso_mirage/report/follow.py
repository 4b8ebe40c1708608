"""Following a certificate from the original's terms to the optimized model's, without search and
without the optimizer's word.

Each record claims one equality. Terms are put into classes: by what was proved, and because equal
operands give equal results. The certificate holds if every output of the optimized model is then in
the class of the original's.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taso_mirage import checker
from taso_mirage.errors import CheckFailed, TasoMirageError
from taso_mirage.ir.dims import parse_dim
from taso_mirage.ir.model import Model, random_array
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, is_computed, numpy_dtype, topological, weight, with_args
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.reals import EXACT, REALS
from taso_mirage.operators.folding import fold_small
from taso_mirage.operators.interpret import interpret, interpret_term
from taso_mirage.operators.ops import get
from taso_mirage.prove.rules.cases import Instance, resized_instance
from taso_mirage.prove.rules.proofs import BUDGET, proof
from taso_mirage.report.certificate import CERTIFICATE_FORMAT, CHECK
from taso_mirage.rewriting.text import parse_graph, show_graph

CHECKED = "accepted by the checker"
AGAIN = "proved again by the prover; the checker does not decide them"
NUMBERS = "not proved: they rest on the float check of the whole model, and agree on random inputs here"
TRIALS = 3
APART = 1e-6
MALFORMED = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
Judge = Callable[[str, str, str], str]
"""What an equality stands on, given its kind of proof and both sides as text; raises CheckFailed
where it does not hold."""


@dataclass
class Followed:
    """How many equalities stand on what, and at how many places they were used."""

    equalities: Counter[str] = field(default_factory=Counter)
    alone: dict[str, str] = field(default_factory=dict)
    """The equations that the checker does not decide, by name, and why not."""
    places: int = 0
    computed: int = 0
    terms: int = 0


def follow(original: Model, optimized: Model, certificate: Mapping[str, Any], judge: Judge) -> Followed:
    """Check every record and that they lead from one model to the other.

    CheckFailed names the record that does not.
    """
    if certificate.get("format") != CERTIFICATE_FORMAT:
        said = str(certificate.get("format", "none"))[:60]
        raise CheckFailed(
            f"the certificate's format is {said}, this version reads {CERTIFICATE_FORMAT}: write it anew by `optimize --certificate`"
        )
    _same_border(original, optimized)
    reader = _Reader(original, certificate, judge)
    records = certificate.get("records")
    if not isinstance(records, list):
        raise CheckFailed("the certificate has no list of records")
    for i, record in enumerate(records):
        try:
            reader.read(record)
        except CheckFailed as error:
            raise CheckFailed(f"record {i + 1} of the certificate: {error}") from None
        except MALFORMED as error:
            raise CheckFailed(f"record {i + 1} of the certificate cannot be read: {error}") from None
    reader.arrive(optimized)
    return reader.found


def _same_border(original: Model, optimized: Model) -> None:
    a, b = ([(n.attr("name"), n.type) for n in m.graph.inputs] for m in (original, optimized))
    if a != b:
        first, second = (", ".join(f"{name}: {type}" for name, type in each) for each in (a, b))
        raise CheckFailed(f"the models have different inputs: {first} against {second}")
    if original.output_names != optimized.output_names:
        raise CheckFailed(f"the models have different outputs: {original.output_names} and {optimized.output_names}")


class _Reader:
    def __init__(self, original: Model, certificate: Mapping[str, Any], judge: Judge) -> None:
        self.original, self.judge = original, judge
        self.equalities = certificate.get("equalities", [])
        self.found = Followed()
        self.weights: dict[str, Array] = {name: w.numpy() for name, w in original.weights.items()}
        self.terms: list[Node] = []
        self._numbers: dict[Node, int] = {}
        self._equal: list[tuple[Node, Node]] = []
        self._sides: dict[int, Instance] = {}
        self._add(original.graph.outputs)

    def _add(self, outputs: Sequence[Node]) -> None:
        for node in topological(outputs):
            if node not in self._numbers:
                self._numbers[node] = len(self.terms)
                self.terms.append(node)

    def _term(self, number: Any) -> Node:
        if type(number) is not int or not 0 <= number < len(self.terms):
            raise CheckFailed(f"there is no term {number!r}")
        return self.terms[number]

    def _union(self, old: Node, new: Node) -> None:
        if old.type != new.type:
            raise CheckFailed(f"a term of type {old.type} became one of type {new.type}")
        self._equal.append((old, new))
        self._add((old, new))

    def read(self, record: Sequence[Any]) -> None:
        """One record: what it makes, and what it says is equal."""
        kind, *rest = record
        reads: dict[str, Callable[..., None]] = {
            "term": self._like,
            "leaf": self._leaf,
            "equal": self._proved,
            "computed": self._computed,
            "folded": self._folded,
            "halves": self._halves,
        }
        if kind not in reads:
            raise CheckFailed(f"{kind!r} is no kind of record")
        reads[kind](*rest)

    def _like(self, like: int, args: Sequence[int]) -> None:
        model, operands = self._term(like), tuple(self._term(a) for a in args)
        if [a.type for a in operands] == [a.type for a in model.args]:
            self._add((with_args(model, operands),))
        else:
            self._add((get(model.op).term(*operands, **dict(model.attrs)),))

    def _leaf(self, text: str) -> None:
        (node,) = parse_graph(text).outputs
        if any(n.op in ("input", "weight", "opaque") for n in topological([node])):
            raise CheckFailed("a leaf that is no constant")
        self._add((node,))

    def _proved(self, index: int, places: Mapping[str, int]) -> None:
        instance = self._checked(index)
        cut: dict[Node, Node] = {}
        for leaf in instance.leaves:
            there = self._term(places[leaf.attr("name")])
            if there.type != leaf.type:
                raise CheckFailed(
                    f"the operand {leaf.attr('name')} is {leaf.type} in the equality and {there.type} here"
                )
            cut[leaf] = there
        done = dict(cut)
        for node in topological((*instance.lhs, *instance.rhs), stop=cut):
            done[node] = with_args(node, tuple(done[a] for a in node.args))
        for old, new in zip(instance.lhs, instance.rhs, strict=True):
            self._union(done[old], done[new])
        self._add([done[n] for n in instance.lhs])
        self._add([done[n] for n in instance.rhs])
        self.found.places += 1

    def _checked(self, index: int) -> Instance:
        """An equality, judged when it is first used."""
        if index not in self._sides:
            equality = self.equalities[index]
            instance = _instance(equality["lhs"], equality["rhs"])
            case = equality.get("case")
            lhs, rhs = equality["lhs"], equality["rhs"]
            if case is not None and equality["proof"] != CHECK:
                sizes = {name: parse_dim(text) for name, text in case["sizes"].items()}
                if resized_instance(_instance(case["lhs"], case["rhs"]), sizes) != instance:
                    raise CheckFailed(f"equality {index + 1} is not of its case")
                lhs, rhs = case["lhs"], case["rhs"]
            ground = self.judge(equality["proof"], lhs, rhs)
            self.found.equalities[ground] += 1
            if ground != CHECKED:
                names = " and ".join(map(str, equality.get("equations", ()))) or f"equality {index + 1}"
                self.found.alone[names] = undecided(lhs, rhs)
            self._sides[index] = instance
        return self._sides[index]

    # ------------------------------------------------------------ weights

    def _value(self, node: Node) -> Array:
        leaves = {n: EXACT.load(self.weights[n.attr("name")]) for n in topological([node]) if n.op == "weight"}
        value = interpret([node], EXACT, leaves)[node]
        array = np.ascontiguousarray(np.broadcast_to(value, value.shape)).astype(numpy_dtype(node.dtype))
        return array.reshape([int(d) for d in node.shape])

    def _computed(self, number: int, name: str) -> None:
        old = self._term(number)
        if name in self.weights:
            raise CheckFailed(f"the weight {name!r} is there already")
        self.weights[name] = self._value(old)
        self._union(old, weight(name, old.tensor))
        self.found.computed += 1

    def _folded(self, number: int) -> None:
        old = self._term(number)
        self._union(old, fold_small(old))
        self.found.computed += 1

    def _halves(self, number: int, name: str) -> None:
        old = self._term(number)
        array = self.weights[old.attr("name")]
        half = array.shape[-1] // 2
        if not half or array.shape[-1] % 2 or not np.array_equal(array[..., :half], array[..., half:]):
            raise CheckFailed(f"the halves of {old.attr('name')!r} are not equal")
        if name in self.weights:
            raise CheckFailed(f"the weight {name!r} is there already")
        self.weights[name] = array[..., :half]
        part = weight(name, Tensor(old.dtype, (*old.shape[:-1], half)))
        self._union(old, get("concat").term(part, part, axis=old.tensor.rank - 1))
        self.found.computed += 1

    # ------------------------------------------------------------ the end

    def arrive(self, optimized: Model) -> None:
        """Whether the optimized model's outputs are in the classes of the original's."""
        there = self._renamed(optimized)
        self._add(there)
        classes = _Classes(self.terms)
        for old, new in self._equal:
            classes.union(old, new)
        classes.close()
        self.found.terms = len(self.terms)
        names = zip(self.original.output_names, self.original.graph.outputs, there, strict=True)
        for name, old, new in names:
            if classes.find(old) is not classes.find(new):
                raise CheckFailed(f"the certificate does not lead to the output {name!r} of the optimized model")

    def _renamed(self, optimized: Model) -> tuple[Node, ...]:
        """The optimized model's outputs over weights that are named as those of equal content
        here."""
        here: dict[str, Node] = {}
        for name, array in self.weights.items():
            here.setdefault(_digest(array), weight(name, Tensor(array.dtype.name, array.shape)))
        for node in [n for n in self.terms if n.op == "weight"]:
            self._equal.append((node, here[_digest(self.weights[node.attr("name")])]))
        self._add(list(here.values()))
        done: dict[Node, Node] = {}
        for node in topological(optimized.graph.outputs):
            if node.op == "weight":
                array = optimized.weights[node.attr("name")].numpy()
                done[node] = here.get(_digest(array)) or weight(f"optimized {node.attr('name')}", node.tensor)
            else:
                done[node] = with_args(node, tuple(done[a] for a in node.args))
                same = here.get(_digest(node.attr("value").numpy())) if node.op == "constant" else None
                if same is not None:  # a small weight is read as a constant
                    self._equal.append((node, same))
        return tuple(done[o] for o in optimized.graph.outputs)


def _instance(lhs: str, rhs: str) -> Instance:
    left, right = parse_graph(lhs), parse_graph(rhs)
    if left.inputs != right.inputs:
        raise CheckFailed("the sides of an equality have different operands")
    if any(n.op in ("weight", "opaque") for n in (*left, *right)):
        raise CheckFailed("an equality holds for all operands, but names a weight")
    if len({n.attr("name") for n in left.inputs}) != len(left.inputs):
        raise CheckFailed("two operands of an equality have one name")
    if (left.inputs, left.outputs) != (parse_graph(show_graph(Graph(left.inputs, left.outputs))).inputs, left.outputs):
        raise CheckFailed("an equality does not print as it was read")
    return Instance(left.outputs, right.outputs)


def _digest(array: Array) -> str:
    content = np.ascontiguousarray(array)
    return hashlib.sha256(f"{content.dtype.name} {content.shape} ".encode() + content.tobytes()).hexdigest()


def _constant(node: Node) -> Node:
    """What a term without operands is (a range, say), if no size that only the run fixes is in
    it."""
    try:
        return constant(np.asarray(interpret_term(node, REALS, []), numpy_dtype(node.dtype)))
    except MALFORMED:
        return node


UNFOLDED = frozenset({"input", "weight", "constant", "absent", "opaque"})


class _Classes:
    """Classes of equal terms, closed under: equal operands give equal results."""

    def __init__(self, terms: Sequence[Node]) -> None:
        self.terms = list(terms)
        self.order = {n: i for i, n in enumerate(self.terms)}
        self.parent: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        root = node
        while root in self.parent:
            root = self.parent[root]
        while node is not root:
            self.parent[node], node = root, self.parent[node]
        return root

    def union(self, a: Node, b: Node) -> bool:
        a, b = self.find(a), self.find(b)
        if a is b:
            return False
        first, second = (a, b) if self.order[a] < self.order[b] else (b, a)
        self.parent[second] = first
        return True

    def close(self) -> None:
        """Rounds until nothing is merged; operands have smaller numbers, so few are needed."""
        changed = True
        while changed:
            changed = False
            seen: dict[Any, Node] = {}
            for node in self.terms:
                if node.args:
                    key = (node.op, node.attrs, tuple([self.find(a) for a in node.args]))
                    changed |= self.union(seen.setdefault(key, node), node)
                if node.op not in UNFOLDED:
                    folded = fold_small(node) if node.args else _constant(node)
                    if folded is not node and folded in self.order:
                        changed |= self.union(node, folded)


# ---------------------------------------------------------------- what an equality stands on


def undecided(lhs: str, rhs: str) -> str:
    """Why the checker does not decide an equality."""
    found = checker.check(lhs, rhs)
    return found.reason.removeprefix("Unsupported: ") if isinstance(found, checker.Refused) else ""


class CaseJudge:
    """What an equality stands on: the small checker, else a proof found again, else numbers.

    `strict`: only what the checker accepts.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict

    def __call__(self, kind: str, lhs: str, rhs: str) -> str:
        found = checker.check(lhs, rhs)
        if isinstance(found, checker.Accepted):
            return CHECKED
        if self.strict:
            raise CheckFailed(f"the checker does not accept an equality: {found.reason}\n{lhs}{rhs}")
        instance = Instance(parse_graph(lhs).outputs, parse_graph(rhs).outputs)
        if kind != CHECK:
            if not proof(instance, BUDGET, kind == "bounded")[0]:
                raise CheckFailed(f"an equality has no proof ({found.reason}):\n{lhs}{rhs}")
            return AGAIN
        _agree(instance, lhs + rhs)
        return NUMBERS


def _agree(instance: Instance, text: str) -> None:
    """Raise CheckFailed where random inputs tell the sides apart in float64."""
    rng = np.random.default_rng(0)
    sizes = {name: 3 + i for i, name in enumerate(sorted(instance.letters))}
    for _ in range(TRIALS):
        env = {n: EXACT.load(random_array(n, rng, sizes)) for n in instance.leaves}
        values = interpret((*instance.lhs, *instance.rhs), EXACT, env, sizes=dict(sizes))
        if not all(_near(values[a], values[b]) for a, b in zip(instance.lhs, instance.rhs, strict=True)):
            raise CheckFailed(f"the sides of an equality differ on random inputs:\n{text}")


def _near(a: object, b: object) -> bool:
    pairs: Sequence[tuple[object, object]] = (
        list(zip(a, b, strict=True)) if isinstance(a, tuple) and isinstance(b, tuple) else [(a, b)]
    )
    for left, right in ((np.asarray(x), np.asarray(y)) for x, y in pairs):
        if not is_computed(left.dtype.name):
            same = bool((left == right).all())
        else:
            with np.errstate(all="ignore"):
                same = bool(np.allclose(left, right, rtol=APART, atol=APART, equal_nan=True))
        if not same:
            return False
    return True
