"""Layers of experts (Shazeer et al., ICLR'17), the goals of kernels that compute of each expert
only the rows of those tokens that have a share of it.

A model writes such a layer in one of two ways. Either it computes every expert for every token, and
adds the results by shares that are zero but for a few. Or it gathers the weights of the chosen
experts for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, variable
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.ops import term

SMALL = 3, 3, 2, 2, 2
"""Tokens, experts, width, hidden width and columns of the results where the field tests a layer."""


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """A product of all experts: its weights (e,k,n), or (e,n,k) if `transposed`, and biases (e,n),
    or ABSENT. Every `step`-th column from `start` on is read."""

    w: Node
    b: Node = ABSENT
    transposed: bool = False
    start: int = 0
    step: int = 1

    @property
    def sizes(self) -> tuple[int, int]:
        """k and n"""
        k, n = map(int, self.w.shape[:0:-1] if self.transposed else self.w.shape[1:])
        return k, n

    def every(self, x: Node, count: Dim) -> Node:
        """(t,k) or (e,t,k) -> (e,t,count)"""
        y = term("matmul", x, term("transpose", self.w, perm=(0, 2, 1)) if self.transposed else self.w)
        y = y if self.b is ABSENT else term("add", y, term("unsqueeze", self.b, axes=(1,)))
        return self._read(y, count)

    def chosen(self, x: Node, indices: Node, count: Dim) -> Node:
        """(t,1,1,k) or (t,s,1,k), the experts of each token (t,s) -> (t,s,1,count)"""
        w = term("gather", self.w, indices, axis=0)
        y = term("matmul", x, term("transpose", w, perm=(0, 1, 3, 2)) if self.transposed else w)
        if self.b is not ABSENT:
            y = term("add", y, term("unsqueeze", term("gather", self.b, indices, axis=0), axes=(2,)))
        return self._read(y, count)

    def weights(self, name: str, sizes: tuple[int, int, int]) -> Node:
        """A leaf for weights of e, k and n."""
        e, k, n = sizes
        return variable(name, Tensor(self.w.dtype, (e, n, k) if self.transposed else (e, k, n)))

    def _read(self, y: Node, count: Dim) -> Node:
        if (self.start, self.step) == (0, 1) and y.shape[-1] == count:
            return y
        end = self.start + (count - 1) * self.step + 1
        axis = len(y.shape) - 1
        return term("slice", y, axes=(axis,), starts=(self.start,), ends=(end,), steps=(self.step,))


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """A layer of experts: the results of `last` of the function `hidden` of the `products` of x, by
    the shares.

    `shares`: (t,e), or (e,t) if `by_expert`; with `chosen`, indices of experts (t,s), they are
    (t,s).
    """

    x: Node
    shares: Node
    products: tuple[ExpertProduct, ...]
    hidden: Graph
    last: ExpertProduct
    chosen: Node = ABSENT
    by_expert: int = 0

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [a for each in (*self.products, self.last) for a in (each.w, each.b) if a is not ABSENT]

    @property
    def leaves(self) -> tuple[Node, ...]:
        """All operands, each once."""
        given = [self.x, self.shares, self.chosen, *self.known]
        return tuple(dict.fromkeys(each for each in given if each is not ABSENT))

    @property
    def goal(self) -> Node:
        """The layer in operators of ONNX."""
        width, n = self.last.sizes
        x = self.x if len(self.x.shape) == 2 else term("reshape", self.x, shape=self._matrix(self.x))
        if self.chosen is ABSENT:
            made = [each.every(x, width) for each in self.products]
            y = self.last.every(self._hidden(made), n)
            shares = self.shares if self.by_expert else term("transpose", self.shares, perm=(1, 0))
            return _weighted(y, shares, 0)
        x = term("unsqueeze", x, axes=(1, 2))
        made = [each.chosen(x, self.chosen, width) for each in self.products]
        y = self.last.chosen(self._hidden(made), self.chosen, n)
        return _weighted(term("squeeze", y, axes=(2,)), self.shares, 1)

    def _matrix(self, x: Node) -> tuple[Dim, ...]:
        return dim_product(x.shape[:-1]), x.shape[-1]

    def _hidden(self, made: Sequence[Node]) -> Node:
        return retyped(self.hidden.outputs, dict(zip(self.hidden.inputs, made, strict=True)))[0]

    def dense_shares(self) -> Node:
        """The share of each token and expert; what a token has of an expert in several places is
        added."""
        if self.chosen is ABSENT:
            return self.shares
        numbers = constant(np.array([0, 1], self.shares.dtype))
        places = term("one_hot", self.chosen, numbers, depth=self.last.w.shape[0], axis=2)
        return term("reduce_sum", term("mul", places, term("unsqueeze", self.shares, axes=(2,))), axes=(1,), keepdims=0)

    def small(self) -> ExpertLayer:
        """This layer of few tokens and experts. Every second share is zero where they are all
        given."""
        t, e, k, f, n = SMALL
        of = ABSENT if self.chosen is ABSENT else variable("chosen", Tensor("int64", (t, 2)))
        shares = variable("shares", Tensor(self.x.dtype, (t, e) if of is ABSENT else (t, 2)))
        if of is ABSENT:
            mask = np.arange(t * e).reshape(t, e) % 2
            shares = term("mul", shares, constant(mask.astype(shares.dtype)))
            shares = term("transpose", shares, perm=(1, 0)) if self.by_expert else shares
        x = variable("x", Tensor(self.x.dtype, (*(1 for _ in self.x.shape[:-2]), t, k)))
        starts = sorted({each.start for each in self.products if each.step == 1})
        products = [
            replace(each, start=each.start if each.step > 1 else f * starts.index(each.start)) for each in self.products
        ]
        wide = max(each.start + (f - 1) * each.step + 1 for each in products)
        leaves = {each.w: each.weights(f"w{i}", (e, k, wide)) for i, each in enumerate(products)}
        leaves |= {
            b: variable(f"b{i}", Tensor(b.dtype, (e, wide)))
            for i, b in enumerate(p.b for p in products)
            if b is not ABSENT
        }
        bias = self.last.b if self.last.b is ABSENT else variable("b", Tensor(self.last.b.dtype, (e, n)))
        last = replace(self.last, w=self.last.weights("w", (e, f, n)), b=bias)
        first = tuple([replace(each, w=leaves[each.w], b=leaves.get(each.b, ABSENT)) for each in products])
        return replace(self, x=x, shares=shares, products=first, last=last, chosen=of)


def _weighted(y: Node, shares: Node, axis: int) -> Node:
    """The sum along an axis of (.., .., n) by shares (.., ..)."""
    return term("reduce_sum", term("mul", y, term("unsqueeze", shares, axes=(2,))), axes=(axis,), keepdims=0)
