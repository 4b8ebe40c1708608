"""The library of proved substitutions: a rule with one typing and its evidence, as readable TOML
(`substitutions/*.toml`)."""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired, get_args

import numpy as np
from typing_extensions import TypedDict

from taso_mirage.errors import InvalidOption, SyntaxProblem, TasoMirageError
from taso_mirage.ir.dims import Dim, Symbolic, parse_dim, symbol
from taso_mirage.ir.terms import Node, Tensor, constant, numpy_dtype, variable, weight
from taso_mirage.operators.expressions import Expr, asks_for_number, asks_for_weight, names_in_expression
from taso_mirage.operators.ops import data_folder
from taso_mirage.rewriting.equation import Equation, instantiate
from taso_mirage.rewriting.text import parse_equation, parse_value, show_equation
from taso_mirage.system.files import write_file
from taso_mirage.system.toml import checked_entry, comment, read_text, table
from taso_mirage.verdicts import NO_EVIDENCE, Evidence, Proof

ProofKind = Literal["symbolic", "bounded"]
PROOF_KINDS: tuple[str, ...] = get_args(ProofKind)
LIBRARY = "library"
"""The `evidence` of a rule's equation."""
_NONSENSE = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
MALFORMED = (TasoMirageError, SyntaxError, *_NONSENSE)
"""Errors that a malformed text of a file raises."""
NO_RULES = ("rejected.toml",)
"""Files of the folder that hold no rules."""
SCHEMA = "$schema"
"""The key with the location of a file's schema, for editors only."""
_MORE = "`taso-mirage schema rules` describes how a rule is written"


class EvidenceEntry(TypedDict):
    """The recorded judgement of a rule, which is not trusted when the rule is applied."""

    cases: NotRequired[int]
    """Kinds of typings that it holds in."""
    typings: NotRequired[int]
    """The number of random legal typings that were tested."""
    bounded: NotRequired[int]
    excluded: NotRequired[int]
    trials: NotRequired[int]
    """A field of version 0.1; it is not read."""
    proof: NotRequired[ProofKind]
    bound: NotRequired[str]
    """The range that the proof covers."""
    steps: NotRequired[int]


class RuleEntry(TypedDict):
    """A rule: `lhs` may be replaced by `rhs` wherever `where` holds."""

    name: str
    """The family, a dot, and a name of its own: `mine.twice`."""
    operators: NotRequired[int]
    """The most that a side has; counted if left out."""
    given: str
    """An example of the types of the variables: `x: (m, n), i: int64 (2*n)`; the default dtype is
    float32."""
    attributes: NotRequired[str]
    """Values of attributes that have names, at that example: `a: 1, p: (1, 0)`."""
    lhs: str
    """Calls of operators, as in Python: `add(x, x)`. A number is a constant, whose elements all
    equal it."""
    rhs: str
    where: NotRequired[str]
    """The guard, an expression: `rank(x) == 2`."""
    evidence: NotRequired[EvidenceEntry]


class RejectedEntry(TypedDict):
    """A refuted candidate, and its refutation."""

    equation: str
    why: str
    counterexample: NotRequired[dict[str, Any]]


RuleFile = TypedDict("RuleFile", {"$schema": NotRequired[str], "rule": NotRequired[list[RuleEntry]]})
RejectedFile = TypedDict("RejectedFile", {"$schema": NotRequired[str], "rejected": NotRequired[list[RejectedEntry]]})


@dataclass(frozen=True, slots=True)
class Rule:
    """An equation that holds on every typing that matches and satisfies its guard, with one typing
    and its evidence.

    `operators` counts those of the larger side. `given` has the variables' types, dims symbolic;
    `attributes` the values of the attribute names at that typing (a `**a` as sorted pairs).
    """

    name: str
    operators: int
    given: tuple[tuple[str, Tensor], ...]
    attributes: tuple[tuple[str, Any], ...]
    equation: Equation
    evidence: Evidence = NO_EVIDENCE

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    def instance(self) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """The two sides as typed terms at `given`, dims symbolic. Raises the errors of typing."""
        bound = dict(self.attributes) | {name: self.operand(name, type) for name, type in self.given}
        like = next((type.dtype for _, type in self.given), "float32")
        return instantiate(self.equation.lhs, bound, like), instantiate(self.equation.rhs, bound, like)

    def operand(self, name: str, type: Tensor) -> Node:
        """The term for a variable in an instance: an input, or the weight or constant that the
        guard requires."""
        guard = self.equation.where.source if self.equation.where is not None else ""
        shape = tuple(d for d in type.shape or () if isinstance(d, int))
        if len(shape) == type.rank and asks_for_number(guard, name):
            return constant(np.full(shape, 0.5), type.dtype)
        return weight(name, type) if asks_for_weight(guard, name) else variable(name, type)


