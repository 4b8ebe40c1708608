"""The texts that users see: the progress of the stages, and the results as tables; `data.py` has
them as data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from taso_mirage.devices.cpu.options import FULL_LEVEL
from taso_mirage.measure.refusals import shown_sizes
from taso_mirage.measure.timing import Timing
from taso_mirage.report.data import by_sizes, opening_line
from taso_mirage.report.operator_table import first_rows, operator_rows
from taso_mirage.report.result import Result
from taso_mirage.search.config import SPENT
from taso_mirage.search.mutations import Mutations
from taso_mirage.system.console import Console
from taso_mirage.system.spending import Purpose, Spending
from taso_mirage.system.terminal import duration, one_line, plural


class _SpentBar(BarColumn):
    """The share of the budget that is spent, at every moment."""

    def __init__(self, spent: Callable[[], float]) -> None:
        super().__init__()
        self.spent = spent

    def render(self, task: Task) -> ProgressBar:
        if task.total is not None:
            task.completed = min(self.spent(), task.total)
        return super().render(task)


class _Seconds(ProgressColumn):
    """The spent seconds and the total."""

    def __init__(self, spent: Callable[[], float]) -> None:
        super().__init__()
        self.spent = spent

    def render(self, task: Task) -> Text:
        return Text(f"{self.spent():.0f} s" + ("" if task.total is None else f" of {task.total:.0f}"))


class Stages:
    """Progress on stderr: one bar, the share of the budget that is spent, and the current stage. It
    is removed from the screen at its end, and hidden when stderr is no terminal."""

    def __init__(self, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        console = Console(stderr=True)
        columns = SpinnerColumn(), _SpentBar(self.spent), _Seconds(self.spent), TextColumn("{task.description}")
        hidden = quiet or not sys.stderr.isatty()
        self.progress = Progress(*columns, console=console, disable=hidden, transient=True)
        self.clock, self.began = clock, clock()
        self.task = self.progress.add_task("start", total=None)

    def __enter__(self) -> Stages:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == SPENT:
            self.began = self.clock() - done if self._one.total is None else self.began
            self.progress.update(self.task, total=total)
        elif not stage.endswith(f": {SPENT}"):  # of a body, whose budget is a part of the whole
            self.progress.update(self.task, description=f"{stage}: {done} of {total}" if total else stage)

    @property
    def _one(self) -> Task:
        return self.progress.tasks[0]

    def spent(self) -> float:
        """Seconds of the budget."""
        return self.clock() - self.began

    def asked(self, said: str) -> bool:
        """The user's answer to the question whether to write a model, with no progress display in
        between."""
        self.progress.stop()
        try:
            return typer.confirm(f"{one_line(said)}. Write it?", default=False, err=True)
        except typer.Abort:  # no answer
            return False
        finally:
            self.progress.start()


def search_facts(result: Result) -> dict[str, str]:
    """The counts of the search, by name."""
    statistics = result.statistics
    return {
        "subgraphs": f"{statistics.parts} ({statistics.distinct} distinct)",
        _explored(result): str(statistics.states),
        "matches": str(statistics.matches),
        "seconds": f"{result.searched:.2f}",
        **_search_ends(result),
    }


def search_line(result: Result) -> str:
    """The counts of the search in one line."""
    statistics = result.statistics
    explored = (
        plural(statistics.states, "e-node") if statistics.gaps else f"{plural(statistics.states, 'state')} explored"
    )
    counts = (
        f"{plural(statistics.parts, 'subgraph')} ({statistics.distinct} distinct), {explored}, "
        f"{plural(statistics.matches, 'match', 'matches')} in {result.searched:.2f} s"
    )
    return "; ".join([counts, *(f"{name}: {text}" for name, text in _search_ends(result).items())])


def _explored(result: Result) -> str:
    return "e-nodes" if result.statistics.gaps else "states explored"


def _search_ends(result: Result) -> dict[str, str]:
    """The reasons for the end of the search, and the results of extraction and mutants, by name."""
    ends, gaps = result.statistics.ended, result.statistics.gaps
    facts = {"ended by": ", ".join(f"{why} ({count})" for why, count in ends.items())} if ends else {}
    if gaps:
        facts["extraction"] = f"optimal in {gaps.count(0.0)} of {len(gaps)} subgraphs"
        if max(gaps) > 0:
            facts["extraction"] += f", elsewhere at most {max(gaps):.1%} could be saved"
    if result.mutations.programs:
        facts["mutants"] = _mutants_fact(result.mutations)
    return facts


def _mutants_fact(made: Mutations) -> str:
    late = f" ({made.late} skipped for lack of time)" if made.late else ""
    return (
        f"{made.mutants} tried for {plural(made.programs, 'costly program')}{late}, {len(made.found)} faster alone, "
        f"{made.seconds:.2f} s"
    )


def show(result: Result, source: Path, written: Sequence[Path], spending: bool = False) -> None:
    """Print the table at the end of `optimize`, with `spending` also that of its seconds."""
    console = Console()
    table = Table(title=source.name, title_justify="left")
    made = "optimized" if result.failure is None else "without the failed rewrite"
    for name, justify in (("", "left"), ("original", "right"), (made, "right"), ("ratio", "right")):
        table.add_column(name, justify="left" if justify == "left" else "right")
    table.add_row("nodes", str(result.terms_before), str(result.terms_after), "")
    if result.cost_before > 0:  # a loop has no predicted cost before it is a term
        table.add_row("predicted cost", duration(result.cost_before), duration(result.cost_after), _ratio(result))
    if result.timing is not None:
        table.add_row("measured time", *_times(result.timing))
        if result.timing.each:
            for sizes, share, timing in by_sizes(result):
                table.add_row(escape(f"  {shown_sizes(sizes)} ({share:.0%})"), *_times(timing))
    console.print(table)
    _show_operators(console, result)
    if result.statistics.parts:
        console.print(f"search: {search_line(result)}", highlight=False, markup=False)
    _show_check(console, result)
    for note in result.notes:
        console.print(one_line(f"note: {note}"), style="yellow", highlight=False, markup=False)
    if result.left is not None:
        console.print(one_line(f"left: {result.left}"), highlight=False, markup=False)
    if not result.changed:
        console.print("The original's graph was kept.", highlight=False)
    if result.target.stamp.options:
        said = ", ".join(f"{name}={value}" for name, value in result.target.stamp.options)
        console.print(f"measured on {result.target.name} with {said}", highlight=False, markup=False)
    console.print(f"wrote {', '.join(map(str, written))}", highlight=False, soft_wrap=True, markup=False)
    if written:
        stamp = result.target.stamp
        plain = "; any ONNX Runtime opens it, too" if stamp.target == "cpu" and stamp.level == FULL_LEVEL else ""
        said = f"open it with {opening_line(result, written)}{plain}"
        console.print(said, highlight=False, soft_wrap=True, markup=False)
    if spending:
        show_spending(result.spending)


def show_spending(spending: Spending) -> None:
    """Print the table of `--timing`: the seconds of every stage, and of all, by purpose, the most
    first; for loads of whole models also their number, however quick."""
    table = Table(title="seconds spent", title_justify="left", show_footer=True)
    table.add_column("stage", footer="all")
    table.add_column("seconds", justify="right", footer=f"{spending.seconds:.2f}")
    table.add_column("on", overflow="fold", footer=_spent_on(spending.purposes, sum(spending.loads.values())))
    for stage, each in spending.stages.items():
        loads = spending.loads.get(stage, 0)
        if loads or sum(each.values()) >= SHOWN:
            table.add_row(escape(stage), f"{sum(each.values()):.2f}", _spent_on(each, loads))
    Console().print(table, highlight=False)


def _spent_on(seconds: Mapping[str, float], loads: int) -> str:
    parts = sorted(seconds.items(), key=lambda each: -each[1])
    shown = [(each, spent) for each, spent in parts if spent >= SHOWN or (loads and each == Purpose.LOADS)]
    return ", ".join(f"{_count_text(each, loads)} {spent:.2f}" for each, spent in shown)


def _count_text(purpose: str, loads: int) -> str:
    return f"{loads} {'load' if loads == 1 else purpose}" if purpose == Purpose.LOADS else purpose


SHOWN = 0.005
"""Seconds that are shown: less would be 0.00."""


def _times(timing: Timing | None) -> tuple[str, ...]:
    if timing is None:
        return ()
    ratio = f"{timing.ratio:.2f} [{timing.low:.2f}, {timing.high:.2f}]"
    return duration(timing.original), duration(timing.optimized), ratio


def _ratio(result: Result) -> str:
    return f"{result.cost_before / result.cost_after:.2f}" if result.cost_after else ""


def _show_operators(console: Console, result: Result) -> None:
    """The operators of both models, and the number of equations that were applied."""
    if not result.changed:
        return
    how, rows = operator_rows(result)
    table = Table(title=f"operators, {how}" if how else "operators", title_justify="left")
    table.add_column("", overflow="fold")
    for name in ("before", "after", *(("time before", "after") if how else ())):
        table.add_column(name, justify="right")
    for row in first_rows(rows):
        spent = [] if row.seconds is None else [duration(each) for each in row.seconds]
        table.add_row(escape(row.name), *map(str, row.counts), *spent)
    console.print(table, highlight=False)
    if result.equations:
        applied = [f"{name} ({count})" for name, count in result.equations.items()]
        more = f" and {len(applied) - NAMED} more" if len(applied) > NAMED else ""
        console.print(f"equations: {', '.join(applied[:NAMED])}{more}", highlight=False, markup=False)


NAMED = 4
"""Names of equations in the line below the table; --explain has all, with their texts."""


def _show_check(console: Console, result: Result) -> None:
    if not result.differences:
        return
    passed = sum(d.passed for d in result.differences)
    worst = max(result.differences, key=lambda d: d.error / d.bound if d.bound else d.error)
    cases = len({d.case for d in result.differences})
    console.print(
        f"check: {passed} of {len(result.differences)} outputs on {cases} input sets within the bound; "
        f"closest to it: error {worst.error:.2g}, bound {worst.bound:.2g}",
        highlight=False,
        markup=False,
    )
