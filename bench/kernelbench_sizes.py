"""The sizes of a KernelBench program, made smaller in its source: the numbers that it assigns to
names at its top level, by these names."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

BATCH = re.compile(r"(batch|batch_size|b)$")
"""Names of how many samples there are."""
EXTENT = re.compile(
    r"((image_|input_)?(height|width|depth|length)(_in)?|dim\d*|features|(in|out|num)_features|(seq|sequence)_?len(gth)?"
    r"|max_seqlen|(input|hidden|output|image|feature)_size|input_shape|(hidden_)?layer_sizes|[A-Zijklmn])$"
)
"""Names of extents: of images and sequences, and of the operands of products."""
LEAST = {BATCH: 2, EXTENT: 16}
"""No size is made smaller than this; those of a batch leave something to normalize over."""
Sizes = dict[str, tuple[Any, Any]]
"""For each changed name, its value in the benchmark, and here."""


def attempts(source: str, scale: float) -> Iterator[tuple[str, Sizes]]:
    """The source with smaller sizes, and the changes: batches `scale` times as small and extents
    its square root times; then both so many times, for a batch that has to be as large as an
    extent; then batches alone; then the source itself."""
    root = math.sqrt(scale)
    for batch, extent in ((scale, root), (root, root), (scale, 1.0)):
        yield _scaled(source, {BATCH: batch, EXTENT: extent})
    yield source, {}


def _scaled(source: str, factors: Mapping[re.Pattern[str], float]) -> tuple[str, Sizes]:
    tree, changed = ast.parse(source), {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            for name, value in _assigned(statement):
                for kind, factor in factors.items():
                    if kind.match(name) and (smaller := _smaller(value, factor, LEAST[kind])) != value:
                        changed[name] = (value, smaller)
            _write(statement, changed)
    return (ast.unparse(tree), changed) if changed else (source, {})


def _assigned(statement: ast.Assign) -> Iterator[tuple[str, Any]]:
    """The names that a statement gives numbers to, and these."""
    value = _value(statement.value)
    for target in statement.targets:
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple):
            yield from zip(map(ast.unparse, target.elts), value, strict=True)


def _value(node: ast.expr) -> Any:
    """The value of an expression of numbers alone, else None."""
    if any(isinstance(part, ast.Name | ast.Call | ast.Attribute) for part in ast.walk(node)):
        return None
    return eval(compile(ast.Expression(node), "<sizes>", "eval"), {"__builtins__": {}})


def _smaller(value: Any, factor: float, least: int) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_smaller(each, factor, least) for each in value)
    if not isinstance(value, int) or isinstance(value, bool) or value <= least:
        return value
    return max(least, int(value / factor))


def _write(statement: ast.Assign, changed: Sizes) -> None:
    """Put the smaller numbers in their places."""
    for target in statement.targets:
        if isinstance(target, ast.Name) and target.id in changed:
            statement.value = ast.parse(repr(changed[target.id][1]), mode="eval").body
        elif isinstance(target, ast.Tuple):
            names = [ast.unparse(each) for each in target.elts]
            if changed.keys() & set(names):
                theirs = dict(zip(names, _value(statement.value), strict=True))
                numbers = tuple(changed[name][1] if name in changed else theirs[name] for name in names)
                statement.value = ast.parse(repr(numbers), mode="eval").body