@dataclass(frozen=True, slots=True)
class RejectedRule:
    """A candidate that was refuted: its text, which rung refuted it, and the counterexample as
    plain values."""

    equation: str
    why: str
    counterexample: Mapping[str, Any]


def rule_name(family: str, equation: Equation, taken: Container[str] = ()) -> str:
    """`family.lhsroot_to_rhsroot.hash`, or `family.merge_root.hash` with several outputs; the hash
    is as long as it must be."""
    left, right = (_root_names(side.outputs) for side in (equation.lhs, equation.rhs))
    middle = f"merge_{left}" if len(equation.roots) > 1 else f"{left}_to_{right}"
    digest = hashlib.sha256(show_equation(equation).encode()).hexdigest()
    choices = (f"{family}.{middle}.{digest[:k]}" for k in range(4, len(digest) + 1))
    return next(name for name in choices if name not in taken)


def _root_names(outputs: Sequence[Node]) -> str:
    roots = (o.args[0].op if o.op == "item" else o.op for o in outputs)
    return "_".join(dict.fromkeys({"input": "operand", "splat": "number"}.get(r, r) for r in roots))


# ---------------------------------------------------------------- typings as text


def parse_given(text: str) -> tuple[tuple[str, Tensor], ...]:
    """Read `x: (n, c, 3), i: int64 (2*n)`: types by variable; the default dtype is float32."""
    return tuple((name, _parse_tensor(value)) for name, value in _entries(text))


def show_given(given: Iterable[tuple[str, Tensor]]) -> str:
    return ", ".join(f"{name}: {_show_tensor(type)}" for name, type in given)


def parse_attributes(text: str) -> tuple[tuple[str, Any], ...]:
    """Read `i: 1, p: (1, 0), s: (n, c*h), a: {strides: (1, 1)}`: values by attribute name."""
    return tuple((name, _parse_attribute(value)) for name, value in _entries(text))


def show_attributes(attributes: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}: {_show_attribute(value)}" for name, value in attributes)


def _entries(text: str) -> list[tuple[str, ast.expr]]:
    try:
        tree = ast.parse(f"{{{text}}}", mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise SyntaxProblem(f"{text!r}: {error}") from None
    return _dict_entries(tree)


def _dict_entries(tree: ast.expr) -> list[tuple[str, ast.expr]]:
    if not isinstance(tree, ast.Dict):
        raise SyntaxProblem(f"{ast.unparse(tree)}: write name: value, name: value")
    found: list[tuple[str, ast.expr]] = []
    for key, value in zip(tree.keys, tree.values, strict=True):
        if not isinstance(key, ast.Name) or key.id in dict(found):
            raise SyntaxProblem(f"{ast.unparse(tree)}: names must be plain and different")
        found.append((key.id, value))
    return found


def _parse_tensor(tree: ast.expr) -> Tensor:
    match tree:
        case ast.Call(func=ast.Name(id=dtype), args=args, keywords=[]):
            try:
                numpy_dtype(dtype)
            except TypeError as error:
                raise SyntaxProblem(f"{ast.unparse(tree)}: {error}") from None
            return Tensor(dtype, tuple(map(_parse_dim, args)))
        case ast.Tuple(elts=elements):
            return Tensor("float32", tuple(map(_parse_dim, elements)))
    return Tensor("float32", (_parse_dim(tree),))


def _parse_dim(tree: ast.expr) -> Dim:
    text = ast.unparse(tree)
    dim = parse_dim(text)
    if dim == symbol(text) and not isinstance(tree, ast.Name):
        raise SyntaxProblem(f"{text} is no size; write a number, a letter or a sum of products such as 2*c")
    return dim


def _show_tensor(type: Tensor) -> str:
    shape = f"({', '.join(map(str, type.shape or ()))})"
    return shape if type.dtype == "float32" else f"{type.dtype} {shape}"


def _parse_attribute(tree: ast.expr) -> Any:
    match tree:
        case ast.Constant() | ast.Name(id="inf" | "nan"):
            return parse_value(tree)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) | ast.Name(id="inf")):
            return parse_value(tree)
        case ast.Tuple(elts=elements):
            return tuple(map(_parse_attribute, elements))
        case ast.Dict():
            return tuple(sorted((name, _parse_attribute(value)) for name, value in _dict_entries(tree)))
    return _parse_dim(tree)


