"""Following a certificate from the original's terms to the optimized model's, without search and
without trust in the optimizer.

Each record claims one equality. Terms are put into classes: by proofs, and because equal operands
give equal results. The certificate holds if every output of the optimized model is then in the
class of the original's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taso_mirage.certificates.border import same_border
from taso_mirage.certificates.classes import MALFORMED_DATA, EqualTerms
from taso_mirage.certificates.format import CERTIFICATE_FORMAT, CHECK, PROOF, texts
from taso_mirage.certificates.judge import CHECKED, Judge, undecided
from taso_mirage.certificates.known import KnownValues, single
from taso_mirage.errors import CheckFailed, Unsupported
from taso_mirage.ir.dims import parse_dim
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, numpy_dtype, topological, weight, with_args
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.reals import EXACT
from taso_mirage.onnx_io.content import array_digest
from taso_mirage.onnx_io.content_terms import Opened, matching, opened
from taso_mirage.onnx_io.opened_loops import LoopWithoutState, OpenedLoop, ResultsOfLoops, changes_in_steps
from taso_mirage.onnx_io.read_again import over_weights
from taso_mirage.onnx_io.written import has_definition, written_as
from taso_mirage.operators.folding import SMALL
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get, traits
from taso_mirage.operators.work import count
from taso_mirage.prove.rules.cases import Instance, resized_instance
from taso_mirage.prove.rules.proofs import emptied
from taso_mirage.rewriting.folding import fold_constants
from taso_mirage.rewriting.text import parse_graph, show_graph

Results = Mapping[Node, tuple[OpenedLoop, int]]
"""The results of loops, with their places."""
STATES = 3
"""The largest number of states of loops that are followed in every order."""
DEEPEST = 64
"""The most levels of bodies."""


@dataclass
class Followed:
    """The number of equalities by their ground, and of the places at which they were used."""

    equalities: Counter[str] = field(default_factory=Counter)
    alone: dict[str, str] = field(default_factory=dict)
    """The equations that the checker does not decide, by name, and why not."""
    places: int = 0
    computed: int = 0
    terms: int = 0


def follow(original: Model, optimized: Model, certificate: Mapping[str, Any], judge: Judge) -> Followed:
    """Check every record, and that the records lead from one model to the other.

    CheckFailed names the wrong record.
    """
    if certificate.get("format") != CERTIFICATE_FORMAT:
        said = str(certificate.get("format", "none"))[:60]
        raise CheckFailed(
            f"the certificate's format is {said}, this version reads {CERTIFICATE_FORMAT}: write it anew by `optimize --certificate`"
        )
    same_border(original, optimized)
    records, equalities = certificate.get("records"), certificate.get("equalities")
    if not isinstance(records, list) or not isinstance(equalities, list):
        raise CheckFailed("the certificate has no list of records, or none of equalities")
    reader = _Reader(original, equalities, judge)
    for i, record in enumerate(records):
        try:
            reader.read(record)
        except CheckFailed as error:
            raise CheckFailed(f"record {i + 1} of the certificate: {error}") from None
        except MALFORMED_DATA as error:
            raise CheckFailed(f"record {i + 1} of the certificate cannot be read: {error}") from None
    reader.arrive(optimized)
    return reader.found


class _Reader:
    def __init__(self, original: Model, equalities: Sequence[Any], judge: Judge) -> None:
        self.judge, self.equalities = judge, equalities
        self.found = Followed()
        view = opened(original)
        self.outputs = list(zip(original.output_names, view(original.graph.outputs), strict=True))
        self.draws = single(view)
        self.known = KnownValues(original, view)
        self.view, self.loops = view, view.results
        self.weights = view.arrays
        """By the digests of their content."""
        self.terms: list[Node] = []
        self._numbers: dict[Node, int] = {}
        self._equal: list[tuple[Node, Node]] = []
        self._without: list[LoopWithoutState] = []
        self._sides: dict[int, Instance] = {}
        self._add(view.whole())

    def _add(self, outputs: Iterable[Node]) -> None:
        for node in topological(outputs, stop=self._numbers):  # below a term with a number all have one
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
        """One record: the terms that it makes, and the equality that it states."""
        kind, *rest = record
        reads: dict[str, Callable[..., None]] = {
            "term": self._like,
            "leaf": self._leaf,
            "equal": self._proved,
            "computed": self._computed,
            "folded": self._folded,
            "halves": self._halves,
            "unrolled": self._unrolled,
            "values": self._values,
            "closed": self._closed,
            "behind": self._behind,
        }
        if kind not in reads:
            raise CheckFailed(f"{kind!r} is no kind of record")
        reads[kind](*rest)

    def _like(self, like: int, args: Sequence[int]) -> None:
        model, operands = self._term(like), tuple(self._term(a) for a in args)
        if [a.type for a in operands] == [a.type for a in model.args]:
            self._add((with_args(model, operands),))
        elif model.op == "opaque":
            raise CheckFailed(f"the node {model.attr('call')} is like none over operands of these types")
        else:
            self._add((get(model.op).term(*operands, **dict(model.attrs)),))

    def _leaf(self, text: str, args: Sequence[int]) -> None:
        graph = parse_graph(text)
        (node,) = graph.outputs
        if any(n.op in ("weight", "opaque") for n in graph):
            raise CheckFailed("a term that names a weight, or a node without a definition")
        cut = self._cut(graph.inputs, [self._term(a) for a in args])
        self._add(_over((node,), cut))

    def _cut(self, leaves: Sequence[Node], terms: Sequence[Node]) -> dict[Node, Node]:
        """Substitute terms for operands of the same types."""
        for leaf, there in zip(leaves, terms, strict=True):
            if there.type != leaf.type:
                name = leaf.attr("name")
                raise CheckFailed(f"the operand {name} is {leaf.type} in the equality and {there.type} here")
        return dict(zip(leaves, terms, strict=True))

    def _proved(self, index: int, places: Mapping[str, int]) -> None:
        instance = self._checked(index)
        leaves = instance.leaves
        cut = self._cut(leaves, [self._term(places[leaf.attr("name")]) for leaf in leaves])
        olds, news = _over(instance.lhs, cut), _over(instance.rhs, cut)
        for old, new in zip(olds, news, strict=True):
            self._union(old, new)
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
                if any(isinstance(size, int) and size < 1 for size in sizes.values()):
                    raise CheckFailed(f"equality {index + 1}: the letters of a case stand for sizes of at least 1")
                if resized_instance(_instance(case["lhs"], case["rhs"]), sizes) != instance:
                    raise CheckFailed(f"equality {index + 1} is not of its case")
                if not undecided(case["lhs"], case["rhs"]) or undecided(lhs, rhs):  # else at these sizes alone
                    lhs, rhs = case["lhs"], case["rhs"]
            try:
                ground = self.judge(equality["proof"], lhs, rhs)
                self._judge_empty(instance)
            except CheckFailed as error:
                raise CheckFailed(f"equality {index + 1}, {_named(equality)}: {error}") from None
            self.found.equalities[ground] += 1
            if ground != CHECKED:
                self.found.alone[_named(equality)] = undecided(lhs, rhs)
            self._sides[index] = instance
        return self._sides[index]

    def _judge_empty(self, instance: Instance) -> None:
        """A dynamic dim may be 0."""
        for empty in emptied(instance):
            if empty is None:
                raise CheckFailed("its right side has no type where a size is 0")
            if _says_something(empty):
                self.judge(PROOF, *texts(empty))

    # ------------------------------------------------------------ loops

    def _loop(self, number: int) -> tuple[OpenedLoop, int]:
        """The loop of the original with this result, and the place of the result."""
        found = self.loops.get(self._term(number))
        if found is None:
            raise CheckFailed(f"term {number} is no result of a loop of the original")
        return found

    def _unrolled(self, text: str, args: Sequence[int], depth: int = 1) -> None:
        """A loop of a known number of steps, and its steps written out. In a body so many levels
        inside of the model, its operands may be terms of the steps around it."""
        if type(depth) is not int or not 1 <= depth <= DEEPEST:
            raise CheckFailed(f"there is no level {depth!r}")
        graph = parse_graph(text)
        (node,) = graph.outputs
        if any(n.op in ("weight", "opaque") for n in graph) or traits(node).lowering is not Lowering.STEPS:
            raise CheckFailed("a term that is no loop, or that names a weight or a node without a definition")
        body = node.attr("body")
        if node.args != graph.inputs or any(n.op in ("weight", "opaque") for n in body):
            raise CheckFailed("a loop over other terms than its operands, or whose body names a weight")
        if any(n.op == "input" and n not in body.inputs for n in body):
            raise CheckFailed("a loop whose body names a variable that is none of its operands")
        operands = self._cut(graph.inputs, [self._term(a) for a in args])
        if any(changes_in_steps(each, depth) for each in ResultsOfLoops(depth).outside(operands.values())):
            raise CheckFailed("a loop over terms of the steps of another loop")
        for result, steps in self.view.at(depth).loop_of(_over((node,), operands)[0]).unrolled():
            self._union(result, steps)

    def _values(self, number: int, state: int) -> None:
        loop, _ = self._loop(number)
        if type(state) is not int or not 0 <= state < len(loop.firsts):
            raise CheckFailed(f"the loop has no state {state!r}")
        self._add((loop.values_of(state),))

    def _behind(self, number: int, states: Sequence[int], whole: int) -> None:
        loop, index = self._loop(number)
        if any(type(k) is not int or not 0 <= k < len(loop.firsts) for k in states) or index < len(loop.firsts):
            raise CheckFailed("a result that is no value of all steps, or states that the loop does not have")
        found = loop.behind(index, states, self._term(whole))
        if found is None:
            raise CheckFailed("a result that depends on states, or another term in each step")
        self._union(self._term(number), found[0])
        self._union(found[1], self._term(whole))

    def _closed(self, number: int, state: int, values: int, before: int) -> None:
        loop, _ = self._loop(number)
        if type(state) is not int or not 0 <= state < len(loop.firsts):
            raise CheckFailed(f"the loop has no state {state!r}")
        made = loop.without_state(state, self._term(values), self._term(before))
        if made is None:
            raise CheckFailed(f"values of the state {state} that are others in each step, or of another type")
        self._without.append(made)
        self.loops.update(made.places())
        self._add(made.terms)

    # ------------------------------------------------------------ weights

    def _weight(self, array: Array) -> Node:
        """The leaf of an array that was computed here."""
        name = array_digest(array)
        self.weights.setdefault(name, StoredWeight(array))
        return weight(name, Tensor(array.dtype.name, array.shape))

    def _computed(self, number: int) -> None:
        old = self._term(number)
        order = topological([old])
        leaves = {n: EXACT.load(self.weights[n.attr("name")].numpy()) for n in order if n.op == "weight"}
        value = interpret([old], EXACT, leaves)[old]
        array = np.ascontiguousarray(np.broadcast_to(value, value.shape)).astype(numpy_dtype(old.dtype))
        self._union(old, self._weight(array.reshape([int(d) for d in old.shape])))
        self.found.computed += 1

    def _folded(self, number: int) -> None:
        old = self._term(number)
        self._union(old, fold_constants(old))
        self.found.computed += 1

    def _halves(self, number: int) -> None:
        old = self._term(number)
        array = self.weights[old.attr("name")].numpy()
        half = array.shape[-1] // 2
        if not half or array.shape[-1] % 2 or array[..., :half].tobytes() != array[..., half:].tobytes():
            raise CheckFailed(f"the halves of term {number} are not equal")
        part = self._weight(np.ascontiguousarray(array[..., :half]))
        self._union(old, get("concat").term(part, part, axis=old.tensor.rank - 1))
        self.found.computed += 1

    # ------------------------------------------------------------ the end

    def arrive(self, optimized: Model) -> None:
        """Whether the optimized model's outputs are in the classes of the original's."""
        view = self._opened(optimized)
        there = view(optimized.graph.outputs)
        self._add(there)
        renamed = [*view.renumbered(STATES)]
        self._add(each for pair in renamed for each in pair)
        classes = self._classes(optimized.opsets, renamed, view.results)
        while self._first_apart(classes, there) is not None and (again := self.known.read_again(classes)):
            self._add(each for pair in again for each in pair)
            self._equal += again
            classes = self._classes(optimized.opsets, renamed, view.results)
        self.found.terms = len(self.terms)
        if (name := self._first_apart(classes, there)) is not None:
            raise CheckFailed(f"the certificate does not lead to the output {name!r} of the optimized model")

    def _first_apart(self, classes: EqualTerms, there: Sequence[Node]) -> str | None:
        """The first output that is not in the class of the original's."""
        pairs = zip(self.outputs, there, strict=True)
        return next((name for (name, old), new in pairs if classes.find(old) is not classes.find(new)), None)

    def _classes(self, opsets: Mapping[str, int], renamed: Sequence[tuple[Node, Node]], results: Results) -> EqualTerms:
        """The classes of all terms, closed."""
        defined = [*self._defined(opsets)]
        self._add(new for _, new in defined)
        read = [*self._read_again(opsets)]
        self._add(new for _, new in read)
        alike = [*self._alike()]
        self._add(new for _, new in alike)
        classes = EqualTerms(self.terms)
        for old, new in (*self._equal, *renamed, *defined, *read, *alike):
            classes.union(old, new)
        self._close(classes, {**self.loops, **results})
        return classes

    def _close(self, classes: EqualTerms, results: Results) -> None:
        """Close the classes, also under the equalities of loops."""
        classes.close()
        while self._without_states(classes) or _of_fewer_states(classes, results):
            classes.close()

    def _without_states(self, classes: EqualTerms) -> bool:
        """State the equalities of loops without a state whose conditions hold; whether there are
        any."""
        left = []
        for each in self._without:
            if all(classes.find(a) is classes.find(b) for a, b in each.conditions):
                for old, new in each.results:
                    classes.union(old, new)
            else:
                left.append(each)
        found = len(left) < len(self._without)
        self._without = left
        return found

    def _opened(self, optimized: Model) -> Opened:
        """The optimized model's terms; every node of it that draws is one of the original's."""
        view = opened(optimized)
        view(optimized.graph.outputs)
        matched = matching(self.draws, single(view))
        return opened(optimized, matched) if matched else view

    def _defined(self, opsets: Mapping[str, int]) -> Iterator[tuple[Node, Node]]:
        """Operators that the model's opset lacks, each with ONNX's own definition, as which it is
        written."""
        for node in self.terms:
            if has_definition(node):
                with suppress(Unsupported):
                    if (body := written_as(node, opsets)) is not None:
                        yield node, body

    def _read_again(self, opsets: Mapping[str, int]) -> Iterator[tuple[Node, Node]]:
        """Terms over weights, each with the one that a reader finds, which knows small weights."""
        known = {old: new for old, new in self._equal if new.op == "weight"}
        for node in self.terms:
            args = tuple(known.get(each, each) for each in node.args)
            if (found := over_weights(node, args, opsets, self.weights)) is not None:
                yield node, found

    def _alike(self) -> Iterator[tuple[Node, Node]]:
        """Weights, and constants of equal content: a small weight is read as a constant. The reader
        folds the terms over it, so it need not be one of the terms."""
        known = {n.attr("name"): n for n in self.terms if n.op == "weight"}
        for name, node in known.items():
            if name in self.weights and count(node.tensor) <= SMALL:
                yield node, constant(self.weights[name].numpy())
        for node in self.terms:
            if node.op == "constant" and (same := known.get(array_digest(node.attr("value").numpy()))) is not None:
                yield node, same


def _of_fewer_states(classes: EqualTerms, results: Results) -> bool:
    """State that loops have the results of those whose steps have equal outputs that read fewer
    states; whether one of these is new."""
    loops = {id(loop): loop for loop, _ in results.values()}
    made = {key: loop.of_fewer_states(classes.terms, classes.find) for key, loop in loops.items()}
    changed = False
    for node, (loop, index) in results.items():
        changed |= classes.state(node, made[id(loop)].result(index))
    return changed


def _over(outputs: Sequence[Node], cut: Mapping[Node, Node]) -> tuple[Node, ...]:
    """Terms over others in the place of their leaves."""
    done = dict(cut)
    for node in topological(outputs, stop=cut):
        done[node] = with_args(node, tuple(done[a] for a in node.args))
    return tuple(done[o] for o in outputs)


def _says_something(instance: Instance) -> bool:
    return any(isinstance(o.type, Tensor) and 0 not in (o.type.shape or ()) for o in instance.lhs)


def _named(equality: Mapping[str, Any]) -> str:
    """The laws that an equality is said to come from."""
    return " + ".join(map(str, equality.get("equations", ())))[:80] or "of no law"


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
