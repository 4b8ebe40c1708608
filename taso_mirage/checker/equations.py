"""An independent checker of equations between tensor programs. It shares no code with the prover.

Every element of a result becomes a polynomial in normal form: a sum of terms, each a sum over bound
index variables of a product of powers of atoms. Atoms are sizes, index variables, reads of leaves,
functions of polynomials, and conditions, which are 0 or 1. Both sides are read at one symbolic
index, and must have the same normal form in every case of the conditions on that index.

Assumed: sizes are from 1 to 2**40; floats are real numbers (an operator's own numbers are rounded
to its operand's dtype), and nothing is claimed where a division by zero, a root of a negative or a
log of a non-positive number occurs. Integers are read modulo 2**n: sums and products are
polynomials, all else is a function of which only the dtype is known.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from taso_mirage.checker.casts import exact
from taso_mirage.checker.forms import (
    FLOATS,
    INTS,
    LENGTH,
    WORK,
    ZERO,
    Atom,
    Poly,
    Work,
    conditions,
    constant,
    fresh,
    holds,
    just,
    key,
    linear,
    need,
    opened,
    poly,
    single,
    split,
    substituted,
    summed,
    total,
    variables,
)
from taso_mirage.checker.operators import OPS
from taso_mirage.checker.solver import solved
from taso_mirage.checker.tensors import Tensor, dims, legal
from taso_mirage.errors import Unsupported


@dataclass(frozen=True)
class Accepted:
    """The verdict that both sides of an equation are equal."""


@dataclass(frozen=True)
class Refused:
    """Equality was not established; it may hold."""

    reason: str


# ---------------------------------------------------------------- texts


def attribute(tree: ast.expr) -> Any:
    match tree:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -attribute(operand)
        case (
            ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Call(func=ast.Name(id="array"), args=parts, keywords=[])
        ):
            return tuple(map(attribute, parts))
        case ast.Call(func=ast.Name(id="dim"), args=[ast.Constant(value=str(text))], keywords=[]):
            return dims([text])[0]
    raise Unsupported("a text that is no attribute")


def leaf(kind: str, name: str, tree: ast.expr, leaves: dict[str, Any]) -> Tensor:
    base, given = (tree.value, attribute(tree.slice)) if isinstance(tree, ast.Subscript) else (tree, ())
    shape, dtype = dims(given if isinstance(given, tuple) else (given,)), base.id if isinstance(base, ast.Name) else ""
    need(dtype in (*FLOATS, *INTS, "bool"), "a type that is not read by this checker")
    need(leaves.setdefault(name, (kind, dtype, shape)) == (kind, dtype, shape), f"two leaves are called {name}")
    need(all(map(legal, shape)), "a size that may be negative")
    return Tensor(dtype, shape, lambda *i: just("read", name, dtype, *i))


def program(text: str, leaves: dict[str, Any]) -> list[Tensor]:
    """The results of a text."""
    need(len(text) < LENGTH, "a text that is too long")
    (function,), env = ast.parse(text).body, dict[str, Any]()
    if not isinstance(function, ast.FunctionDef):
        raise Unsupported("no function")

    def term(tree: Any) -> Any:
        match tree:
            case ast.Constant(value=None) | ast.Name():
                return env[tree.id] if isinstance(tree, ast.Name) else None
            case ast.Call(
                func=ast.Name(id="input" | "weight" as kind), args=[ast.Constant(value=str(name)), given], keywords=[]
            ):
                return leaf(kind, name, given, leaves)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                need(name in OPS, f"{name} is not read by this checker")
                return OPS[name](*map(term, args), **{k.arg or "": attribute(k.value) for k in keywords})
        raise Unsupported("a text that is no term")

    for argument in function.args.args:
        env[argument.arg] = term(argument.annotation)
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                env[name] = term(value)
            case ast.Return(value=result):
                return [term(x) for x in (result.elts if isinstance(result, ast.Tuple) else [result])]
            case _:
                break
    raise Unsupported("a text that is no program")


# ---------------------------------------------------------------- equations


def check(lhs: str, rhs: str) -> Accepted | Refused:
    """Accepted only if both texts are equal for all sizes and all inputs."""
    token, leaves = WORK.set(Work()), dict[str, Any]()
    try:
        left = program(lhs, leaves)
        WORK.get().trusted = False
        pairs = list(zip(left, program(rhs, leaves), strict=True))
        need(all((a.dtype, a.shape) == (b.dtype, b.shape) for a, b in pairs), "results of other types")
        need(not holds(poly(-1), WORK.get().facts), "sizes that cannot be")
        for a, b in pairs:
            if ZERO in a.shape:
                continue
            index = [just(*fresh(n)) for n in a.shape]
            need(alike(a.dtype, a.at(*index), b.at(*index)), "the two sides have other normal forms")
        return Accepted()
    except Exception as error:
        return Refused(" ".join(f"{type(error).__name__}: {error}".split())[:300])
    finally:
        WORK.reset(token)


def check_step(step: Mapping[str, Any]) -> Accepted | Refused:
    """Check the equation of a certificate's step by its texts; "bounded" steps have fixed sizes."""
    return (
        check(step["lhs"], step["rhs"])
        if step.get("proof") in ("symbolic", "bounded")
        else Refused("no proof of a kind that is known")
    )


