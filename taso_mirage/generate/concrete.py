"""A concrete equation taken apart: its attributes, which of them are equal, and the equation with
others in their place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from string import ascii_lowercase
from typing import Any

from taso_mirage.errors import IllTyped, Undecidable
from taso_mirage.ir.dims import Dim, Symbolic, bind, symbol, symbols
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable
from taso_mirage.operators.expressions import EXPRESSION_FUNCTIONS, Expr, names_in_expression
from taso_mirage.operators.ops import get
from taso_mirage.prove.rules.random_typings import VariableTypes
from taso_mirage.rewriting.equation import Equation, instantiate
from taso_mirage.rewriting.patterns import REST

Site = tuple[Node, str]
"""One attribute of one pattern term."""
Forms = Mapping[Site, Any]
"""The values at the attributes: numbers, names and expressions."""

LETTERS = {
    **{"axis": "ij", "axes": "ij", "perm": "pq", "strides": "s", "pads": "pq", "dilations": "d", "group": "g"},
    **{
        "kernel": "k",
        "shape": "s",
        "split": "s",
        "epsilon": "e",
        "starts": "b",
        "ends": "e",
        "steps": "t",
        "extra": "r",
    },
}
"""The names for attributes, names of no variable first."""
CHANNELS = 4
"""The value of a letter that counts groups in the rule's own typing."""
TOGETHER = 3
"""The largest number of dims that get a new letter at once."""
KEPT = frozenset({"index", "to", "stash_type", "mode", "approximate"})
"""Attributes that keep their values: parts, dtypes and modes."""


@dataclass(frozen=True)
class Slot:
    """Attributes of one sort with one value at the given typing, wherever they stand."""

    sort: str
    value: Any
    left: tuple[Site, ...]
    right: tuple[Site, ...]


