"""A model: a graph with its weights, and the data around it that must survive (names, header, the
nodes' origins)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.dims import evaluate, symbols
from taso_mirage.ir.terms import Graph, Node, Tensor, integer_limits, is_float, numpy_dtype, topological, variable
from taso_mirage.system.wording import option

DRAWN = 65_521
"""The largest number of random numbers that are drawn for an array; they repeat, since drawing all
of a decoder's cache takes as long as many runs. A prime number, so that no two rows are equal."""


WORDS = tuple(map(str, range(10)))
"""Texts where a model names none: numbers, which an operator may read."""


class Weight(Protocol):
    """A tensor that may still be stored in a file."""

    def numpy(self) -> NDArray[Any]: ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class StoredWeight:
    """A weight that was computed here, from the term `of` over other weights if given; equal only
    to itself."""

    array: NDArray[Any]
    of: Node | None = None

    def numpy(self) -> NDArray[Any]:
        return self.array


class TurnedWeight:
    """A view of a weight's array that is copied in the order of its own axes when it is first read,
    because most forms of a large model's weights are never used. Equal only to itself."""

    __slots__ = ("__weakref__", "_array")

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def numpy(self) -> NDArray[Any]:
        self._array = np.ascontiguousarray(self._array)
        return self._array


@dataclass(frozen=True, slots=True)
class Origin:
    """The name, documentation and metadata of the ONNX node that a term came from."""

    name: str | None
    doc: str | None
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Model:
    """`header` is the ONNX border's own; `names` are those of values; `opaque` says why a node has
    no definition here; `sizes` are the assumed sizes of its free dims, `integers` the values of
    scalars that choose a branch, `rows` those of the tables that integers of an input index,
    `shares` the inputs whose floats are between 0 and 1, `words` the texts that operators look for
    in an input, `scales` the lengths of the rows of inputs whose floats are small; `defaults` are
    the values of inputs that a caller leaves out; `source` is the model as it was read, where the
    header is not; `results` are the border's own for a model whose nodes are read again.
    `trusted`: its kernels may run, since they were made here, or the user says so;
    else they are data."""

    graph: Graph
    weights: Mapping[str, Weight]
    output_names: tuple[str, ...]
    opsets: Mapping[str, int]
    header: Any
    names: Mapping[Node, str] = field(default_factory=dict, repr=False)
    origins: Mapping[Node, Origin] = field(default_factory=dict, repr=False)
    opaque: Mapping[Node, str] = field(default_factory=dict, repr=False)
    sizes: Mapping[str, int] = field(default_factory=dict)
    integers: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    shares: Collection[str] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scales: Mapping[str, float] = field(default_factory=dict)
    defaults: Mapping[str, Weight] = field(default_factory=dict, repr=False)
    source: Any = field(default=None, repr=False)
    results: Any = field(default=None, repr=False)
    trusted: bool = False

    @property
    def opset(self) -> int:
        return self.opsets.get("", 0)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(n.attr("name") for n in self.graph.inputs)

    def default_inputs(self) -> dict[str, NDArray[Any]]:
        """The values of inputs that a caller may leave out."""
        return {name: np.asarray(each.numpy()) for name, each in self.defaults.items()}

    def with_graph(self, outputs: tuple[Node, ...], weights: Mapping[str, Weight] | None = None) -> Model:
        """This model with other outputs; existing terms keep their names."""
        return replace(
            self, graph=Graph(self.graph.inputs, outputs), weights=self.weights if weights is None else weights
        )

    def without_library(self) -> Model:
        """This model without the right to load its kernel library; functions run in place of
        kernels."""
        return replace(self, trusted=False)

    def symbols(self) -> list[str]:
        """The named sizes of the inputs, in order of appearance."""
        found: dict[str, None] = {}
        for node in self.graph.inputs:
            for dim in node.tensor.shape or ():
                found.update(dict.fromkeys(sorted(symbols(dim))))
        return list(found)

    def nodes(self) -> list[Node]:
        """All terms, operands first."""
        return topological(self.graph.outputs)


