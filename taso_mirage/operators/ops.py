"""Operators: each has one definition over the primitives, from which types, terms and all
interpretations follow."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from taso_mirage.errors import IllTyped, TasoMirageError, Undecidable, Unsupported
from taso_mirage.ir.dims import Dim, Shape, Symbolic, parse_dim, refuse_free
from taso_mirage.ir.terms import ABSENT, Graph, Literal, Node, Tensor, Type, constant
from taso_mirage.meanings.base import Meaning
from taso_mirage.meanings.shapes import SHAPES
from taso_mirage.meanings.sizes import fits
from taso_mirage.operators.additions import add_from_folders, add_from_plugins
from taso_mirage.operators.traits import NO_TRAITS, Traits
from taso_mirage.plugins import Plugin

V = TypeVar("V")
Ints = tuple[int, ...]
Maps = tuple[Ints, ...]
Floats = tuple[float, ...]
Dims = tuple[Dim, ...]

FEW_NUMBERS = 1024
"""The largest number of elements of a weight that importers read."""


class Untraceable(TasoMirageError):
    """A definition used a primitive where only operators are allowed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One ONNX node, as an importer reads it and an exporter writes it. Missing inputs are ABSENT.

    `outputs` counts up to the last one that is used, `listed` all that the node names (Split
    divides by it); `blank` are the places of those before the last that are left out. `weights` are
    the model's, by name: `numbers` reads small ones.
    """

    op_type: str
    args: tuple[Node, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 0
    domain: str = ""
    outputs: int = 1
    listed: int = 0
    blank: tuple[int, ...] = ()
    weights: Mapping[str, Any] = field(default_factory=dict)

    def arg(self, i: int) -> Node:
        return self.args[i] if i < len(self.args) else ABSENT

    def extents(self, i: int) -> Dims | None:
        """The elements of an integer input that is known before the model runs and fits its dtype;
        None if it is left out."""
        node = self.arg(i)
        if node is ABSENT:
            return None
        values = known_elements(node)
        if values is None or (node.dtype == "int32" and not all(fits(v, "int32") for v in values)):
            raise Unsupported(f"input {i} of {self.op_type} is computed at run time")
        return values

    def numbers(self, i: int) -> Floats | None:
        """The elements of an input of few numbers that is known before the model runs, an
        initializer too; None if it is left out."""
        node = self.arg(i)
        if node is ABSENT:
            return None
        if node.op == "constant":
            return tuple(map(float, node.attr("value").numpy().flat))
        known = self.weights.get(node.attr("name")) if node.op == "weight" else None
        if known is None or math.prod(node.shape) > FEW_NUMBERS:
            raise Unsupported(f"input {i} of {self.op_type} is computed at run time")
        return tuple(map(float, np.asarray(known.numpy()).flat))

    def scalar(self, i: int, default: float) -> float:
        """A number that is given as a constant input."""
        node = self.arg(i)
        if node is ABSENT:
            return default
        if node.op != "constant" or node.attr("value").numpy().size != 1:
            raise Unsupported(f"input {i} of {self.op_type} is computed at run time")
        return float(node.attr("value").numpy().reshape(()))


Importer = Callable[[Call], Node]
Exporter = Callable[[Node, int], Call]


@dataclass(frozen=True, slots=True)
class Example:
    """One legal use of an operator: operand types (or values) and attributes.

    Tests and fuzzing run over all of them.
    """

    operands: tuple[str | int | Sequence[Any] | None, ...]
    attrs: Mapping[str, Any]


@dataclass(eq=False)
class Op:
    """An operator.

    Calling it interprets its definition: `conv(SHAPES, x, w, group=2)`; over TERMS it builds a
    term.
    """

    name: str
    body: Callable[..., Any]
    operands: tuple[str, ...]
    variadic: bool
    attributes: dict[str, tuple[Callable[[Any], Any], Any]]
    onnx: str | None = None
    domain: str = ""
    since: int = 1
    until: int = 10**6
    from_inputs: Mapping[str, int] = field(default_factory=dict)
    commutative: bool = False
    truncates: bool = False
    law_texts: list[str] = field(default_factory=list)
    law_typings: dict[int, str] = field(default_factory=dict)
    law_plugins: dict[int, Plugin] = field(default_factory=dict)
    together: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    moving: set[int] = field(default_factory=set)
    examples: list[Example] = field(default_factory=list)
    traits: Traits = field(default_factory=Traits)
    import_hook: Importer | None = None
    export_hook: Exporter | None = None

    def __call__(self, xp: Meaning[Any], *args: Any, **attrs: Any) -> Any:
        if isinstance(xp, TermBuilder):
            return self.term(*args, **attrs)
        return xp.operator(self.onnx, self.body, *args, **attrs)

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.body) or ""

    def term(self, *args: Node | None, **attrs: Any) -> Node:
        """The interned, typed term of this operator.

        Raises IllTyped with the operator's name and operand types.
        """
        operands = list(args)
        while operands and (operands[-1] is None or operands[-1] is ABSENT):
            operands.pop()
        nodes = tuple(ABSENT if a is None else a for a in operands)
        values = self.normalise(attrs)
        return Node(self.name, nodes, tuple(values.items()), lambda: self.infer(nodes, values))

    def normalise(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes in the order of the signature, with defaults, as hashable values."""
        if unknown := attrs.keys() - self.attributes.keys():
            raise IllTyped(f"{self.name} has no attribute {sorted(unknown)[0]}; it has {', '.join(self.attributes)}")
        values = {}
        for name, (kind, default) in self.attributes.items():
            value = attrs.get(name, default)
            if value is inspect.Parameter.empty:
                raise IllTyped(f"{self.name} needs the attribute {name}")
            values[name] = value if value is None or isinstance(value, Opaque) else kind(value)
        return values

    @property
    def sized(self) -> frozenset[str]:
        """The attributes that hold several sizes, which may be symbolic."""
        return frozenset(name for name, (kind, _) in self.attributes.items() if kind is _KINDS[Dims])

    def infer(self, args: Sequence[Node], attrs: Mapping[str, Any]) -> Type:
        """The type of a term by the meaning `shapes`; None when an operand or attribute is a
        pattern's variable."""
        if any(a.type is None for a in args) or any(isinstance(v, Opaque) for v in attrs.values()):
            return None
        types = [None if a is ABSENT else a.type for a in args]
        try:
            result: Type = self.body(SHAPES, *types, **attrs)
            return result
        except (IllTyped, Undecidable) as error:
            shown = ", ".join("-" if t is None else str(t) for t in types)
            raise type(error)(f"{self.name}({shown}): {error}") from None
        except (IndexError, ValueError, TypeError, KeyError, ArithmeticError) as error:
            shown = ", ".join("-" if t is None else str(t) for t in types)
            raise IllTyped(f"{self.name}({shown}), {dict(attrs)}: {error}") from None

    def laws(self, text: str, together: bool = False, last: bool = False, moving: bool = False) -> None:
        """State equations `lhs == rhs where guard`, one per line; tests check every one.

        `*b` is an optional operand (`rewriting/optional_operands.py`). A line `given x: (m, k) | p:
        (k, m)` below a law is one typing of it, with its attributes; the tests draw typings around
        that, or else around the operators' examples. `together`, `last` and `moving` are described
        in `Equation`.
        """
        for line in (each.strip() for each in text.strip().splitlines()):
            if line.startswith("given "):
                self.law_typings[len(self.law_texts) - 1] = line.removeprefix("given ")
            elif line and line[0] != "#":
                self.together |= {len(self.law_texts)} if together else set()
                self.last |= {len(self.law_texts)} if last else set()
                self.moving |= {len(self.law_texts)} if moving else set()
                self.law_texts.append(line)

    def example(self, *operands: str | int | Sequence[Any] | None, **attrs: Any) -> None:
        """State one legal use: types like "float32[2,3]", values like [0, 2] or 2, None for an
        operand left out."""
        self.examples.append(Example(operands, attrs))

    def importer(self, hook: Importer) -> Importer:
        """Replace the default reading of the ONNX node (operands in order, attributes by name)."""
        self.import_hook = hook
        return hook

    def exporter(self, hook: Exporter) -> Exporter:
        """Replace the default writing of the ONNX node."""
        self.export_hook = hook
        return hook

    def from_onnx(self, call: Call) -> Node:
        """The term of an ONNX node. Raises Unsupported with the reason if the mapping does not
        hold."""
        if not self.since <= call.opset <= self.until:
            raise Unsupported(f"{call.op_type} of opset {call.opset}; the mapping begins at opset {self.since}")
        return (self.import_hook or self._read)(call)

    def _read(self, call: Call) -> Node:
        if call.outputs > 1:
            raise Unsupported(f"{call.op_type} with {call.outputs} outputs")
        attrs = dict(call.attrs)
        moved = [name for name, opset in self.from_inputs.items() if call.opset >= opset]
        given = call.args if self.variadic else call.args[: len(self.operands)]
        for i, name in enumerate(moved, len(self.operands)):
            value = call.extents(i)
            if value is not None:
                attrs[name] = value
        if unknown := attrs.keys() - self.attributes.keys():
            raise Unsupported(f"{call.op_type} with the attribute {sorted(unknown)[0]}")
        return self.term(*given, **attrs)

    def to_onnx(self, node: Node, opset: int) -> Call:
        """The ONNX node of a term at an opset. Raises Unsupported if there is none."""
        if self.onnx is None or not self.since <= opset <= self.until:
            raise Unsupported(f"{self.name} has no ONNX operator at opset {opset}")
        call = (self.export_hook or self._write)(node, opset)
        refuse_free(call.attrs)
        return call

    def _write(self, node: Node, opset: int) -> Call:
        attrs: dict[str, Any] = {k: v for k, v in node.attrs if v is not None}
        args = list(node.args)
        for name, since in self.from_inputs.items():
            if opset >= since:
                args += [ABSENT] * (len(self.operands) - len(args))
                args.append(extents(attrs.pop(name)) if name in attrs else ABSENT)
        while args and args[-1] is ABSENT:
            args.pop()
        return Call(self.onnx or "", tuple(args), attrs, opset, self.domain)


