"""Every order in which the groups of a block may go on: the effect of each on barriers and shared
memory is known (`gluon_blocks`), and copies are done at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gluon_blocks import Block, Event

FLYING = -1
"""The state of a slot while it is copied to."""


class Wrong(Exception):
    """A state that must not be: the groups wait for ever, or one reads memory that was not
    written."""


@dataclass(frozen=True)
class State:
    """Where each group is, the state of each mbarrier (arrivals left, copies left, parity), the
    number of the tile that each slot has, which turns were passed, and the copies that are on their
    way."""

    at: tuple[int, ...]
    barriers: tuple[tuple[int, int, int], ...]
    slots: tuple[int, ...]
    turns: tuple[int, int] = (0, 0)
    flying: frozenset[tuple[int, int, int]] = frozenset()


@dataclass
class _Step:
    """A state in the making: one group goes on from where it waits to where it next may wait, or
    where another may see its reads."""

    states: States
    at: int
    barriers: list[tuple[int, int, int]]
    slots: list[int]
    turns: list[int]
    flying: set[tuple[int, int, int]]
    first: bool = True

    def run(self, events: Sequence[Event]) -> bool:
        """Whether the group can go on at all."""
        while self.at < len(events):
            word, *rest = events[self.at]
            if not self.first and (word in ("wait", "sync") or (word == "end" and events[self.at - 1][0] != "begin")):
                return True
            if not getattr(self, f"_{word}")(*rest):
                return False
            self.at, self.first = self.at + 1, False
        return True

    def _wait(self, barrier: int, parity: int) -> bool:
        return self.barriers[barrier][2] != parity

    def _sync(self, turn: int) -> bool:
        passed, self.turns[turn] = self.turns[turn], 0
        return passed == 1

    def _pass(self, turn: int) -> bool:
        if self.turns[turn] == 1:
            raise Wrong(f"turn {turn} is passed twice")
        self.turns[turn] = 1
        return True

    def _begin(self, slot: int, tile: int) -> bool:
        if self.slots[slot] != tile:
            raise Wrong(f"{self.states.places[slot]} has tile {self.slots[slot]} where {tile} is read")
        return True

    _end = _begin

    def _write(self, slot: int, tile: int) -> bool:
        self.slots[slot] = tile
        return True

    def _arrive(self, barrier: int, copies: int = 0) -> bool:
        arrivals, left, parity = self.barriers[barrier]
        if arrivals == 0:
            raise Wrong(f"{self.states.names[barrier]} has more arrivals than it counts")
        self.barriers[barrier] = self.states.phase(barrier, arrivals - 1, left + copies, parity)
        return True

    def _expect(self, barrier: int) -> bool:
        return self._arrive(barrier, 1)

    def _copy(self, barrier: int, slot: int, tile: int) -> bool:
        self.slots[slot] = FLYING
        self.flying.add((barrier, slot, tile))
        return True


@dataclass
class States:
    """All that can be reached from the traces of a block: the first is before the groups begin."""

    block: Block
    names: list[tuple[str, int]] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)
    copies: dict[str, int] = field(default_factory=dict)

    def explore(self) -> int:
        """How many there are. Raises Wrong for one that must not be."""
        self.names = list(self.block.barriers)
        self.places = sorted({e[-2:] for t in self.block.traces for e in t if e[0] in ("begin", "write", "copy")})
        before, *groups = [self._numbered(trace) for trace in self.block.traces]
        state = State(
            (0,), tuple((self.block.barriers[n].count, 0, 0) for n in self.names), (FLYING,) * len(self.places)
        )
        while state.at[0] < len(before):
            state = self._steps(state, [before])[0]
        start = replace(state, at=(0,) * len(groups))
        seen, todo = {start}, [start]
        while todo:
            state = todo.pop()
            found = self._steps(state, groups) + [self._copied(state, each) for each in state.flying]
            if not found:
                self._is_end(state, groups)
            new = set(found) - seen
            seen |= new
            todo += new
        return len(seen)

    def phase(self, barrier: int, arrivals: int, copies: int, parity: int) -> tuple[int, int, int]:
        done = arrivals == copies == 0
        return (self.block.barriers[self.names[barrier]].count, 0, 1 - parity) if done else (arrivals, copies, parity)

    def _numbered(self, trace: Sequence[Event]) -> list[Event]:
        """Events with numbers for names, and which tile of a memory is read or written: the n-th
        time it is the n-th one; of the queries there is one."""
        counts: dict[Any, int] = {}

        def tile(word: str, memory: str) -> int:
            known = self.copies if word == "copy" else counts
            key = memory if word == "copy" else (word, memory)
            known[key] = known.get(key, -1) + 1
            return 0 if memory == "q" else known[key]

        found: list[Event] = []
        for word, *rest in trace:
            if word in ("begin", "end", "write"):
                found.append((word, self.places.index((rest[0], rest[1])), tile(word, rest[0])))
            elif word == "copy":
                found.append(
                    (word, self.names.index(rest[0]), self.places.index((rest[1], rest[2])), tile(word, rest[1]))
                )
            elif word in ("sync", "pass"):
                found.append((word, rest[0] - 8))
            else:
                found.append((word, self.names.index(rest[0]), *rest[1:]))
        return found

    def _steps(self, state: State, groups: Sequence[Sequence[Event]]) -> list[State]:
        found = []
        for i, events in enumerate(groups):
            lists = list(state.barriers), list(state.slots), list(state.turns), set(state.flying)
            step = _Step(self, state.at[i], *lists)
            if state.at[i] < len(events) and step.run(events):
                at = (*state.at[:i], step.at, *state.at[i + 1 :])
                made = tuple(step.barriers), tuple(step.slots), (step.turns[0], step.turns[1]), frozenset(step.flying)
                found.append(State(at, *made))
        return found

    def _copied(self, state: State, copy: tuple[int, int, int]) -> State:
        barrier, slot, tile = copy
        arrivals, left, parity = state.barriers[barrier]
        barriers, slots = list(state.barriers), list(state.slots)
        barriers[barrier], slots[slot] = self.phase(barrier, arrivals, left - 1, parity), tile
        return replace(state, barriers=tuple(barriers), slots=tuple(slots), flying=state.flying - {copy})

    def _is_end(self, state: State, groups: Sequence[Sequence[Event]]) -> None:
        waiting = [events[at] for at, events in zip(state.at, groups, strict=True) if at < len(events)]
        if waiting:
            shown = [f"{word} {self.names[rest[0]] if word == 'wait' else rest[0]}" for word, *rest in waiting]
            raise Wrong(f"all wait for ever: {', '.join(shown)}")
        if any(state.turns):
            raise Wrong("a turn is passed that nobody takes")