def _show_attribute(value: Any) -> str:
    if isinstance(value, tuple) and value and all(_is_pair(v) for v in value):
        return f"{{{show_attributes(value)}}}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_show_attribute, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, str | int | float | Symbolic) or value is None:
        return str(value) if isinstance(value, Symbolic) else repr(value)
    raise SyntaxProblem(f"an attribute {value!r} of type {type(value).__name__} cannot be written")


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


# ---------------------------------------------------------------- reading


@cache
def load_rules(folder: Path | None = None) -> tuple[Rule, ...]:
    """The rules of every file of a folder (the shipped library if left out), files by name, rules
    in their order."""
    folder = folder or data_folder("substitutions")
    rules: list[Rule] = []
    files: dict[str, Path] = {}
    for file in sorted(folder.glob("*.toml")):
        for rule in () if file.name in NO_RULES else read(file):
            if rule.name in files:
                raise SyntaxProblem(f"{file}: the rule {rule.name} is in {files[rule.name].name} too")
            files[rule.name] = file
            rules.append(rule)
    return tuple(rules)


def read(path: Path) -> tuple[Rule, ...]:
    """The rules of one file.

    SyntaxProblem names file, rule and field; InvalidOption where it cannot be read.
    """
    return parse_rules(_text_of(path), str(path))


def parse_rules(text: str, path: str = "rules") -> tuple[Rule, ...]:
    """The rules of the text of a file, whose name is for errors."""
    found = tuple(_read_rule(path, i, entry) for i, entry in enumerate(_entries_of(text, path, "rule")))
    counts = Counter(rule.name for rule in found)
    for name, count in counts.items():
        if count > 1:
            raise SyntaxProblem(f"{path}: {count} rules are called {name}")
    return found