class Opaque:
    """An attribute whose value is not known: a pattern's attribute variable or expression (see
    `text`)."""


def _dim(value: Any) -> Dim:
    """A size, or a text that names one."""
    return parse_dim(value) if isinstance(value, str) else value if isinstance(value, Symbolic) else int(value)


REGISTRY: dict[str, Op] = {}
_KINDS: dict[Any, Callable[[Any], Any]] = {
    int: _dim,  # a size that is known only at run time
    float: float,
    str: lambda v: v.decode() if isinstance(v, bytes) else str(v),
    Ints: lambda v: tuple(int(x) for x in v),
    Floats: lambda v: tuple(float(x) for x in v),
    Dim: _dim,
    Dims: lambda v: tuple(_dim(x) for x in v),
    Literal: lambda v: v,
    Maps: lambda v: tuple(tuple(int(x) for x in each) for each in v),
    Graph: lambda v: v,
}


def op(**mapping: Any) -> Callable[[Callable[..., Any]], Op]:
    """Register an operator.

    Positional parameters after `xp` are operands (a default of None makes one optional),
    keyword-only ones are attributes, their annotation one of int, float, str, Ints, Maps, Floats,
    Dim, Dims, Literal, Graph.

    `onnx`, `domain`, `since`, `until`: the ONNX operator and the opsets at which the mapping holds;
    `from_inputs={"axes": 13}`: the attribute is an ONNX input from that opset on; `commutative`
    where the first two operands may change places; `truncates` where the definition on integers is
    no ring arithmetic (a quotient), so that laws over the reals do not hold there. Other names are
    those of `Traits`.
    """
    traits = Traits(**{name: mapping.pop(name) for name in mapping.keys() & Traits.__dataclass_fields__.keys()})

    def register(body: Callable[..., Any]) -> Op:
        hints = typing.get_type_hints(body, include_extras=True)
        parameters = list(inspect.signature(body).parameters.values())[1:]
        operands = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        attributes = {p.name: (_kind(hints[p.name]), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}
        created = Op(
            name=body.__name__.rstrip("_"),
            body=body,
            operands=tuple(p.name for p in operands if p.kind is not p.VAR_POSITIONAL),
            variadic=any(p.kind is p.VAR_POSITIONAL for p in operands),
            attributes=attributes,
            traits=traits,
            **mapping,
        )
        if created.name in REGISTRY:
            raise ValueError(f"two operators are called {created.name}")
        REGISTRY[created.name] = created
        return created

    return register


def _kind(hint: Any) -> Callable[[Any], Any]:
    inner = [a for a in typing.get_args(hint) if a is not type(None)]
    if hint not in _KINDS and len(inner) == 1 and inner[0] in _KINDS:
        hint = inner[0]
    return _KINDS[hint]


def data_folder(name: str) -> Path:
    """`op_specs` or `substitutions`: inside the package in a wheel, beside it in a checkout."""
    inside = Path(__file__).parent.parent / name
    return inside if inside.is_dir() else Path(__file__).parents[2] / name


@cache
def load_specs() -> Mapping[str, Op]:
    """All operators: those of `op_specs/`, of own folders and of plug-ins; read on first use."""
    folder = data_folder("op_specs")
    if "op_specs" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "op_specs", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise TasoMirageError(f"no operator specifications in {folder}; reinstall taso-mirage")
        package = importlib.util.module_from_spec(spec)
        sys.modules["op_specs"] = package
        spec.loader.exec_module(package)
    for file in sorted(folder.glob("*.py")):
        if file.stem != "__init__":
            importlib.import_module(f"op_specs.{file.stem}")
    add_from_folders(REGISTRY)
    add_from_plugins(REGISTRY)
    return REGISTRY


def get(name: str) -> Op:
    """The operator of that name; KeyError with the nearest names."""
    registry = load_specs()
    if name not in registry:
        near = importlib.import_module("difflib").get_close_matches(name, registry, 3)
        raise KeyError(f"no operator {name}" + (f"; did you mean {', '.join(near)}?" if near else ""))
    return registry[name]


def traits(node: Node) -> Traits:
    """The traits of a term's operator; leaves and opaque terms have none."""
    op = load_specs().get(node.op)
    return NO_TRAITS if op is None else op.traits


@cache
def by_onnx() -> Mapping[tuple[str, str], tuple[Op, ...]]:
    """The operators of an ONNX (domain, op type)."""
    found: dict[tuple[str, str], tuple[Op, ...]] = {}
    for each in load_specs().values():
        if each.onnx is not None:
            key = (each.domain, each.onnx)
            found[key] = (*found.get(key, ()), each)
    return found


class TermBuilder(Meaning[Node]):
    """The meaning that builds terms: operators become nodes; primitives other than constants have
    no term."""

    def shape(self, a: Node) -> Shape:
        return a.shape

    def dtype(self, a: Node) -> str:
        return a.dtype

    def constant(self, value: Literal) -> Node:
        return Node("constant", (), (("value", value),), Tensor(value.dtype, value.shape))

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Node:
        return extents(tuple(values), scalar)

    def __getattribute__(self, name: str) -> Any:
        if name in _PRIMITIVES:
            raise Untraceable(f"the primitive {name} is no operator")
        return super().__getattribute__(name)


_PRIMITIVES = frozenset(
    "iota map cast contract reduce cumulate reshape transpose expand concat slice pad window take take_along put".split()
)
TERMS = TermBuilder()


def term(name: str, *args: Node | None, **attrs: Any) -> Node:
    """`get(name).term(...)`."""
    return get(name).term(*args, **attrs)


def extents(values: Iterable[Dim], scalar: bool = False) -> Node:
    """The int64 vector (or scalar) of sizes; an ordinary constant if all are fixed."""
    dims = tuple(values)
    if all(isinstance(v, int) for v in dims):
        return constant(np.array(dims[0] if scalar else dims, np.int64))
    return get("extents").term(values=dims, scalar=int(scalar))


def known_elements(node: Node) -> Dims | None:
    """The elements of an integer term that is known before the model runs, else None."""
    if node.op == "constant":
        array = node.attr("value").numpy()
        return tuple(int(v) for v in array.flat) if array.dtype.kind in "iub" else None
    if node.op == "extents":
        values: Dims = node.attr("values")
        return values
    return known_elements(node.args[0]) if _is_narrowed(node) else None


def _is_narrowed(node: Node) -> bool:
    """Sizes as int32, the type in which tf2onnx and PaddlePaddle compute shapes. The conversion
    from int64 wraps, as their sums and products do."""
    return len(node.args) == 1 and node.args[0].op == "extents" and traits(node).converts and node.dtype == "int32"
