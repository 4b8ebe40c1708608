"""Fusion contexts: a term with the producers that the runtime fuses with it, a key that
distinguishes two contexts, and models of contexts for measurements."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any, TypeAlias

import numpy as np

from taso_mirage.ir.dims import fixed
from taso_mirage.ir.model import Model, StoredWeight, Weight, repeated_array
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, numpy_dtype, topological, variable, weight
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.expressions import is_weight, uniform_value
from taso_mirage.operators.ops import get
from taso_mirage.operators.work import size, sized
from taso_mirage.search.passes import Context

BLOCK = 1 << 18
"""The smallest number of elements of the block that a large weight repeats."""
UNREAD = 1 << 20
"""The number of bytes above which a weight may have no values."""
TILE = 6
"""The opset from which a weight is written as such."""
Pattern: TypeAlias = tuple[tuple[int, "Pattern"], ...]


@dataclass(frozen=True, slots=True)
class FusionContext:
    """A term, and the fusion contexts of the producers that are fused with it."""

    node: Node
    producers: tuple[FusionContext, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # computed once, because fusion contexts are the most frequent keys of a search
        object.__setattr__(self, "_hash", hash((self.node, self.producers)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def terms(self) -> set[Node]:
        """Every term of the fusion context."""
        return {self.node}.union(*(p.terms for p in self.producers))

    def pattern(self, terms: Sequence[Node]) -> Pattern:
        """Where the producers are among some terms, and theirs."""
        return tuple([(terms.index(p.node), p.pattern(terms)) for p in self.producers])

    def over(self, to: Mapping[Node, Node]) -> FusionContext:
        """The fusion context with other terms for its own."""
        return FusionContext(to[self.node], tuple(p.over(to) for p in self.producers))

    def cut(self, depth: int) -> FusionContext:
        """The fusion context up to `depth` terms in a row."""
        if not self.producers:
            return self
        return FusionContext(self.node, tuple(p.cut(depth - 1) for p in self.producers) if depth > 1 else ())


class Running:
    """The terms of a graph that run: no leaves, and nothing that depends on weights only."""

    def __contains__(self, node: object) -> bool:
        return isinstance(node, Node) and bool(node.args) and not is_weight(node)


def running(outputs: Sequence[Node]) -> list[Node]:
    return topological(outputs, stop=_Outside(Running()))


def description(fusion: FusionContext, context: Context) -> str:
    """Everything on which the time of a fusion context depends: operators, attributes, sizes, and
    which operands are weights or equal."""
    return described_terms(topological([fusion.node], stop=_Outside(fusion.terms)), (), context)


def described_terms(terms: Sequence[Node], outputs: Sequence[Node], context: Context) -> str:
    """The description of several terms in topological order, as `described` gives it for one."""
    inside = set(terms)
    numbers: dict[Node, int] = {}
    rows: list[Any] = []
    for node in terms:
        for arg in node.args:
            if arg not in inside and arg not in numbers:
                numbers[arg] = len(numbers)
                rows.append(_leaf(arg, context.sizes))
        numbers[node] = len(numbers)
        attrs = [[k, str(fixed(v, context.sizes))] for k, v in node.attrs]
        opset = context.opsets.get(get(node.op).domain)
        rows.append([node.op, [numbers[a] for a in node.args], attrs, opset])
    rows += [numbers.get(o) for o in outputs]
    return json.dumps(rows, separators=(",", ":"))


def _leaf(node: Node, sizes: Mapping[str, int]) -> str:
    if node is ABSENT:
        return "-"
    kind = "const " if is_weight(node) else ""
    value = uniform_value(node)
    return f"{kind}{sized(node.type, sizes)}{'' if value is None else f' {value:g}'}"


class _Outside:
    """Every term that is not inside."""

    def __init__(self, inside: Container[Node]) -> None:
        self.inside = inside

    def __contains__(self, node: object) -> bool:
        return node not in self.inside


def context_model(fusion: FusionContext, context: Context, copies: int = 1, valued: bool = True) -> Model:
    """A model that contains a fusion context the given number of times; see `concrete`."""
    return concrete([fusion.node] * copies, fusion.terms, context, valued)


def concrete(outputs: Sequence[Node], inside: Container[Node], context: Context, valued: bool = True) -> Model:
    """A model of terms at fixed sizes. A term that is not inside becomes a leaf; a weight has
    random values, or a large one zeros if no values are wanted. An output that occurs several times
    is computed as often, each time over separate leaves."""
    builder = _Builder(inside, context, valued)
    results: list[Node] = []
    for i, output in enumerate(outputs):
        if output in outputs[:i]:
            builder.made = {}
        results += _parts(builder(output))
    opsets = {"": 17, **context.opsets}
    return standalone(Graph(tuple(builder.inputs), tuple(results)), opsets, builder.weights)


class _Builder:
    """Terms again, over fresh leaves and at fixed sizes."""

    def __init__(self, inside: Container[Node], context: Context, valued: bool) -> None:
        self.inside, self.sizes, self.valued = inside, context.sizes, valued
        self.repeats = context.target.repeats and context.opsets.get("", 17) >= TILE
        self.rng = np.random.default_rng(0)
        self.inputs: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self.made: dict[Node, Node] = {}

    def __call__(self, output: Node) -> Node:
        for node in topological([output], stop=_Outside(self.inside)):
            if node not in self.made:
                attrs = {k: fixed(v, self.sizes) for k, v in node.attrs}
                self.made[node] = get(node.op).term(*map(self._operand, node.args), **attrs)
        return self._operand(output)

    def _operand(self, node: Node) -> Node:
        if node not in self.made:
            leaf = _fresh(node, f"a{len(self.inputs) + len(self.weights)}", self.sizes)
            if leaf.op == "input":
                self.inputs.append(leaf)
            self.made[node] = self._weight(leaf) if leaf.op == "weight" else leaf
        return self.made[node]

    def _weight(self, leaf: Node) -> Node:
        """A weight with random values. A large weight is a block that repeats along its first dim
        and that the runtime expands when it loads the model. This takes a tenth of the time of
        writing and reading all values, and runs at the same speed. On a GPU, some kernels require
        initializers."""
        if not self.valued and size(leaf.tensor) > UNREAD:
            zeros = np.zeros([int(n) for n in leaf.shape], numpy_dtype(leaf.dtype))  # no memory before a use
            self.weights[leaf.attr("name")] = StoredWeight(zeros)
            return leaf
        rows, *rest = map(int, leaf.shape) if leaf.shape else (1,)
        blocks = max(rows * prod(rest) // BLOCK, 1)
        times = gcd(rows, 1 << (blocks.bit_length() - 1))
        if self.repeats and leaf.dtype == "float32" and times > 1:
            block = weight(leaf.attr("name"), Tensor(leaf.dtype, (rows // times, *rest)))
            self.weights[leaf.attr("name")] = StoredWeight(repeated_array(block, self.rng))
            return get("tile").term(block, repeats=(times, *(1 for _ in rest)))
        self.weights[leaf.attr("name")] = StoredWeight(repeated_array(leaf, self.rng))
        return leaf


def _fresh(arg: Node, name: str, sizes: Mapping[str, int]) -> Node:
    if not arg.args and arg.op not in ("input", "weight"):  # a constant, or a range
        return arg
    return (weight if is_weight(arg) else variable)(name, sized(arg.type, sizes))


def _parts(term: Node) -> list[Node]:
    if not isinstance(term.type, tuple):
        return [term]
    return [get("item").term(term, index=i) for i in range(len(term.type))]
