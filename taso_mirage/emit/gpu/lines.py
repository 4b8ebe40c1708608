"""The lines of one generated kernel, in three sections: before its for-loop, in it, and after
it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from taso_mirage.emit.statements import ExpressionLike, Let, Statement, expression, let, mentioned, tl
from taso_mirage.ir.mugraph import LoopPhase


class Lines:
    """Statements in the order of writing; an expression that a section already has gets a name, and
    is not written again."""

    def __init__(self, reserved: frozenset[str], looped: bool) -> None:
        self.looped = looped
        self.sections: dict[LoopPhase, list[Statement]] = {stage: [] for stage in LoopPhase}
        self.last: list[Statement] = []
        """Statements at the end of an iteration."""
        self._taken = set(reserved)
        self._known: dict[tuple[LoopPhase, str], str] = {}
        self._ranges: dict[int, str] = {}

    def at(self, stage: LoopPhase) -> LoopPhase:
        """The section of a stage; without a loop there is a single section."""
        return stage if self.looped else LoopPhase.INVARIANT

    def name(self, hint: str) -> str:
        """A new name."""
        hint = re.sub(r"\W", "_", hint, flags=re.ASCII).strip("_") or "v"
        hint = f"v{hint}" if hint[0].isdigit() else hint
        found, i = hint, 1
        while found in self._taken:
            i += 1
            found = f"{hint}_{i}"
        self._taken.add(found)
        return found

    def let(self, stage: LoopPhase, hint: str, value: ExpressionLike) -> str:
        """The name of an expression's value."""
        stage, text = self.at(stage), str(expression(value))
        for earlier in (LoopPhase.INVARIANT, stage):  # a name known before the loop is known in it
            if (earlier, text) in self._known:
                return self._known[earlier, text]
        name = self.name(hint)
        self.write(stage, let(name, value))
        self._known[stage, text] = name
        return name

    def is_product(self, name: str) -> bool:
        """Whether a name's value is a product."""
        return any(" * " in _outside(text) for (_, text), known in self._known.items() if known == name)

    def write(self, stage: LoopPhase, statement: Statement) -> None:
        self.sections[self.at(stage)].append(statement)

    def lanes(self, n: int) -> str:
        """The name of 0, 1, ..., n-1."""
        if n not in self._ranges:
            self._ranges[n] = self.name(f"r{n}")
        return self._ranges[n]

    def ranges(self) -> list[Statement]:
        return [let(name, tl.arange(0, n)) for n, name in sorted(self._ranges.items())]

    def needed(
        self, statements: Sequence[Statement], names: Collection[str]
    ) -> tuple[list[Statement], list[Statement]]:
        """Statements of a section in two parts: those that give some names, with those that these
        need, and the others."""
        wanted, first = set(names), list[Statement]()
        for each in reversed(statements):
            if isinstance(each, Let) and each.name in wanted:
                wanted.update(mentioned(each.value))
                first.insert(0, each)
        return first, [each for each in statements if each not in first]

    def swept(self) -> tuple[dict[LoopPhase, list[Statement]], list[Statement]]:
        """The sections, and the end of an iteration, without the names that nothing reads."""
        used = {word for each in self.last for word in mentioned(each)}
        kept: dict[LoopPhase, list[Statement]] = {}
        for stage in reversed(LoopPhase):
            kept[stage] = []
            for each in reversed(self.sections[stage]):
                if not self._is_unread(each, stage, used):
                    used.update(mentioned(each))
                    kept[stage].insert(0, each)
        return kept, self.last

    def _is_unread(self, each: Statement, stage: LoopPhase, used: Collection[str]) -> bool:
        """Whether a statement only names a value that nothing reads."""
        if not isinstance(each, Let) or each.name in used:
            return False
        return self._known.get((stage, str(each.value))) == each.name


def _outside(expression: str) -> str:
    """The text of an expression outside of all parentheses."""
    inner = re.sub(r"\([^()]*\)", "", expression)
    return expression if inner == expression else _outside(inner)
