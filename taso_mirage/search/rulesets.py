"""Sets of rules as values: the rules that the optimizer may apply, combined with `+` and `-`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from taso_mirage.errors import InvalidOption, SyntaxProblem
from taso_mirage.rewriting import library
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.text import laws
from taso_mirage.search.plugin_rules import plugin_rules
from taso_mirage.system.wording import option


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Equations of unique names, in the order in which they are tried.

    `a + b` has the equations of both; where both have a name, it is b's. `a - "relu.*"` leaves out
    the equations whose names match the pattern. Every equation, from any source, applies only in
    cases in which it is proved.
    """

    equations: tuple[Equation, ...] = ()

    def __iter__(self) -> Iterator[Equation]:
        return iter(self.equations)

    def __len__(self) -> int:
        return len(self.equations)

    def __add__(self, other: RuleSet) -> RuleSet:
        """The union of two sets."""
        named = {each.name: each for each in (*self, *other)}
        return RuleSet(tuple(named.values()))

    def __sub__(self, names: str | Iterable[str]) -> RuleSet:
        """The set without the rules whose names match a pattern (as a shell's: * and ?)."""
        patterns = (names,) if isinstance(names, str) else tuple(names)
        for pattern in patterns:
            if not any(fnmatchcase(each.name, pattern) for each in self):
                raise InvalidOption(f"no rule is named {pattern!r}; `taso-mirage substitutions list` names all")
        return self.where(lambda each: not any(fnmatchcase(each.name, pattern) for pattern in patterns))

    def where(self, keep: Callable[[Equation], bool]) -> RuleSet:
        """The equations for which `keep` is true."""
        return RuleSet(tuple(each for each in self if keep(each)))


@cache
def rules() -> RuleSet:
    """All that the optimizer applies by default: the laws of the operators, the generated library,
    and the rules of plug-ins.

    Raises InvalidOption with the counterexample where a rule of a plug-in is wrong.
    """
    shipped = library.load_rules()
    added = plugin_rules(frozenset(rule.name for rule in shipped))
    return RuleSet((*laws(), *(rule.equation for rule in (*shipped, *added))))


def rules_of(path: Path) -> RuleSet:
    """The rules of a file in the library's format.

    Raises InvalidOption with the place where it cannot be read.
    """
    try:
        return RuleSet(tuple(rule.equation for rule in library.read(path)))
    except (SyntaxProblem, InvalidOption) as error:
        raise InvalidOption(f"{option('rules')}: {error}") from None
