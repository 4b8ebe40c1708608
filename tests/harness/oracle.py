"""Brute-force enumeration of family `taso`, written a second time to compare with
`taso_mirage.generate`: nested tuples, exact integers.

Nothing of the package is imported; of the family's file only inputs, letters and sizes are read.
Dims are polynomials of degree one as sorted (letter, coefficient) pairs, "" for the constant. A
value is (integers, e), which stands for integers / 9^e: averages are exact, and order is that of
the real numbers, not of residues.
"""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Dim = tuple[tuple[str, int], ...]
Shape = tuple[Dim, ...]
Term = Any
"""An input's name, or (operator, operand, ...)."""
NINES = 6


def dim(text: str | int) -> Dim:
    text = str(text).strip()
    return (("", int(text)),) if text.isdigit() else ((text, 1),)


def plus(a: Dim, b: Dim) -> Dim:
    total = Counter(dict(a))
    total.update(dict(b))
    return tuple(sorted(total.items()))


def quotient(a: Dim, b: Dim) -> int | Dim | None:
    """a / b where that is whole: a number if both are multiples of one thing, else (b constant) a
    dim."""
    if len(b) == 1 and b[0][0] == "":
        n = b[0][1]
        return None if any(c % n for _, c in a) else tuple((letter, c // n) for letter, c in a)
    ratios = {c / dict(b).get(letter, np.nan) for letter, c in a} if len(a) == len(b) else {0.5}
    ratio = ratios.pop() if len(ratios) == 1 else 0.5
    return int(ratio) if ratio == int(ratio if ratio == ratio else 0) else None


@dataclass(frozen=True)
class Type:
    label: str
    shape: Shape


@dataclass
class Oracle:
    """All terms up to some size with their types, cuts (axes in whose middle they may be split),
    nodes and values."""

    path: Path
    only_inputs: tuple[str, ...] = ()
    only_operators: tuple[str, ...] = ()
    inputs: dict[str, Type] = field(default_factory=dict)
    group: dict[str, int] = field(default_factory=dict)
    types: dict[Term, Type] = field(default_factory=dict)
    cuts: dict[Term, frozenset[int]] = field(default_factory=dict)
    nodes: dict[Term, frozenset[Term]] = field(default_factory=dict)
    values: dict[Term, list[tuple[np.ndarray, int]]] = field(default_factory=dict)
    keys: dict[Term, Any] = field(default_factory=dict)
    kept: list[Term] = field(default_factory=list)
    candidates: list[list[Term]] = field(default_factory=list)

    def __post_init__(self) -> None:
        data = tomllib.loads(self.path.read_text())
        self.sizes = [row["sizes"] for row in data["assignments"]]
        self.limit = data["elements"]
        rng = np.random.default_rng(1)
        for number, row in enumerate(data["inputs"]):
            dims = [d for d in row["shape"].strip("()").split(",") if d.strip()]
            for i in range(row.get("count", 1)):
                name = row["name"] + (str(i + 1) if row.get("count", 1) > 1 else "")
                if self.only_inputs and name not in self.only_inputs:
                    continue
                kind = Type(row["kind"], tuple(dim(d) for d in dims))
                self.inputs[name], self.group[name] = kind, number
                values = [(rng.integers(-40, 40, self.shape(kind, s)) * 2 + 1, 0) for s in self.sizes for _ in range(2)]
                self.add(name, kind, frozenset(), frozenset(), values)
                self.kept.append(name)

    def shape(self, kind: Type, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(sum(c * sizes.get(letter, 1) for letter, c in d) for d in kind.shape)

    def add(self, term: Term, kind: Type, cuts: frozenset[int], nodes: frozenset[Term], values: Any) -> None:
        self.types[term], self.cuts[term], self.nodes[term], self.values[term] = kind, cuts, nodes, values
        same = tuple((v * 9 ** (NINES - e)).tobytes() for v, e in values)
        self.keys[term] = (kind, same)

    # ------------------------------------------------------------ growing

    def grow(self) -> None:
        """One more operator, on kept terms whose nodes and the new one are as many as wanted; new
        classes are kept, with all members."""
        size = max(len(self.nodes[t]) for t in self.kept) + 1
        known = {self.keys[t] for t in self.kept}
        found: list[Term] = []
        for operator in self.only_operators or (*CONSTANTS, *UNARY, *BINARY):
            for args in self.operands(operator, size):
                if self.apply(operator, args, size):
                    found.append((operator, *args))
        self.candidates.append(found)
        self.kept += [t for t in found if self.keys[t] not in known]

    def operands(self, operator: str, size: int) -> list[tuple[Term, ...]]:
        if operator in CONSTANTS:
            return [()] if size == 1 else []
        if operator in UNARY:
            return [(t,) for t in self.kept if len(self.nodes[t]) == size - 1]
        pairs = itertools.permutations(self.kept, 2)
        right = [(a, b) for a, b in pairs if len(self.nodes[a] | self.nodes[b]) == size - 1]
        if operator in ("ewadd", "ewmul"):
            order = {t: i for i, t in enumerate(self.kept)}
            right = [(a, b) for a, b in right if order[a] < order[b]]
        return right

    def apply(self, operator: str, args: tuple[Term, ...], size: int) -> bool:
        types = [self.types[a] for a in args]
        if operator.startswith("enlarge") and size > 1:
            return False
        if operator.startswith("split") and int(operator[5]) not in self.cuts[args[0]]:
            return False
        kind = result_type(operator, types)
        if kind is None or np.prod(self.shape(kind, self.sizes[0])) > self.limit:
            return False
        values = [
            evaluate(operator, [self.values[a][i] for a in args], self.shape(kind, self.sizes[i // 2]))
            for i in range(2 * len(self.sizes))
        ]
        own = (operator[:6] if operator.startswith("split") else operator, *args)  # both halves of a split are one node
        nodes = frozenset([own]).union(*[self.nodes[a] for a in args])
        self.add((operator, *args), kind, cut_axes(operator, types, [self.cuts[a] for a in args]), nodes, values)
        return True

    # ------------------------------------------------------------ the comparison

    def classes(self) -> set[frozenset[Term]]:
        """Kept terms and candidates by equal values."""
        found: dict[Any, set[Term]] = defaultdict(set)
        for term in self.types:
            found[self.keys[term]].add(ordered(term))
        return {frozenset(c) for c in found.values()}

    def joins(self, limit: int) -> set[Any]:
        """Essential joins: l1 = r1 and l2 = r2 with at most so many nodes a side, both r with a
        variable that its own l lacks, sharing a node, all of their variables in l1 or l2, each l a
        smallest term of its class; canonical under renaming."""
        by_key: dict[Any, list[Term]] = defaultdict(list)
        for term in self.types:
            by_key[self.keys[term]].append(term)
        merges = [
            (left, right)
            for terms in by_key.values()
            for left, right in itertools.permutations(terms, 2)
            if self.nodes[left]
            and len(self.nodes[left]) == min(len(self.nodes[t]) for t in terms)
            and not self.nodes[left] & self.nodes[right]
            and names(right) - names(left)
        ]
        return {
            canonical((a, b, c, d), self.group)
            for (a, c), (b, d) in itertools.combinations(merges, 2)
            if self._joined(a, b, c, d, limit)
        }

    def _joined(self, a: Term, b: Term, c: Term, d: Term, limit: int) -> bool:
        left, right = self.nodes[a] | self.nodes[b], self.nodes[c] | self.nodes[d]
        few = len(left) <= limit and len(right) <= limit
        bound = names(c) | names(d) <= names(a) | names(b)
        return a != b and c != d and few and bound and bool(self.nodes[c] & self.nodes[d]) and not left & right


def names(term: Term) -> frozenset[str]:
    """The inputs of a term."""
    return frozenset([term]) if isinstance(term, str) else frozenset().union(*[names(a) for a in term[1:]])


def canonical(sides: tuple[Term, Term, Term, Term], group: dict[str, int]) -> Any:
    """The least of all renamings within the groups of inputs, and of both orders of the two
    equations."""
    used = sorted(frozenset().union(*[names(s) for s in sides]))
    groups = [[n for n in used if group[n] == g] for g in sorted({group[n] for n in used})]
    best = None
    for choice in itertools.product(*[itertools.permutations(g) for g in groups]):
        renaming = {old: f"{group[old]}.{i}" for g in choice for i, old in enumerate(g)}
        a, b, c, d = (_renamed(s, renaming) for s in sides)
        for form in ((a, b, c, d), (b, a, d, c)):
            best = form if best is None or repr(form) < repr(best) else best
    return best


def _renamed(term: Term, renaming: dict[str, str]) -> Term:
    if isinstance(term, str):
        return renaming[term]
    return ordered((term[0], *[_renamed(a, renaming) for a in term[1:]]))


CONSTANTS = ("pooling_kernel", "identity_kernel", "identity_matrix", "ones")
UNARY = (
    "relu",
    "transpose",
    "avgpool",
    "maxpool",
    "enlarge13",
    "enlarge31",
    "split00",
    "split01",
    "split10",
    "split11",
)
BINARY = ("ewadd", "ewmul", "smul", "matmul", "conv3", "conv13", "convr3", "convr13", "concat0", "concat1")
THREE, ONE, C = dim(3), dim(1), dim("c")


def ordered(term: Term) -> Term:
    """Operands of the commutative operators in one order."""
    if isinstance(term, str):
        return term
    args = tuple(ordered(a) for a in term[1:])
    return (term[0], *(sorted(args, key=repr) if term[0] in ("ewadd", "ewmul") else args))


def result_type(operator: str, types: list[Type]) -> Type | None:
    """The type of a result; None where the operator does not fit."""
    if operator in CONSTANTS:
        image = tuple(dim(d) for d in "nchw")
        shapes = {"pooling_kernel": (C, ONE, THREE, THREE), "identity_kernel": (C, C, THREE, THREE), "ones": image}
        square = (dim("k"), dim("k"))
        label = {"ones": "image", "identity_matrix": "matrix"}.get(operator, "kernel")
        return Type(label, shapes.get(operator, square))
    a = types[0]
    if len(types) == 1:
        return _unary_type(operator, a)
    b = types[1]
    if operator == "smul":
        return a if b.label == "scalar" else None
    if operator in ("ewadd", "ewmul"):
        return a if a == b else None
    if operator == "matmul":
        fits = a.label == b.label == "matrix" and a.shape[1] == b.shape[0]
        return Type("matrix", (a.shape[0], b.shape[1])) if fits else None
    if operator.startswith("conv"):
        return _conv_type(operator, a, b)
    return _concat_type(int(operator[6]), a, b)


def _unary_type(operator: str, a: Type) -> Type | None:
    if operator == "relu":
        return a if a.shape else None
    if operator == "transpose":
        return Type(a.label, a.shape[::-1]) if a.label == "matrix" else None
    if operator.endswith("pool"):
        return a if a.label == "image" else None
    if operator.startswith("enlarge"):
        small = (ONE, THREE) if operator == "enlarge13" else (THREE, ONE)
        return Type("kernel", (*a.shape[:2], THREE, THREE)) if a.label == "kernel" and a.shape[2:] == small else None
    axis = int(operator[5])
    half = tuple((letter, c // 2) for letter, c in a.shape[axis])
    return Type(a.label, (*a.shape[:axis], half, *a.shape[axis + 1 :]))


def _conv_type(operator: str, a: Type, b: Type) -> Type | None:
    window = (ONE, THREE) if operator.endswith("13") else (THREE, THREE)
    if a.label != "image" or b.label != "kernel" or b.shape[2:] != window:
        return None
    group = quotient(a.shape[1], b.shape[1])
    if group is None or group == 0:
        return None
    fits = quotient(b.shape[0], group if isinstance(group, tuple) else dim(group))
    return Type("image", (a.shape[0], b.shape[0], *a.shape[2:])) if fits else None


def _concat_type(axis: int, a: Type, b: Type) -> Type | None:
    rest = [s.shape[:axis] + s.shape[axis + 1 :] for s in (a, b)]
    if a.label != b.label or not a.shape or len(a.shape) != len(b.shape) or rest[0] != rest[1]:
        return None
    return Type(a.label, (*a.shape[:axis], plus(a.shape[axis], b.shape[axis]), *a.shape[axis + 1 :]))


def cut_axes(operator: str, types: list[Type], cuts: list[frozenset[int]]) -> frozenset[int]:
    """Where the halves of the result are functions of the halves of its operands."""
    if operator in CONSTANTS or operator.startswith("enlarge"):
        return frozenset()
    if operator == "transpose":
        return frozenset(1 - i for i in cuts[0])
    if operator == "matmul":
        return (cuts[0] & {0}) | (cuts[1] & {1})
    if operator.startswith("conv"):
        dense = types[0].shape[1] == types[1].shape[1]
        return (cuts[0] & {0}) | ({1} if 0 in cuts[1] and dense else set())
    if operator.startswith("split"):
        return cuts[0] - {int(operator[5])}
    if operator.startswith("concat"):
        axis = int(operator[6])
        return ((cuts[0] | cuts[1]) - {axis}) | ({axis} if types[0] == types[1] else set())
    return cuts[0] | cuts[1] if operator in ("ewadd", "ewmul") else cuts[0]


# ---------------------------------------------------------------- values


def evaluate(operator: str, args: list[tuple[np.ndarray, int]], shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """The result at one assignment, of the given shape."""
    if operator in CONSTANTS:
        return _constant(operator, shape)
    a, e = args[0]
    if len(args) == 1:
        return _unary(operator, a, shape), e + (operator == "avgpool")
    b, f = args[1]
    if operator in ("ewadd", "concat0", "concat1"):
        top = max(e, f)
        a, b = a * 9 ** (top - e), b * 9 ** (top - f)
        return (a + b if operator == "ewadd" else np.concatenate([a, b], int(operator[6]))), top
    if operator in ("ewmul", "smul"):
        return a * b, e + f
    result = a @ b if operator == "matmul" else _conv(a, b)
    return np.maximum(result, 0) if operator.startswith("convr") else result, e + f


def _constant(operator: str, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    value = np.ones(shape, np.int64)
    if operator == "identity_matrix":
        value = np.eye(shape[0], dtype=np.int64)
    if operator == "identity_kernel":
        value = np.zeros(shape, np.int64)
        value[:, :, 1, 1] = np.eye(shape[0], dtype=np.int64)
    return value, int(operator == "pooling_kernel")


def _unary(operator: str, a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if operator == "relu":
        return np.maximum(a, 0)
    if operator == "transpose":
        return a.T
    if operator.endswith("pool"):
        return _pool(a, operator == "avgpool")
    if operator.startswith("enlarge"):
        side = (1, 0) if operator == "enlarge13" else (0, 1)
        return np.pad(a, [(0, 0), (0, 0), (side[0],) * 2, (side[1],) * 2])
    axis, last = int(operator[5]), int(operator[6])
    half = shape[axis]
    return np.take(a, range(last * half, last * half + half), axis)


def _pool(a: np.ndarray, average: bool) -> np.ndarray:
    h, w = a.shape[2:]
    padded = np.pad(a, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=0 if average else -(1 << 60))
    views = [padded[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    return np.sum(views, axis=0) if average else np.max(views, axis=0)


def _conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    outputs, channels, tall, wide = w.shape
    group, (h, width) = x.shape[1] // channels, x.shape[2:]
    padded = np.pad(x, [(0, 0), (0, 0), (tall // 2,) * 2, (wide // 2,) * 2])
    result = np.zeros((x.shape[0], outputs, h, width), np.int64)
    for o, c, i, j in itertools.product(range(outputs), range(channels), range(tall), range(wide)):
        source = o // (outputs // group) * channels + c
        result[:, o] += w[o, c, i, j] * padded[:, source, i : i + h, j : j + width]
    return result
