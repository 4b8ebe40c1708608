"""Normal forms of sums are the sums: added up element by element at fixed sizes, and false
equations that a renamed integer, a lost sign or an index from the end would prove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from taso_mirage.ir.dims import Dim, evaluate, parse_dim
from taso_mirage.ir.terms import Node, Tensor, constant, variable
from taso_mirage.meanings.conditions import Unprovable
from taso_mirage.meanings.indices import Indices
from taso_mirage.meanings.polynomials import ONE, Atom, Poly
from taso_mirage.operators.ops import term as t
from taso_mirage.prove.fingerprint import fingerprint
from taso_mirage.prove.folds import fold
from taso_mirage.prove.scalars import Scalars
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.verdicts import FailureKind, failed

Sizes = Mapping[str, int]


# ---------------------------------------------------------------- sums of random reads


def added(indices: Indices, bound: Sequence[str], conditions: Sequence[Dim], body: Poly, at: Sizes) -> Fraction:
    """The sum itself, one element after the other."""
    total = Fraction(0)
    for place in product(*[range(evaluate(indices.extents[b], at)) for b in bound]):
        here = {**at, **dict(zip(bound, place, strict=True))}
        if all(evaluate(e, here) >= 0 for e in conditions):
            total += value(indices, body, here)
    return total


def value(indices: Indices, p: Poly, at: Sizes) -> Fraction:
    total = Fraction(0)
    for monomial, c in p.terms.items():
        part = Fraction(c)
        for atom, power in monomial:
            part *= factor(indices, atom, at) ** power
        total += part
    return total


def factor(indices: Indices, a: Atom, at: Sizes) -> Fraction:
    if a.kind == "read":  # any number that depends on the tensor and the place alone
        (_, name), where = a.args
        return Fraction(Random(f"{name} {[evaluate(e, at) for e in where]}").randint(-48, 48))
    if a.kind == "sum":
        return added(indices, a.args[0], a.args[1], Poly({a.args[2]: 1}), at)
    assert a.kind in ("size", "floor")
    return Fraction(at[a.args[0]] if a.kind == "size" else evaluate(a.args[0], at))


class Drawn:
    """A sum of products of reads, with the conditions of padded and of spread data, and of running
    sums."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.indices = Indices(20_000)
        self.indices.second, self.indices.third = rng.random() < 0.5, rng.random() < 0.5
        self.algebra = Scalars(self.indices)
        free_sizes = rng.random() < 0.7
        self.sizes: list[Dim] = [parse_dim(d) for d in ("2", "3", "4", *("n", "m", "2*n", "n + 1") * free_sizes)]
        bound = [self.indices.variable(f"b{k}", rng.choice(self.sizes)) for k in range(rng.randint(1, 3))]
        free = [self.indices.variable(f"i{k}", rng.choice(self.sizes)) for k in range(rng.randint(0, 2))]
        self.names, self.free, self.every = [str(b) for b in bound], [str(f) for f in free], bound + free
        self.conditions: list[Dim] = []
        self.body = ONE
        inside = self.indices.variable("inside", rng.choice(self.sizes))
        for _ in range(rng.randint(0, 2)):
            self.body = self.algebra.mul(self.body, self._read())
        self.conditions += [self._affine() for _ in range(rng.choice((0, 0, 1, 2)))]
        if free and rng.random() < 0.3:  # a running sum up to, or from, a place
            self.conditions.append((rng.choice(bound) - rng.choice(free)) * rng.choice((1, -1)) + rng.randint(-3, 3))
        rng.shuffle(self.conditions)
        if rng.random() < 0.3:  # a factor that is a sum
            mine, self.conditions, self.every = self.conditions, [], [*self.every, inside]
            read = self._read()
            nested = fold(self.algebra, "sum", ["inside"], tuple(self.conditions), read)
            self.body, self.conditions = self.algebra.mul(self.body, nested), mine

    def _read(self) -> Poly:
        place = tuple(self._index() for _ in range(self.rng.randint(1, 2)))
        return self.algebra.poly("read", ("float32", self.rng.choice("xy")), place)

    def _affine(self) -> Dim:
        e: Dim = self.rng.choice((0, 0, *self.sizes)) * self.rng.choice((1, -1)) + self.rng.randint(-2, 2)
        for name in self.rng.sample(self.every, self.rng.randint(1, min(3, len(self.every)))):
            e = e + name * self.rng.choice((1, 1, 1, -1, -1, 2, 3, *self.sizes[3:4]))
        return e

    def _index(self) -> Dim:
        """A place as it is, in data with zeros around them, and in data with zeros between too."""
        e, n, d = self._affine(), self.rng.choice(self.sizes), self.rng.choice((2, 3))
        kind = self.rng.choice(("plain", "divided", "padded", "padded", "spread", "whole", "whole"))
        spread = self.indices.divide(e, d)
        self.conditions += [e, n - 1 - e] if kind == "padded" else []
        self.conditions += [e, (n - 1) * d - e] if kind == "spread" else []
        self.conditions += [spread * d - e] if kind in ("spread", "whole") else []
        return e if kind in ("plain", "padded") else spread


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", [*range(16), *(pytest.param(p, marks=pytest.mark.slow) for p in range(16, 80))])
def test_a_normal_form_is_the_sum(part: int) -> None:
    compared = 0
    for seed in range(part * 25, part * 25 + 25):
        try:
            drawn = Drawn(seed)
            found = fold(drawn.algebra, "sum", drawn.names, tuple(drawn.conditions), drawn.body)
            again = drawn.algebra.bind(
                found, {f: drawn.indices.variable(f"{f}'", drawn.indices.extents[f]) for f in drawn.free}
            )
        except (Unprovable, RecursionError):
            continue
        for n, m in ((1, 1), (2, 1), (1, 3)):
            at = {"n": n, "m": m}
            at |= {f: drawn.rng.randrange(evaluate(drawn.indices.extents[f], at)) for f in drawn.free}
            at |= {f"{f}'": at[f] for f in drawn.free}
            wanted = added(drawn.indices, drawn.names, drawn.conditions, drawn.body, at)
            assert value(drawn.indices, found, at) == value(drawn.indices, again, at) == wanted, (seed, at)
            compared += 1
    assert compared > 40