def random_inputs(
    model: Model,
    seed: int,
    sizes: Mapping[str, int] | None = None,
    wide: bool = False,
    extreme: Collection[str] = (),
    kept: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, NDArray[Any]]:
    """Inputs by name: normal floats, or shares, rows of the table that integers index, other
    integers 0 or 1 (masks), fair booleans, the model's own `integers`, texts that it knows or
    numbers as texts.

    `sizes` fixes symbols. Inputs with a default have its value.

    With `wide`, integers are of both signs up to 100 and never 0; those of the inputs that
    `extreme` names are the least and the greatest of their type, -1 and 0, or the first and the
    last row of a table. Those in `kept` are as they are there.
    """
    rng = np.random.default_rng(seed)
    known = {**dict.fromkeys(model.symbols(), 2), **model.sizes, **(sizes or {})}
    found: dict[str, NDArray[Any]] = {**model.default_inputs(), **(kept or {})}
    for node in model.graph.inputs:
        name = node.attr("name")
        if name in model.integers and name not in found and not wide and name not in extreme:
            found[name] = np.full([int(n) for n in node.shape], model.integers[name], numpy_dtype(node.dtype))
        elif name not in found:
            told = model.rows.get(name), model.words.get(name, ())
            array = random_array(node, rng, known, wide, name in extreme, *told)
            array = np.exp(-np.abs(array)) if name in model.shares and array.dtype.kind == "f" else array
            found[name] = _with_rows_of(array, model.scales[name]) if name in model.scales else array
    return found


def _with_rows_of(array: NDArray[Any], length: float) -> NDArray[Any]:
    """Normal numbers, scaled so that the rows have about this length."""
    return (array * (length / max(1, array.shape[-1] if array.ndim else 1) ** 0.5)).astype(array.dtype)


def random_array(
    node: Node,
    rng: np.random.Generator,
    sizes: Mapping[str, int],
    wide: bool = False,
    extreme: bool = False,
    rows: int | None = None,
    words: Sequence[str] = (),
) -> NDArray[Any]:
    """A random value of the type of `node`, integers 0, 1 or those of `rows` of a table, texts from
    `words` and one other, or numbers as texts: an array, also where the rank is 0."""
    if node.tensor.shape is None:
        raise InvalidOption(
            f"no random value can be made for the input {node.attr('name')!r} ({node.type}); use {option('inputs')}"
        )
    shape = tuple(evaluate(d, sizes) for d in node.shape)
    if node.dtype == "string":
        return np.asarray(rng.choice(np.array([*words, *(WORDS[:1] if words else WORDS)], object), shape))
    dtype = numpy_dtype(node.dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return _integers(dtype, shape, rng, wide, extreme, rows)
    if not is_float(node.dtype):  # integers that numpy does not have
        least, largest = integer_limits(node.dtype)
        return np.asarray(rng.integers(least, largest + 1, shape)).astype(dtype)
    if prod(shape) <= DRAWN:
        return np.asarray(rng.normal(size=shape)).astype(dtype)
    return np.resize(rng.normal(size=DRAWN).astype(dtype), shape)


def _integers(
    dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator, wide: bool, extreme: bool, rows: int | None
) -> NDArray[Any]:
    if extreme and rows is not None:  # a row outside has no meaning, and the CUDA provider takes zeros for it
        return np.asarray(rng.choice(np.array([0, rows - 1], dtype), shape))
    if extreme:
        signed = dtype.kind == "i"
        ends = np.iinfo(dtype)
        return np.asarray(rng.choice(np.array([ends.min, ends.max, 0, -1 if signed else 1], dtype), shape))
    if wide:
        signs = rng.choice([-1, 1], shape) if dtype.kind == "i" else 1
        return np.asarray(rng.integers(1, 101, shape) * signs).astype(dtype)
    return np.asarray(rng.integers(0, 2 if rows is None else rows, shape)).astype(dtype)


def repeated_array(node: Node, rng: np.random.Generator) -> NDArray[Any]:
    """A random value of fixed sizes, for measuring; those of a large one repeat: drawing them all
    takes longer than the measurement."""
    few = variable("", Tensor(node.dtype, (DRAWN,)))
    large = node.tensor.shape is not None and prod(map(int, node.shape)) > DRAWN
    return np.resize(random_array(few, rng, {}), [int(n) for n in node.shape]) if large else random_array(node, rng, {})