class Concrete:
    """An equation whose attributes are values: its terms at the given typing, slots of equal
    attributes, and other forms of it."""

    def __init__(self, equation: Equation, given: VariableTypes) -> None:
        self.equation = equation
        used = {n.attr("name") for n in equation.lhs if n.op == "input"}
        self.given = tuple((n, t) for n, t in given if n in used)
        self.types = dict(self.given)
        self.env = _Env({n: variable(n, t) for n, t in self.given}, {})
        self.sizes = dict.fromkeys(self._counted(), CHANNELS)
        self.given = tuple(self._freed(tuple(self._halved())))
        self.types = dict(self.given)
        self.env = _Env({n: variable(n, t) for n, t in self.given}, {})
        self.terms = self._typed(self.given)
        self.values = {s: self._value(*s) for s in self._sites()}
        self.fixed = self._all_fixed()

    def _counted(self) -> list[str]:
        """Letters that are numbers of groups: a term cannot have a symbolic one."""
        terms = (*self.equation.lhs_terms, *self.equation.rhs_terms)
        groups = [v for n in terms for k, v in n.attrs if k == "group"]
        found = {s for g in groups if isinstance(g, Expr) for s in symbols(g(self.env))}
        return sorted(found)

    def _typed(self, given: VariableTypes) -> dict[Node, Node]:
        """Every term at a typing. Raises the errors of typing."""
        env = _Env({n: variable(n, t) for n, t in self.at(given)}, self.sizes)
        nodes = (*self.equation.lhs_terms, *self.equation.rhs_terms)
        return {n: instantiate(Graph((), (n,)), env)[0] for n in nodes}

    def _halved(self) -> VariableTypes:
        """The given typing; where a size is cut in the middle, that size is even: m becomes 2*m."""
        letters = sorted({s for _, t in self.given for d in t.shape or () for s in symbols(d)})
        for doubled in ((), *((s,) for s in letters), tuple(letters)):
            even = {s: 2 * symbol(s) for s in doubled}
            given = tuple((n, Tensor(t.dtype, tuple(bind(d, even) for d in t.shape or ()))) for n, t in self.given)
            try:
                self._typed(given)
            except Undecidable:
                continue
            return given
        return self.given

    def _freed(self, given: VariableTypes) -> VariableTypes:
        """The given typing with letters of their own wherever the types allow it: (c, c, 3, 3)
        becomes (a, c, 3, 3)."""
        taken = {s for _, t in given for d in t.shape or () for s in symbols(d)} | {n for n, _ in given}
        spare = [symbol(c) for c in ascii_lowercase if c not in taken]
        for letter in dict.fromkeys(d for _, t in given for d in t.shape or () if isinstance(d, Symbolic)):
            for size in range(1, TOGETHER + 1):
                places = [(n, i) for n, t in given for i, d in enumerate(t.shape or ()) if d == letter]
                for chosen in combinations(places[1:], size):
                    here = all(dict(given)[n].shape[i] == letter for n, i in chosen)  # type: ignore[index]
                    trial = _with(given, chosen, spare[0]) if spare and here else given
                    if trial != given and self._fits(trial):
                        given = trial
                        spare.pop(0)
        return given

    def _fits(self, given: VariableTypes) -> bool:
        """Whether both sides have the same symbolic types."""
        env = _Env({n: variable(n, t) for n, t in self.at(given)}, self.sizes)
        try:
            sides = [instantiate(side, env) for side in (self.equation.lhs, self.equation.rhs)]
        except (IllTyped, Undecidable):
            return False
        return all(a.type == b.type for a, b in zip(*sides, strict=True))

    def at(self, given: VariableTypes) -> tuple[tuple[str, Tensor], ...]:
        """A typing with those letters at a size."""
        return tuple((n, Tensor(t.dtype, tuple(bind(d, self.sizes) for d in t.shape or ()))) for n, t in given)

    def _sites(self) -> Iterator[Site]:
        for node in dict.fromkeys((*self.equation.lhs_terms, *self.equation.rhs_terms)):
            yield from ((node, key) for key, _ in node.attrs)

    def _value(self, node: Node, key: str) -> Any:
        value = node.attr(key)
        return value(self.env) if isinstance(value, Expr) else value

    def _all_fixed(self) -> dict[Site, Any]:
        """Values as they are, sizes as expressions over the variables' dims, or over a name that
        the left side must have."""
        places = {str(d): f"dim({n}, {i})" for n, t in self.given for i, d in enumerate(t.shape or ())}
        forms: dict[Site, Any] = {}
        for slot in self.slots():
            value = self.values[slot.left[0]] if slot.left else None
            if slot.left and _symbolic(value) and _in_dims(value, places) is None:
                name = self.name(slot.left[0], forms)
                forms |= dict.fromkeys((*slot.left, *slot.right), Expr(name))
                parts = value if isinstance(value, tuple) else ()
                places = {**{str(v): f"{name}[{i}]" for i, v in enumerate(parts)}, **places}
        for site, value in self.values.items():
            if site not in forms:
                forms[site] = (self._stated(site) or _in_dims(value, places)) if _symbolic(value) else value
                if forms[site] is None and value is not None:
                    raise Undecidable(f"no variable of the left side has the sizes in {value}")
        return forms

    def _stated(self, site: Site) -> Expr | None:
        """An expression over the variables, as it was given."""
        stated = site[0].attr(site[1])
        over = isinstance(stated, Expr) and not names_in_expression(stated.source) - set(self.types)
        return stated if over else None

    # ------------------------------------------------------------ slots

    def slots(self) -> list[Slot]:
        """In the order in which they occur on the left, permutations first, as axes follow them.

        Some are on the right only.
        """
        left = [s for n in self.equation.lhs_terms for s in self.values if s[0] is n]
        found: dict[tuple[str, Any], tuple[list[Site], list[Site]]] = {}
        inside = set(self.equation.lhs_terms)
        for site in (*left, *self.values):
            if site[1] in KEPT or self.values[site] is None:
                continue
            key = _sort(site), _unit(site, self.values[site])
            sides = found.setdefault(key, ([], []))
            if site not in sides[0] and site not in sides[1]:
                sides[0 if site[0] in inside else 1].append(site)
        slots = [Slot(*key, tuple(a), tuple(b)) for key, (a, b) in found.items()]
        return sorted(slots, key=lambda s: s.sort != "perm")

    def name(self, site: Site, forms: Forms) -> str:
        used: set[str] = set(self.types) | {
            n for v in forms.values() if isinstance(v, Expr) for n in names_in_expression(v.source)
        }
        key = site[1]
        choices = [*LETTERS.get(key, key[:1]), *(f"{LETTERS.get(key, key)[0]}{i}" for i in range(2, 20))]
        return str(next(c for c in choices if c not in used and c not in EXPRESSION_FUNCTIONS))

    # ------------------------------------------------------------ building

    def build(self, forms: Forms, packed: bool = True) -> tuple[Equation, tuple[tuple[str, Any], ...]]:
        """The equation with those attributes, and the values of its attribute names at the given
        typing."""
        packs = self._packs(forms) if packed else {}
        done: dict[Node, Node] = {}
        for node in topological((*self.equation.lhs.outputs, *self.equation.rhs.outputs)):
            attrs = [(k, forms.get((node, k), v)) for k, v in node.attrs]
            if node.op in packs:
                name, keys = packs[node.op]
                attrs = [*((k, v) for k, v in attrs if k not in keys), (REST, Expr(name))]
            done[node] = Node(node.op, tuple(done[a] for a in node.args), tuple(attrs), node.type)
        lhs, rhs = (tuple(done[o] for o in side.outputs) for side in (self.equation.lhs, self.equation.rhs))
        inputs = tuple(n for n in topological(lhs) if n.op == "input")
        built = replace(self.equation, lhs=Graph(inputs, lhs), rhs=Graph(inputs, rhs))
        return built, self._attributes(built, forms, packs)

    def _attributes(
        self, built: Equation, forms: Forms, packs: Mapping[str, tuple[str, tuple[str, ...]]]
    ) -> tuple[tuple[str, Any], ...]:
        bound: dict[str, Any] = {}
        for node in self.equation.lhs_terms:
            if node.op in packs:
                name, keys = packs[node.op]
                bound.setdefault(name, tuple(sorted((k, self.values[node, k]) for k in keys)))
            kept = packs.get(node.op, ("", ()))[1]
            for key, _ in node.attrs:
                form = forms.get((node, key))
                if isinstance(form, Expr) and form.name and key not in kept:
                    bound.setdefault(form.name, self.values[node, key])
        return tuple(bound.items())

    def _packs(self, forms: Forms) -> dict[str, tuple[str, tuple[str, ...]]]:
        """For an operator the attributes that are one name on all its terms and nowhere else:
        together they are `**a`."""
        where: dict[str, set[str]] = {}
        for (node, _), form in forms.items():
            for name in names_in_expression(form.source) if isinstance(form, Expr) else ():
                where.setdefault(name, set()).add(node.op)
        found: dict[str, tuple[str, tuple[str, ...]]] = {}
        letters = [c for c in "abcdefgh" if c not in self.types and c not in where]
        for op in dict.fromkeys(n.op for n in self.equation.lhs_terms):
            nodes = [n for n in self.terms if n.op == op]
            keys = []
            for key in get(op).attributes:
                shapes = {repr(forms.get((n, key))) for n in nodes}
                form = forms.get((nodes[0], key))
                own = form.name if isinstance(form, Expr) else None
                if len(shapes) == 1 and own and where[own] == {op} and self._once(forms, own, key):
                    keys.append(key)
            if len(keys) > 1:
                found[op] = (letters.pop(0), tuple(keys))
        return found

    @staticmethod
    def _once(forms: Forms, name: str, key: str) -> bool:
        """Whether a name stands for this attribute only."""
        users = [(s, f) for s, f in forms.items() if isinstance(f, Expr) and name in names_in_expression(f.source)]
        return all(s[1] == key and f.name == name for s, f in users)


