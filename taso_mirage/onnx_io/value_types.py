"""The types of a model's values, as the file declares them or the library infers them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Self

import onnx_ir as ir

from taso_mirage.ir.dims import Dim, Symbolic, parse_dim, symbol, symbols
from taso_mirage.ir.terms import Tensor
from taso_mirage.onnx_io.inference import inferred
from taso_mirage.onnx_io.typed_nodes import TypedOutput

UNDEFINED = (None, ir.DataType.UNDEFINED)
"""Dtypes of tensors of which inference knows only that they are tensors."""
NO_NAMES = frozenset({"none", "null", "undefined", "unk", "unknown"})
"""Names that exporters give to unknown dims, such as "?"; two such dims need not be equal."""


class ValueTypes:
    """The types of the values of one model, of which the inputs come first.

    `known`: the symbols whose sizes can be read from a tensor at run time; `input_sizes`: the
    symbols of the inputs. `elsewhere`: the value whose declaration holds for another one, because
    both are one term.
    """

    def __init__(self, source: ir.Model, elsewhere: Mapping[ir.Value, ir.Value], inputs: Sequence[ir.Value]) -> None:
        self.source, self.elsewhere = source, elsewhere
        self.own_symbols: dict[str, Symbolic] = {}
        self.known = {t for v in inputs for t in _dim_texts(v) if t.isidentifier() and not _unknown(t)}
        self.inputs = {v: self.of(v) for v in inputs}
        self.input_sizes = set(self.known)

    def copied(self) -> Self:
        """A copy that continues from this state."""
        other = copy(self)
        other.own_symbols, other.known = self.own_symbols.copy(), self.known.copy()
        return other

    def of(self, value: ir.Value) -> Tensor:
        """The declared type; a type that is no tensor type has its text as the dtype."""
        if value.type is None or (isinstance(value.type, ir.TensorType) and value.type.dtype in UNDEFINED):
            return Tensor("unknown", None)
        if not isinstance(value.type, ir.TensorType):
            return Tensor(str(value.type), None)
        if value.shape is None:
            return Tensor(dtype_name(value.type.dtype), None)
        dims = tuple(self.dim(d) for d in value.shape)
        return Tensor(dtype_name(value.type.dtype), dims)

    def dim(self, dim: int | ir.SymbolicDim) -> Dim:
        """A dim whose symbols can be read from a tensor at run time; any other dim becomes a new
        symbol."""
        if isinstance(dim, int):
            return dim if dim >= 0 else self._own_symbol(None)
        text = dim.value
        if _unknown(text):
            return self._own_symbol(None)
        parsed = parse_dim(text) if text and not text.isdecimal() else None
        if not isinstance(parsed, Symbolic):
            return self._own_symbol(text)
        readable = symbols(parsed) <= self.known or (text is not None and text.isidentifier())
        return parsed if readable else self._own_symbol(text)

    def _own_symbol(self, text: str | None) -> Symbolic:
        """A symbol for a size that has no usable name: the same for the same text, and never one
        that is taken."""
        if text and text in self.own_symbols:
            return self.own_symbols[text]
        stem = "d_" + re.sub(r"\W", "_", text) if text else f"unnamed_{len(self.own_symbols) + 1}"
        names = (f"{stem}_{i}" if i else stem for i in itertools.count())
        name = next(n for n in names if n not in self._texts and n not in self.known)
        self.own_symbols[text or name] = symbol(name)
        self.known.add(name)
        return symbol(name)

    @cached_property
    def _texts(self) -> set[str]:
        """Every name of a dim that the model uses."""
        graph = self.source.graph
        values = [*graph.inputs, *graph.outputs, *(o for node in graph for o in node.outputs)]
        return {text for value in values for text in _dim_texts(value)}

    @cached_property
    def _inferred(self) -> dict[str, ir.Value]:
        """Values by name after symbolic shape inference by the library, which runs only if an
        opaque node needs it."""
        return inferred(self._named_sizes())

    def _named_sizes(self) -> ir.Model:
        """A copy of the model whose inputs have the dims of the terms, so that inferred sizes refer
        to them."""
        copy, types = self.source.clone(), {v.name: type for v, type in self.inputs.items()}
        for value in copy.graph.inputs:
            type = types.get(value.name)
            if type is not None and type.shape is not None:
                value.shape = ir.Shape([d if isinstance(d, int) else str(d) for d in type.shape])
        return copy

    def ruled(self, value: ir.Value, typed: TypedOutput, names: dict[str, Dim]) -> Tensor:
        """A type by a rule. Sizes that are known only at run time are those of the file, or new
        symbols."""
        dtype, shape = typed
        value = self.elsewhere.get(value, value)
        declared = value.shape if value.shape is not None and len(value.shape) == len(shape) else [None] * len(shape)
        for size, said in zip(shape, declared, strict=True):
            if isinstance(size, str) and size not in names and not (said is None or _nameless(said)):
                names[size] = self.dim(said)
        dims = [names.setdefault(d, self._own_symbol(None)) if isinstance(d, str) else d for d in shape]
        return Tensor(dtype, tuple(dims))

    def output(self, value: ir.Value) -> Tensor:
        """The declared type, or the type that the library infers if a dim has no name."""
        value = self.elsewhere.get(value, value)
        if value.type is None or value.shape is None or any(_nameless(d) for d in value.shape):
            found = self._inferred.get(str(value.name))
            if found is not None and found.type is not None:
                return self.of(found)
        return self.of(value)


def _unknown(text: str | None) -> bool:
    return text is None or text.lower() in NO_NAMES or not any(c.isalnum() or c == "_" for c in text)


def _nameless(dim: int | ir.SymbolicDim) -> bool:
    return not isinstance(dim, int) and _unknown(dim.value)


def _dim_texts(value: ir.Value) -> list[str]:
    return [d.value for d in value.shape or () if not isinstance(d, int) and d.value]


def dtype_name(dtype: ir.DataType) -> str:
    """The name of a dtype in numpy, or in ONNX in small letters."""
    if dtype == ir.DataType.STRING:
        return "string"
    try:
        return str(dtype.numpy().name)
    except TypeError:
        return str(dtype.name).lower()
