"""The programs for the terms of a muGraph on a GPU: one for each launched operator, and one for
each form that is found."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from taso_mirage.emit.discovery import discovered
from taso_mirage.emit.gpu.moved_tensors import OperandTensor
from taso_mirage.emit.gpu.program import WORDS, LaunchSchedule, TritonBuffer, TritonLaunch
from taso_mirage.ir.terms import Node


class LaunchedFunction(ABC):
    """A term as one function of a generated module.

    `specialized`: whether groups of its warps run without waiting for each other, in Gluon.
    `helpers`: texts that its module contains once. `body`: the terms that the function computes one
    by one.
    """

    specialized: bool = False
    helpers: Sequence[str] = ()
    body: Iterable[Node] = ()

    @abstractmethod
    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        """The launch of the function, with this schedule or a first one."""

    @abstractmethod
    def source(self) -> str:
        """The text of the function."""

    @abstractmethod
    def explained(self) -> list[str]:
        """Sentences that give the reasons for the form of the function."""


Buffers: TypeAlias = Sequence[TritonBuffer | None]
OperandTensors: TypeAlias = Sequence[OperandTensor | None]
WriteFunction: TypeAlias = Callable[[Node, str, OperandTensors, Buffers, Sequence[str]], LaunchedFunction]


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """The program for the terms of an operator.

    `function` makes the function of a term from its name, the buffers that it reads and writes, and
    the sizes that a run gives. `in_groups` makes of such a function the one whose groups of warps
    do not wait for each other, if there is one. Both raise Unsupported if a term has none.
    `helpers`: all texts that a module with such functions may contain once.
    """

    op: str
    function: WriteFunction
    in_groups: Callable[[Any], LaunchedFunction] | None = None
    helpers: tuple[str, ...] = ()


@cache
def gpu_programs() -> Mapping[str, GpuProgram]:
    """The programs of the forms, by their operators."""
    programs = [form.program for form in discovered()]
    return {each.op: each for each in programs if isinstance(each, GpuProgram)}


@cache
def reserved_names() -> frozenset[str]:
    """Names that all generated modules use themselves."""
    texts = [text for each in gpu_programs().values() for text in each.helpers]
    return WORDS.union(*map(bound_names, texts))


def bound_names(source: str) -> set[str]:
    """The names that a module binds at its top level: of functions, imports and constants."""
    found = set[str]()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return found


def own_names(source: str) -> set[str]:
    """All names in functions: their own, those of parameters, and those that they read or bind."""
    tree = list(ast.walk(ast.parse(source)))
    found = {node.id for node in tree if isinstance(node, ast.Name)}
    return (
        found
        | {n.arg for n in tree if isinstance(n, ast.arg)}
        | {n.name for n in tree if isinstance(n, ast.FunctionDef)}
    )
