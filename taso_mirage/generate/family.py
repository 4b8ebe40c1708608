"""Families of the generator, as data: typed inputs, and operators as small patterns with their
attribute values (TASO section 2)."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from taso_mirage.errors import IllTyped, InvalidOption, SyntaxProblem, Undecidable, Unsupported
from taso_mirage.ir.dims import Symbolic, parse_dim, symbol
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable
from taso_mirage.operators.expressions import Expr
from taso_mirage.rewriting.equation import instantiate
from taso_mirage.rewriting.library import MALFORMED
from taso_mirage.rewriting.text import parse_equation
from taso_mirage.system.toml import checked_entry, read_text

FOLDER = Path(__file__).parent / "families"


class InputEntry(TypedDict):
    """`count` inputs of one kind, called `name` with a number; they may be exchanged."""

    name: str
    count: NotRequired[int]
    kind: str
    """A label: the kind of an operand."""
    dtype: NotRequired[str]
    """float32 if left out."""
    shape: str
    """Sizes by letters: `(n, 2, s, d)`."""


class OperatorEntry(TypedDict):
    """A pattern over operands, see `Operator`."""

    term: str
    """Calls, as in a rule: `transpose(a, perm=(0, 1, 3, 2))`; letters that are no operands are
    sizes."""
    symbol: NotRequired[str]
    """The operator's name where kinds are forgotten; its own name if left out."""
    kinds: NotRequired[dict[str, str]]
    """The labels that operands must have."""
    where: NotRequired[str]
    """An expression over the operands that must hold."""
    result: NotRequired[str]
    """The label of the result; that of the first operand if left out."""
    commutative: NotRequired[bool]
    inputs_only: NotRequired[bool]
    """Operands are inputs."""
    cut: NotRequired[int]
    """The axis along which the result is cut between its operands."""
    part_of: NotRequired[int]
    """The axis along which the operand is cut, of which the result is one half."""


class AssignmentEntry(TypedDict):
    """Sizes of the letters, and how many trials to make at them."""

    trials: int
    sizes: dict[str, int]


FamilyFile = TypedDict(
    "FamilyFile",
    {
        "$schema": NotRequired[str],
        "about": str,
        "assignments": list[AssignmentEntry],
        "recheck": list[AssignmentEntry],
        "elements": int,
        "inputs": list[InputEntry],
        "operators": dict[str, OperatorEntry],
    },
)


@dataclass(frozen=True, slots=True)
class TermKind:
    """The kind of a term of the enumeration: a label of the family ("matrix", "kernel"), and a type
    whose dims are letters.

    `full` says whether the residue modulo q is defined (see `meanings.field`).
    """

    label: str
    tensor: Tensor
    full: bool = True


@dataclass(frozen=True)
class Operator:
    """One operator of a family: a pattern over operands in the order in which they occur in it.

    `symbol` names it in canonical forms, where kinds are forgotten. `cut`: the result is cut
    between its operands along that axis; `part_of`: one half of the operand, which must be cut
    there in the middle; both halves are one node. `inputs_only`: operands are inputs.
    """

    name: str
    pattern: Graph
    symbol: str
    kinds: Mapping[str, str] = field(default_factory=dict)
    where: Expr | None = None
    result: str | None = None
    commutative: bool = False
    inputs_only: bool = False
    cut: int | None = None
    part_of: int | None = None

    @cached_property
    def operands(self) -> tuple[str, ...]:
        return tuple(n.attr("name") for n in topological(self.pattern.outputs) if n.op == "input")

    @property
    def half(self) -> int:
        """The half of a split that an operator with `part_of` gives: 0 or 1."""
        return int(self.pattern.outputs[0].attr("index"))

    def apply(self, kinds: Sequence[TermKind]) -> tuple[Node, TermKind] | None:
        """The typed term on variables named like the operands, and its kind (as if full); None
        where it does not fit."""
        if not self._fits(kinds):
            return None
        names: dict[str, Any] = {n: variable(n, k.tensor) for n, k in zip(self.operands, kinds, strict=True)}
        try:
            if self.where is not None and not self.where(names):
                return None
            term = self.on(names)
        except (IllTyped, Undecidable, LookupError, TypeError, ValueError, Unsupported):
            return None
        return term, TermKind(self.result or kinds[0].label, term.tensor)

    def _fits(self, kinds: Sequence[TermKind]) -> bool:
        labels = [k.label for k in kinds]
        if any(self.kinds.get(n, label) != label for n, label in zip(self.operands, labels, strict=True)):
            return False
        free = {label for n, label in zip(self.operands, labels, strict=True) if n not in self.kinds}
        return len(free) <= 1

    def on(self, names: Mapping[str, Any]) -> Node:
        """The term on typed operands; letters are sizes."""
        return instantiate(self.pattern, OperandNames(names))[0]