def alike(dtype: str, a: Poly, b: Poly) -> bool:
    """Whether two elements are equal; integers also as the whole numbers that they are."""
    if vanishes(parted(a - b), dtype):
        return True
    return dtype in INTS and vanishes(parted(exact(dtype, a) - exact(dtype, b)), "float64")


def parted(p: Poly) -> Poly:
    """p with d * high + low for each index of which it has the quotient by d."""
    for v in sorted((v for v in variables(p) if v[1][0] == 0), key=key):  # bound ones are higher
        if (found := split(v, p)) is not None:
            return parted(substituted(p, {v: found[0]}))
    return p


def vanishes(p: Poly, dtype: str) -> bool:
    """Whether p is 0 in each case of its conditions."""
    work, before = WORK.get(), WORK.get().facts
    if p == ZERO or (before and holds(poly(-1), before)):
        return True
    for a in [a for a in conditions(p) if a[0] == "ge"][:1]:
        found = []
        for truth in (True, False):
            work.facts = before | {a[1] if truth else -a[1] - 1}
            found.append(vanishes(substituted(p, fixed(a)), dtype))
        work.facts = before
        return all(found)
    return solved(p, dtype) or spelled_out(p, dtype)


def fixed(a: Atom) -> dict[Atom, Poly] | None:
    """The position that an index has where a condition fixes it; the facts are then of that one."""
    work = WORK.get()
    for v in sorted((v for v in variables(a) if v[1][0] == 0), key=key):
        slope, rest = linear(a[1], v)
        for at in (rest * -slope, rest * -slope - slope):
            where = just(*v)
            if (
                abs(slope) == 1
                and v not in variables(rest)
                and holds(where - at, work.facts)
                and holds(at - where, work.facts)
            ):
                work.facts = frozenset(substituted(f, {v: at}) for f in work.facts)
                return {v: at}
    return None


def spelled_out(p: Poly, dtype: str) -> bool:
    """Whether p is 0 where sums over few positions are spelled out, and at each of few."""
    work, before = WORK.get(), WORK.get().facts
    few = [v for v in sorted(variables(p), key=key) if v[1][0] == 0 and 0 < (constant(v[2]) or 0) <= FEW]
    if not few:
        q = summands(p)
        return q != p and vanishes(q, dtype)
    at = {v: just(*v) for v in few[:1]}
    found = []
    for k in range(int(constant(few[0][2]) or 0)):
        at[few[0]] = poly(k)
        work.facts = frozenset(substituted(f, at) for f in before)
        found.append(vanishes(substituted(p, at), dtype))
        if not found[-1]:
            break
    work.facts = before
    return all(found)


FEW = 12
"""The largest number of positions that are examined one after the other."""


def summands(p: Poly) -> Poly:
    """p with sums over few positions written as terms, one for each position."""
    found = []
    for (b, f), c in [(opened(t), c) for t, c in p.terms]:
        few = sorted((v for v in b if (constant(v[2]) or FEW) < FEW), key=key)
        for values in product(*(range(int(constant(v[2]) or 0)) for v in few)):
            at = {v: poly(k) for v, k in zip(few, values, strict=True)}
            found.append(summed(substituted(single((frozenset(), f)), at), b - set(few)) * c)
    return total(found)