def _with(given: VariableTypes, places: Iterable[tuple[str, int]], dim: Dim) -> VariableTypes:
    """A typing with another size at some places."""
    chosen = set(places)
    shapes = {n: tuple(dim if (n, i) in chosen else d for i, d in enumerate(t.shape or ())) for n, t in given}
    return tuple((n, Tensor(t.dtype, shapes[n])) for n, t in given)


class _Env(dict[str, Any]):
    """The typed variables; any other name is a size."""

    def __init__(self, names: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        super().__init__(names)
        self.sizes = sizes

    def __missing__(self, key: str) -> Dim:
        return self.sizes.get(key, symbol(key))


def _symbolic(value: Any) -> bool:
    parts: Iterable[Any] = value if isinstance(value, tuple) else (value,)
    return any(isinstance(p, Symbolic) for p in parts)


def _sort(site: Site) -> str:
    """A key that is equal for two attributes if they may share a name."""
    node, key = site
    if key in ("axis", "axes"):
        return "axis"
    return f"{node.op}.{key}" if key in get(node.op).sized else key


def _unit(site: Site, value: Any) -> Any:
    """An axis and a tuple of that axis alone are one slot."""
    return value[0] if site[1] == "axes" and len(value) == 1 else value


def partly(value: Any, sizes: Mapping[str, int]) -> Any:
    """A value with some letters at their size."""
    if isinstance(value, Symbolic):
        return bind(value, sizes)
    return tuple(partly(v, sizes) for v in value) if isinstance(value, tuple) else value


# ---------------------------------------------------------------- sizes as expressions over the dims of variables


def _in_dims(value: Any, places: Mapping[str, str]) -> Expr | None:
    """An attribute's value as an expression, given where sizes are: `c*h` is "dim(x, 1)".

    None where a letter is nowhere.
    """
    parts = [_dim_text(v, places) for v in (value if isinstance(value, tuple) else (value,))]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    return Expr(f"({', '.join(known)}{',' if len(known) == 1 else ''})" if isinstance(value, tuple) else known[0])


def _dim_text(dim: Any, places: Mapping[str, str]) -> str | None:
    if not isinstance(dim, Symbolic):
        return repr(dim)
    if str(dim) in places:
        return places[str(dim)]
    if symbols(dim) - places.keys():
        return None
    return ast.unparse(_Places(places).visit(ast.parse(str(dim), mode="eval").body))


class _Places(ast.NodeTransformer):
    """Letters become the values whose sizes they are."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = places

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self.places[node.id], mode="eval").body
