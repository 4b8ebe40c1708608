"""The certificate of an optimization: every equality that leads from the original's terms to the
result's, with its proof.

A certificate is plain data. Terms have numbers: first the terms of the original in the order in
which they run, then the terms that the certificate creates. `certificates/follow.py` reads the
records in order; docs/certificates.md describes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from taso_mirage.certificates.format import CERTIFICATE_FORMAT, CHECK, PROOF, texts
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, substitute, topological, variable, with_args
from taso_mirage.onnx_io.content_terms import Opened, opened
from taso_mirage.onnx_io.written import read_as
from taso_mirage.prove.rules.cases import Instance, cut_free, dims_of_letters, resized_instance
from taso_mirage.prove.rules.proofs import CaseVerdict, Coverage, Proofs
from taso_mirage.report.changes import ChangedRegion, Heights, changed_regions, region_leaves, with_leaves
from taso_mirage.report.result import Result
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.text import show_graph
from taso_mirage.search.passes import Context, pass_order, simplify
from taso_mirage.search.steps import FOLDING, BehindLoop, BodySteps, ClosedState, RewriteStep
from taso_mirage.search.weights import HALVES
from taso_mirage.system.files import write_file
from taso_mirage.version import __version__

BARE = ("constant", "extents", "absent")


def certificate(result: Result, equations: Mapping[str, Equation], proofs: Proofs) -> dict[str, Any]:
    """The certificate of a result, as JSON data. `equations` are the equations that its steps
    name."""
    weights = {**result.weights, **result.original.weights}
    view = opened(replace(result.original, weights=weights))
    book = _Book(view.whole(), result.rules.equations, proofs)
    if result.changed:
        book.follow(view, result.unfused or result.model, result.steps, equations)
    return {
        "format": CERTIFICATE_FORMAT,
        "tool": f"taso-mirage {__version__}",
        "inputs": [str(n.type) for n in result.original.graph.inputs],
        "equalities": book.equalities,
        "records": book.records,
        "kernels": [str(each) for each in result.kernels],
    }


READ = "the same terms, as a file has them"
"""The name of the equalities of terms with those that a reader finds in their place."""


def _as_read(
    terms: Iterable[Node], opsets: Mapping[str, int], equations: Sequence[Equation], proofs: Proofs
) -> Iterator[RewriteStep]:
    """The steps between terms and those that a reader finds where they are written: by equations
    from the several terms as which one is written, where the model's opset has no operator for it;
    else by one equality, where that is proved."""
    standard, *_ = pass_order(equations, proofs)
    context = Context(opsets, {})
    for node in terms:
        body = read_as(node, opsets)
        if body is None:
            continue
        named = [a for a in dict.fromkeys(node.args) if a.op not in BARE and isinstance(a.type, Tensor)]
        cut = {arg: variable(f"operand {i}", arg.tensor) for i, arg in enumerate(named)}
        back = {leaf: arg for arg, leaf in cut.items()}
        start, end = substitute((body, node), cut)
        found, steps = simplify((start,), standard, context)
        if found != (end,):
            proved = proofs.judge(cut_free((node,), (body,), cut))
            steps = [RewriteStep((READ,), (end,), (start,), over=frozenset(back))] if proved else []
        for step in steps:
            over = None if step.over is None else frozenset(named)
            yield replace(step, old=substitute(step.old, back), new=substitute(step.new, back), over=over)


def write_certificate(path: Path, result: Result, proofs: Proofs) -> None:
    """Write the certificate of a result, atomically."""
    made = certificate(result, result.named, proofs)
    write_file(path, json.dumps(made, indent=1) + "\n")


class _Book:
    """Numbers of terms, and the records so far."""

    def __init__(self, terms: Sequence[Node], rules: Sequence[Equation], proofs: Proofs) -> None:
        self.rules, self.proofs = rules, proofs
        self.equalities: list[dict[str, Any]] = []
        self.records: list[list[Any]] = []
        self._heights = Heights()
        self._numbers: dict[Node, int] = {}
        self._like: dict[tuple[Any, ...], int] = {}
        self._written: dict[tuple[tuple[str, ...], Instance], int] = {}
        for node in topological(terms):
            self._number(node)

    def follow(self, view: Opened, end: Model, steps: Iterable[RewriteStep], equations: Mapping[str, Equation]) -> None:
        """Records of the steps to a model, or to a body, and of the changes inside of its nodes."""
        for step in steps:
            for inside in step.inside:
                self._inside(view, step.old[0], inside, equations)
            for loop in step.unrolled:
                self._unrolled(view, loop)
            for state in step.closed:
                self._closed(view, state)
            for part in step.behind:
                self._values(view, part)
            for each in (*step.obligations, *(step.details or (step,))):
                for region in changed_regions(each, equations):
                    self.enter(_seen(region, view))
            for part in step.behind:
                self._behind(view, part)
        terms = topological(view(end.graph.outputs))
        for step in _as_read(terms, end.opsets, self.rules, self.proofs):
            for region in changed_regions(step, equations):
                self.enter(region)

    def _unrolled(self, view: Opened, loop: Node) -> None:
        """The record of a loop whose steps are written out."""
        made = with_args(loop, view(loop.args))
        inside = [view.depth] if view.path else []
        self.records.append(["unrolled", _alone(made), [self.of(a) for a in made.args], *inside])
        for pair in view.loop_of(made).unrolled():
            self._enter(pair)

    def _closed(self, view: Opened, part: ClosedState) -> None:
        """The record of a state whose values in all steps are known."""
        result, values, before = view([part.result, part.values, part.before])
        made = view.results[result][0].without_state(part.state, values, before)
        if made is not None:
            self.records.append(["closed", self.of(result), part.state, self.of(values), self.of(before)])
            view.results.update(made.places())
            self._enter(made.terms)

    def _values(self, view: Opened, part: BehindLoop) -> None:
        """Records of the new values of states in all steps."""
        (result,) = view([part.result])
        for state in part.states:
            self.records.append(["values", self.of(result), state])
            self._enter([view.results[result][0].values_of(state)])

    def _behind(self, view: Opened, part: BehindLoop) -> None:
        """The record of a result that is computed behind its loop."""
        result, whole = view([part.result, part.whole])
        loop, index = view.results[result]
        found = loop.behind(index, part.states, whole)
        if found is not None:
            self.records.append(["behind", self.of(result), list(part.states), self.of(whole)])
            self._enter([*found, whole])

    def _inside(self, view: Opened, term: Node, done: BodySteps, equations: Mapping[str, Equation]) -> None:
        model = replace(done.body.model, weights={**done.weights, **done.body.model.weights})
        inner = view.inside(replace(done.body, model=model), term, view(term.args))
        self.follow(inner, done.model, done.steps, {**equations, **done.equations})

    def _enter(self, terms: Iterable[Node]) -> None:
        """Number terms, and those below them."""
        for node in topological(terms, stop=self._numbers):  # below a term with a number all have one
            self._number(node)

    def _number(self, node: Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self._numbers)
            self._like.setdefault(_kind(node), self._numbers[node])
        return self._numbers[node]

    def of(self, node: Node) -> int:
        """The number of a term. A term over operands that were rewritten since gets a new number
        and a record that names the term that it copies."""
        for each in topological([node], stop=self._numbers):
            like = self._like.get(_kind(each))
            if like is None or not each.args:
                # like none before: as text
                self.records.append(["leaf", _alone(each), [self._numbers[a] for a in _whole(each).args]])
            else:
                self.records.append(["term", like, [self._numbers[a] for a in each.args]])
            self._number(each)
        return self._numbers[node]

    def _is_there(self, node: Node) -> bool:
        """Whether records can name a term: each node and weight below it is like one of the model.
        A result of a loop that the model does not use is not there."""
        below = topological([node], stop=self._numbers)
        return all(_whole(n).op not in ("opaque", "weight") or _kind(n) in self._like for n in below)

    def enter(self, region: ChangedRegion) -> None:
        """Records of one region: weights that were computed in advance, or an equality between
        terms."""
        if region.equations in ((FOLDING,), (HALVES,)):
            for old, new in region.pairs:
                if not self._is_there(old):
                    continue
                kind = "halves" if region.equations == (HALVES,) else "computed" if new.op == "weight" else "folded"
                self.records.append([kind, self.of(old)])
                self._enter([new])
            return
        leaves = region_leaves(region, self._heights)
        cut = _cut(region, leaves)
        if not all(map(self._is_there, cut)):
            return
        instance = cut_free(region.olds, region.news, cut)
        index = self._equality(region.equations, instance)
        places = {leaf.attr("name"): self.of(node) for node, leaf in cut.items()}
        for node in topological(region.olds):
            self.of(node)
        self.records.append(["equal", index, places])
        self._enter(region.news)

    def _equality(self, equations: tuple[str, ...], instance: Instance) -> int:
        key = (equations, instance)
        if key not in self._written:
            self._written[key] = len(self.equalities)
            self.equalities.append(_written(equations, instance, self.proofs.judge(instance)))
        return self._written[key]


def _seen(region: ChangedRegion, view: Opened) -> ChangedRegion:
    """A region of a model, in terms that are equal for two loads."""
    pairs = tuple(zip(view(region.olds), view(region.news), strict=True))
    operands = None if region.operands is None else frozenset(view(region.operands))
    return ChangedRegion(region.equations, pairs, operands)


def _kind(node: Node) -> tuple[Any, ...]:
    """The facts that a term shares with those that it can be a copy of. Other operands may give an
    operator another type; a node without a definition has the types of its operands."""
    types = tuple([a.type for a in node.args]) if node.op == "opaque" else ()
    return node.op, node.attrs, types


def _whole(node: Node) -> Node:
    """The operator of a term: for one of several results the operator that has them."""
    return node.args[0] if node.op == "item" else node


def _alone(node: Node) -> str:
    """One term as a function of the operands of its operator."""
    cut = tuple(variable(f"x{i}", arg.tensor) for i, arg in enumerate(_whole(node).args))
    made = with_args(_whole(node), cut)
    return show_graph(Graph(cut, (with_args(node, (made,)) if node.op == "item" else made,)))


def _written(equations: Sequence[str], instance: Instance, verdict: CaseVerdict) -> dict[str, Any]:
    lhs, rhs = texts(instance)
    found: dict[str, Any] = {"equations": list(equations), "lhs": lhs, "rhs": rhs}
    if not verdict:
        return {**found, "proof": CHECK, "why": verdict.why}
    found["proof"] = "bounded" if verdict.covers is Coverage.HERE else PROOF
    if verdict.case.instance != instance:
        case_lhs, case_rhs = texts(verdict.case.instance)
        sizes = dims_of_letters(verdict.case.instance, instance)
        if resized_instance(verdict.case.instance, sizes) == instance:
            found["case"] = {"lhs": case_lhs, "rhs": case_rhs, "sizes": {k: str(v) for k, v in sizes.items()}}
    return found


def _cut(region: ChangedRegion, leaves: frozenset[Node]) -> dict[Node, Node]:
    """Leaves with names in the order in which they are met; constants and sizes are unchanged."""
    cut: dict[Node, Node] = {}
    for node in with_leaves((*region.olds, *region.news), leaves):
        if node in leaves and node.op not in BARE and node is not ABSENT and isinstance(node.type, Tensor):
            cut.setdefault(node, variable(f"x{len(cut)}", node.type))
    return cut