def test_a_square_of_a_quotient_stays_one() -> None:
    indices = Indices()
    half = parse_dim("n // 2")
    found = indices.divide(half * half * 5 + indices.variable("i", parse_dim("m")), 2)
    for n, i in product(range(1, 8), range(3)):
        assert evaluate(found, {"n": n, "i": i}) == ((n // 2) ** 2 * 5 + i) // 2


# ---------------------------------------------------------------- false equations


def v(name: str, *dims: str, dtype: str = "float32") -> Node:
    return variable(name, Tensor(dtype, tuple(parse_dim(d) for d in dims)))


def summed(of: Node, *axes: int) -> Node:
    return t("reduce_sum", of, axes=axes)


x, y, table, rows = v("x", "4", "4", "3"), v("y", "1", "3"), v("table", "4"), v("rows", "4", "4", dtype="int64")
a, b = v("a", "4", "3"), v("b", "4", "3")


def odd(at: int) -> Node:
    """erf(2 p - q - r) of three parts."""
    p, q, r = (
        t("slice", x, starts=(i,), ends=(i + 1,), axes=(2,), steps=(1,)) for i in (at, (at + 1) % 3, (at + 2) % 3)
    )
    return t("erf", t("sub", t("mul", p, constant(2.0, "float32")), t("add", q, r)))


def even(at: int) -> Node:
    return summed(t("exp", t("slice", x, starts=(at,), ends=(at + 1,), axes=(2,), steps=(1,))), 1)


def gathered(axis: int) -> Node:
    """The sum of a table at sums of rows, or of columns."""
    return summed(t("gather", table, t("reduce_sum", rows, axes=(axis,), keepdims=0), axis=0), 0)


def from_the_end(of: Node) -> Node:
    """The sum of the last four rows, which are counted from the end."""
    last = t("gather", of, t("range", n=4, start=-4), axis=0)
    return summed(t("mul", y, summed(last, 0)), 0, 1)


def rows_of(of: Node, start: int, more: int = 1) -> Node:
    """All rows but so many."""
    return t("slice", of, axes=(0,), starts=(start,), ends=(of.shape[0] - more + start,), steps=(1,))


def running(of: Node, start: int = 0, reverse: int = 0, exclusive: int = 0) -> Node:
    """Rows of a running sum but one."""
    return rows_of(t("cumsum", of, axis=0, reverse=reverse, exclusive=exclusive), start)


series, known = v("series", "n + 1", "3"), v("series", "4", "3")
RUNNING = {
    "the next sum": (t("add", running(series), rows_of(series, 1)), running(series, 1)),
    "the next sum from the end": (t("add", running(series, 1, 1), rows_of(series, 0)), running(series, 0, 1)),
    "a sum without the last": (t("sub", running(series, 1), rows_of(series, 1)), running(series)),
    "sums without themselves": (t("add", running(series, exclusive=1), rows_of(series, 0)), running(series)),
}


@pytest.mark.parametrize("name", RUNNING)
def test_a_running_sum_goes_on_by_a_term(name: str) -> None:
    left, right = RUNNING[name]
    assert isinstance(prove_symbolic((left,), (right,)), Proved)


long = v("long", "7", "3")


def tapped(*places: int) -> Node:
    """A sum over parts of a sequence, each times a weight."""
    parts = [t("unsqueeze", rows_of(long, i, 2), axes=(2,)) for i in places]
    products = t("mul", t("concat", *parts, axis=2), v("taps", "3", "3"))
    return t("unsqueeze", t("reduce_sum", products, axes=(2,), keepdims=0), axes=(0,))


def convolved() -> Node:
    data = t("unsqueeze", t("transpose", long, perm=(1, 0)), axes=(0,))
    kernel = t("unsqueeze", v("taps", "3", "3"), axes=(1,))
    made = t("conv", data, kernel, strides=(1,), pads=(0, 0), dilations=(1,), group=3)
    return t("transpose", made, perm=(0, 2, 1))


def test_a_sum_over_shifted_parts_is_a_convolution() -> None:
    assert isinstance(prove_symbolic((tapped(0, 1, 2),), (convolved(),)), Proved)


FALSE = {
    "a sum that goes on by the term before": (t("add", running(known), rows_of(known, 0)), running(known, 1)),
    "a sum that does not go on": (running(known), running(known, 1)),
    "a sum that loses a term from the end": (t("add", running(known, 0, 1), rows_of(known, 0)), running(known, 1, 1)),
    "a sum with itself twice": (t("add", running(known), rows_of(known, 0)), running(known)),
    **{
        f"parts {places} of a sequence in a convolution": (tapped(*places), convolved())
        for places in ((2, 1, 0), (0, 2, 1), (0, 1, 1), (1, 1, 2))
    },
    **{
        f"a lost sign {i}": (
            summed(t("mul", even(i), summed(odd(i), 1)), 0),
            t("neg", summed(t("mul", summed(odd(i), 1), even(i)), 0)),
        )
        for i in range(3)
    },
    "an index that sums over an integer of the same name": (gathered(0), gathered(1)),
    "an index from the end of what was joined": (from_the_end(t("concat", a, b, axis=0)), from_the_end(a)),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_is_not_proved(name: str) -> None:
    left, right = FALSE[name]
    assert not isinstance(prove_symbolic((left,), (right,)), Proved)
    if name != "an index that sums over an integer of the same name":  # sums of random rows are no index
        assert failed(fingerprint((left,), (right,)), FailureKind.REFUTED)