def _text_of(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SyntaxProblem(f"{path}: {error}") from None


def _entries_of(text: str, path: str, table: str) -> list[dict[str, Any]]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SyntaxProblem(f"{path}: no TOML: {error}; `taso-mirage schema` describes the files") from None
    except (RecursionError, MemoryError):
        raise SyntaxProblem(f"{path}: its brackets are too deep, or it is too large") from None
    content.pop(SCHEMA, None)
    entries = content.pop(table, [])
    if content or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise SyntaxProblem(f"{path}: only [[{table}]] is expected, not {', '.join(content) or table}; {_MORE}")
    return entries


def _read_rule(path: str, i: int, entry: Mapping[str, Any]) -> Rule:
    label = f"{path}: rule {entry.get('name', f'number {i + 1}')}"
    checked_entry(label, entry, RuleEntry, "rules")
    evidence = checked_entry(f"{label}, field evidence", entry.get("evidence", {}), EvidenceEntry, "rules")
    field = ""
    try:
        field = "given"
        given = parse_given(entry[field])
        field = "attributes"
        attributes = parse_attributes(entry.get(field, ""))
        field = "lhs"
        equation = _read_equation(entry)
        field = "where"
        _check_names(equation, dict(given), dict(attributes))
    except MALFORMED as error:
        raise SyntaxProblem(f"{label}, field {field}: {error or type(error).__name__}; {_MORE}") from None
    operators = entry.get("operators", operator_count(equation))
    return Rule(entry["name"], operators, given, attributes, equation, _read_evidence(evidence))


def operator_count(equation: Equation) -> int:
    """Operators of the larger side."""
    sides = (equation.lhs_terms, equation.rhs_terms)
    return max(sum(1 for n in side if n.args and n.op != "item") for side in sides)


def _read_equation(entry: Mapping[str, Any]) -> Equation:
    text, guard = f"{entry['lhs']} == {entry['rhs']}", entry.get("where", "")
    return parse_equation(text + (f" where {guard}" if guard else ""), entry["name"], LIBRARY)


def _check_names(equation: Equation, given: Iterable[str], attributes: Iterable[str]) -> None:
    """`given` and `attributes` define every name of the left side, and the rest of the rule has no
    other names."""
    variables = {n.attr("name") for n in equation.lhs.inputs}
    values = {v for n in equation.lhs for _, v in n.attrs if isinstance(v, Expr)}
    bound = {v.name for v in values if v.name is not None}
    for kind, wanted, have in (("variables", variables, set(given)), ("attributes", bound, set(attributes))):
        if wanted != have:
            raise SyntaxProblem(
                f"the {kind} of the left side are {_listed(wanted)}, but types and values are given for {_listed(have)}"
            )
    right = {n.attr("name") for n in equation.rhs if n.op == "input"}
    right |= {v.source for n in equation.rhs for _, v in n.attrs if isinstance(v, Expr)}
    guard = {equation.where.source} if equation.where is not None else set()
    for source in sorted(right | guard | {v.source for v in values}):
        if loose := names_in_expression(source) - variables - bound:
            raise SyntaxProblem(f"{source!r} names {_listed(loose)}, which the left side does not have")


def _listed(found: Iterable[str]) -> str:
    return ", ".join(sorted(found)) or "none"


def _read_evidence(entry: Mapping[str, Any]) -> Evidence:
    counts = {key: entry.get(key, 0) for key in ("cases", "typings", "bounded", "excluded")}
    kind = entry.get("proof")
    return Evidence(proof=kind and Proof(kind, entry.get("bound", ""), entry.get("steps", 0)), **counts)


def read_rejected(path: Path) -> tuple[RejectedRule, ...]:
    """Read the file that `write_rejected` writes."""
    found: list[RejectedRule] = []
    for i, entry in enumerate(_entries_of(_text_of(path), str(path), "rejected")):
        checked_entry(f"{path}: rejected number {i + 1}", entry, RejectedEntry, "rejected")
        found.append(RejectedRule(entry["equation"], entry["why"], entry.get("counterexample", {})))
    return tuple(found)


# ---------------------------------------------------------------- writing


def write_rules(path: Path, rules: Iterable[Rule], header: str = "") -> None:
    """A file of rules, in their order, atomically.

    The same rules give the same bytes. OutputError where it fails.
    """
    write_file(path, comment(header) + "".join(map(show_rule, rules)))


def write_rejected(path: Path, rejected: Iterable[RejectedRule], header: str = "") -> None:
    """The refuted candidates, each with its counterexample as a table."""
    write_file(path, comment(header) + "".join(map(_show_rejected, rejected)))


def show_rule(rule: Rule) -> str:
    """A rule as an entry of a file, which `parse_rules` reads back."""
    lhs, rhs = rule_sides(rule.equation)
    fields: dict[str, Any] = {"name": rule.name, "operators": rule.operators, "given": show_given(rule.given)}
    if rule.attributes:
        fields["attributes"] = show_attributes(rule.attributes)
    fields |= {"lhs": lhs, "rhs": rhs}
    if rule.equation.where is not None:
        fields["where"] = rule.equation.where.source
    evidence: dict[str, Any] = {"cases": rule.evidence.cases, "typings": rule.evidence.typings}
    for key in ("bounded", "excluded"):
        if getattr(rule.evidence, key):
            evidence[key] = getattr(rule.evidence, key)
    if rule.evidence.proof is not None:
        proof = rule.evidence.proof
        evidence |= {"proof": proof.kind, "bound": proof.bound, "steps": proof.steps}
    return table("[[rule]]", {**fields, "evidence": evidence})


def rule_sides(equation: Equation) -> tuple[str, str]:
    """The two sides as text, without the guard."""
    text = show_equation(replace(equation, where=None))
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.Compare)
    left, right = (ast.get_source_segment(text, side) for side in (tree.left, tree.comparators[0]))
    return left or "", right or ""


def _show_rejected(each: RejectedRule) -> str:
    text = table("[[rejected]]", {"equation": each.equation, "why": each.why})
    return text + (table("[rejected.counterexample]", each.counterexample) if each.counterexample else "")
