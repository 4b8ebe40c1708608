"""Values of many terms at once: residues in batches, by each operator's own definition, and 64-bit
fingerprints of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from taso_mirage.generate.family import Assignment, Family, TermKind
from taso_mirage.ir.dims import evaluate
from taso_mirage.ir.terms import Node, Tensor, is_float, topological
from taso_mirage.meanings.field import Field, Residues, mixed_bits
from taso_mirage.meanings.residues import MODULI
from taso_mirage.operators.interpret import interpret

_Array = NDArray[np.integer]
CHUNK = 1 << 21
"""The number of residues of one result that are computed at a time; temporaries take about ten
times their bytes."""


class TermValues:
    """The residues of all kept terms at one assignment of sizes: by kind an array (2, terms,
    trials, elements) of uint16."""

    def __init__(self, family: Family, assignment: Assignment, seed: int) -> None:
        self.sizes, self.trials = dict(assignment.sizes), assignment.trials
        self.field = Field(assignment.trials, seed)
        self.store: dict[TermKind, _Array] = {}
        self._seed, self._forms = seed, dict[int, NDArray[np.uint64]]()

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The sizes of a type at this assignment."""
        return tuple(evaluate(d, self.sizes) for d in tensor.shape or ())

    def fresh(self, kind: TermKind) -> _Array:
        """Random residues of an input.

        In half of the trials all residues have one sign (residues above p/2 are negative).
        Otherwise the largest of many numbers would hardly ever be negative, and
        max_pool(max_pool(x)) = max_pool(max_pool(relu(x))) would pass.
        """
        data = self.field.fresh(Tensor(kind.tensor.dtype, self.shape(kind.tensor))).data.reshape(2, self.trials, -1)
        if not is_float(kind.tensor.dtype):
            return data.reshape(2, 1, self.trials, -1).astype(np.uint16)
        half = int(MODULI[0]) // 2
        signs = np.arange(self.trials) if data.shape[-1] == 1 else self.field.rng.permutation(self.trials)
        for trial, sign in enumerate(signs % (2 if data.shape[-1] == 1 else 4)):
            if sign < 2:
                data[0, trial] = data[0, trial] % half + sign * (half + 1)
        return data.reshape(2, 1, self.trials, -1).astype(np.uint16)

    def compute(self, term: Node, kinds: Mapping[str, TermKind], rows: Sequence[_Array]) -> _Array:
        """The residues of `term` on operands by name, whose rows are in `rows`: (2, n, trials,
        elements) of uint16."""
        n = len(rows[0]) if rows else 1
        wide = self.field.repeated(n)
        loaded = {name: self._load(kind, row) for (name, kind), row in zip(kinds.items(), rows, strict=True)}
        env = {leaf: loaded[leaf.attr("name")] for leaf in topological([term]) if leaf.op == "input"}
        result: Residues = interpret([term], wide, env, sizes=self.sizes)[term]
        return result.data.reshape(2, n, self.trials, -1).astype(np.uint16)

    def full(self, term: Node, kinds: Mapping[str, TermKind]) -> bool:
        """Whether the residue modulo q of a result is defined: not behind an exp (Mirage section
        5)."""
        narrow = Field(1)
        env = {}
        for leaf in topological([term]):
            if leaf.op == "input":
                kind = kinds[leaf.attr("name")]
                value = narrow.fresh(Tensor(kind.tensor.dtype, self.shape(kind.tensor)))
                env[leaf] = replace(value, full=kind.full)
        result: Residues = interpret([term], narrow, env, sizes=self.sizes)[term]
        return result.full

    def _load(self, kind: TermKind, rows: _Array) -> Residues:
        data = self.store[kind][:, rows].astype(np.int64)
        trials = len(rows) * self.trials
        return Residues(
            data.reshape(2, trials, *self.shape(kind.tensor)), kind.tensor.dtype, kind.full, np.ones(trials, bool)
        )

    def keep(self, kind: TermKind, data: _Array) -> int:
        """Append rows of a kind; returns the number of the first one."""
        old = self.store.get(kind)
        self.store[kind] = data if old is None else np.concatenate([old, data], axis=1)
        return 0 if old is None else old.shape[1]

    def hashes(self, kind: TermKind, data: _Array) -> NDArray[np.uint64]:
        """A 64-bit fingerprint of every row: a random linear form of its residues, mixed."""
        sides = 2 if kind.full else 1
        flat = data[:sides].transpose(1, 0, 2, 3).reshape(data.shape[1], -1)
        form = self._form(flat.shape[1])
        return mixed_bits((flat.astype(np.uint64) * form).sum(axis=1, dtype=np.uint64))

    def _form(self, n: int) -> NDArray[np.uint64]:
        if n not in self._forms:
            rng = np.random.default_rng((self._seed, n))
            self._forms[n] = rng.integers(0, 1 << 63, n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        return self._forms[n]