class OperandNames(dict[str, Any]):
    """Names of operands; any other name is a size."""

    def __missing__(self, key: str) -> Symbolic:
        return symbol(key)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Sizes of the letters, and how many field trials to make at them."""

    sizes: Mapping[str, int]
    trials: int


@dataclass(frozen=True)
class Family:
    """The inputs (name, group of interchangeable ones, kind), the operators, and where terms are
    evaluated: the enumeration fingerprints at `assignments`; equations are evaluated once more at
    `recheck`, where sizes are 1 and windows small."""

    name: str
    about: str
    inputs: tuple[tuple[str, int, TermKind], ...]
    operators: tuple[Operator, ...]
    assignments: tuple[Assignment, ...]
    recheck: tuple[Assignment, ...]
    elements: int

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """For every group of interchangeable inputs the bits of its members in a mask of inputs."""
        masks: dict[int, int] = {}
        for bit, (_, group, _) in enumerate(self.inputs):
            masks[group] = masks.get(group, 0) | 1 << bit
        return tuple(masks.values())

    @cached_property
    def halves(self) -> dict[str, int]:
        """The symbols of the halves of splits, with the axis that is split."""
        return {o.symbol: o.part_of for o in self.operators if o.part_of is not None}


def families() -> tuple[str, ...]:
    """The names of the families that there are."""
    return tuple(sorted(f.stem for f in FOLDER.glob("*.toml")))


def load_family(name: str) -> Family:
    """Read `families/NAME.toml`. InvalidOption where there is none, or where the file is wrong."""
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        raise InvalidOption(f"no family {name!r}; there are {', '.join(families())}")
    return read_family(path)


def read_family(path: Path) -> Family:
    """A family from its file.

    InvalidOption names the file, the entry and the field that is wrong.
    """
    try:
        data = checked_entry(str(path), tomllib.loads(read_text(path)), FamilyFile, "family")
        assignments, recheck = (tuple(_assignments(path, key, data[key])) for key in ("assignments", "recheck"))
        inputs = [each for group, row in enumerate(data["inputs"]) for each in _inputs(path, group, row)]
        operators = tuple(_operator(path, name, row) for name, row in data["operators"].items())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidOption(f"{path}: {error}") from None
    except SyntaxProblem as error:
        raise InvalidOption(str(error)) from None
    return Family(path.stem, data["about"], tuple(inputs), operators, assignments, recheck, data["elements"])


def _assignments(path: Path, key: str, rows: Sequence[Any]) -> Iterator[Assignment]:
    for i, row in enumerate(rows, 1):
        checked_entry(f"{path}: {key} number {i}", row, AssignmentEntry, "family")
        yield Assignment(row["sizes"], row["trials"])


def _inputs(path: Path, group: int, row: Any) -> Iterator[tuple[str, int, TermKind]]:
    label = f"{path}: inputs number {group + 1}"
    checked_entry(label, row, InputEntry, "family")
    with _naming(f"{label}, field shape"):
        kind = TermKind(row["kind"], Tensor(row.get("dtype", "float32"), _shape(row["shape"])))
    count = row.get("count", 1)
    for i in range(count):
        yield row["name"] + (str(i + 1) if count > 1 else ""), group, kind


def _operator(path: Path, name: str, row: Any) -> Operator:
    label = f"{path}: operator {name}"
    more = dict(checked_entry(label, row, OperatorEntry, "family"))
    with _naming(f"{label}, field term"):
        pattern = parse_equation(f"{more.pop('term')} == 0").lhs
    with _naming(f"{label}, field where"):
        where = Expr(more.pop("where")) if "where" in more else None
    return Operator(name, pattern, more.pop("symbol", name), where=where, **more)


@contextmanager
def _naming(label: str) -> Iterator[None]:
    """Raise SyntaxProblem, with the place, for a malformed text in a file."""
    try:
        yield
    except MALFORMED as error:
        said = f"{label}: {error or type(error).__name__}"
        raise SyntaxProblem(f"{said}; `taso-mirage schema family` describes it") from None


def _shape(text: str) -> tuple[Any, ...]:
    tree = ast.parse(text, mode="eval").body
    elements = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return tuple(parse_dim(ast.unparse(e)) for e in elements)
