"""The lines of one generated kernel, in three sections: before its for-loop, in it, and after
it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from taso_mirage.ir.mugraph import LoopPhase

WORD = re.compile(r"\w+")


class Lines:
    """Statements in the order of writing; an expression that a section has already is named, not
    written again."""

    def __init__(self, reserved: frozenset[str], looped: bool) -> None:
        self.looped = looped
        self.sections: dict[LoopPhase, list[str]] = {stage: [] for stage in LoopPhase}
        self.last: list[str] = []
        """Lines at the end of an iteration."""
        self._taken = set(reserved)
        self._known: dict[tuple[LoopPhase, str], str] = {}
        self._ranges: dict[int, str] = {}

    def at(self, stage: LoopPhase) -> LoopPhase:
        """The section of a stage: without a loop there is one."""
        return stage if self.looped else LoopPhase.INVARIANT

    def name(self, hint: str) -> str:
        """A name that nothing has yet."""
        hint = re.sub(r"\W", "_", hint, flags=re.ASCII).strip("_") or "v"
        hint = f"v{hint}" if hint[0].isdigit() else hint
        found, i = hint, 1
        while found in self._taken:
            i += 1
            found = f"{hint}_{i}"
        self._taken.add(found)
        return found

    def let(self, stage: LoopPhase, hint: str, expression: str) -> str:
        """The name of an expression's value."""
        stage = self.at(stage)
        for earlier in (LoopPhase.INVARIANT, stage):  # a name known before the loop is known in it
            if (earlier, expression) in self._known:
                return self._known[earlier, expression]
        name = self.name(hint)
        self.write(stage, f"{name} = {expression}")
        self._known[stage, expression] = name
        return name

    def is_product(self, name: str) -> bool:
        """Whether a name's value is a product."""
        return any(" * " in _outside(expression) for (_, expression), known in self._known.items() if known == name)

    def write(self, stage: LoopPhase, line: str) -> None:
        self.sections[self.at(stage)].append(line)

    def lanes(self, n: int) -> str:
        """The name of 0, 1, ..., n-1."""
        if n not in self._ranges:
            self._ranges[n] = self.name(f"r{n}")
        return self._ranges[n]

    def ranges(self) -> list[str]:
        return [f"{name} = tl.arange(0, {n})" for n, name in sorted(self._ranges.items())]

    def needed(self, lines: Sequence[str], names: Collection[str]) -> tuple[list[str], list[str]]:
        """Lines of a section in two parts: those that give some names, with the lines that these
        need, and the others."""
        wanted, first = set(names), list[str]()
        for line in reversed(lines):
            name, is_name, value = line.partition(" = ")
            if is_name and name in wanted:
                wanted.update(WORD.findall(value))
                first.insert(0, line)
        return first, [line for line in lines if line not in first]

    def swept(self) -> tuple[dict[LoopPhase, list[str]], list[str]]:
        """The sections, and the end of an iteration, without the names that nothing reads."""
        used = {word for line in self.last for word in WORD.findall(line)}
        kept: dict[LoopPhase, list[str]] = {}
        for stage in reversed(LoopPhase):
            kept[stage] = []
            for line in reversed(self.sections[stage]):
                name, is_name, value = line.partition(" = ")
                if not is_name or not name.isidentifier() or name in used or self._known.get((stage, value)) != name:
                    used.update(WORD.findall(line))
                    kept[stage].insert(0, line)
        return kept, self.last


def _outside(expression: str) -> str:
    """The text of an expression outside of all parentheses."""
    inner = re.sub(r"\([^()]*\)", "", expression)
    return expression if inner == expression else _outside(inner)
