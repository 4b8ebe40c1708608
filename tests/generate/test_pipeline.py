"""The generator from end to end: the same files whatever the workers, resumed where it stopped,
clear errors, nothing unproved."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import distributed
import pytest
from typer.testing import CliRunner

from taso_mirage.cli.substitutions import app
from taso_mirage.errors import InvalidOption
from taso_mirage.generate.candidates import Proposed, RuleCandidate, propose
from taso_mirage.generate.pipeline import GenerateOptions, _Counts, _Partial, _Run, generate
from taso_mirage.generate.settling import Needed, Outcome, TooLong, settle_candidate, time_limit
from taso_mirage.prove.rules.recheck import verdict_of
from taso_mirage.rewriting.library import Rule, load_rules, parse_given, parse_rules, read

FILES = ("elementwise.toml", "rejected.toml", "counts.json", "README.md")


def options(folder: Path, workers: int = 1, resume: bool = False) -> GenerateOptions:
    return GenerateOptions(1, ("elementwise",), 0, workers, None, resume, folder)


@cache
def proposed() -> Proposed:
    return propose("elementwise", 1, 0)


def few(folder: Path, workers: int = 1) -> GenerateOptions:
    """To go on in a folder where the first candidates of the family are proposed: the others take
    two thirds of the time."""
    going_on = options(folder, workers, resume=True)
    _Partial(going_on).keep_proposed(replace(proposed(), candidates=proposed().candidates[:4]))
    return going_on


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    generate(few(folder))
    return folder


def test_every_rule_is_proved_and_reads_back(one: Path) -> None:
    rules = read(one / "elementwise.toml")
    assert len(rules) >= 3
    assert all(r.evidence.proof is not None and r.evidence.typings >= 100 for r in rules)
    assert not (one / ".partial").exists()
    counts = json.loads((one / "counts.json").read_text())["elementwise"]
    assert len(rules) == counts["kept: not derived by the others"] <= counts["proved"]


@pytest.mark.sampled(3)
def test_files_are_the_same_on_a_dask_scheduler(one: Path, tmp_path: Path) -> None:
    quiet = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, **quiet) as cluster:
        generate(replace(few(tmp_path), scheduler=cluster.scheduler_address))
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (one / name).read_bytes(), name
    with pytest.raises(InvalidOption, match="write it as tcp"):
        generate(replace(options(tmp_path), scheduler="nothing://here"))
    two = distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, **quiet)
    with two as cluster, pytest.raises(InvalidOption, match="--nthreads 1"):
        generate(replace(options(tmp_path), scheduler=cluster.scheduler_address))


@pytest.mark.sampled(5)
def test_an_interrupted_command_goes_on_with_other_workers(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["generate", "--family", "elementwise", "--ops", "1", "--workers", "1", "-o", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(_Run, "_take", interrupt_at(3))
        found = CliRunner().invoke(app, command)
    assert found.exit_code != 0
    assert "continue with --resume" in found.stderr
    assert not (tmp_path / "elementwise.toml").exists()
    assert _Partial(options(tmp_path, resume=True)).proposed("elementwise") == proposed()
    outcomes = tmp_path / ".partial" / "outcomes-1-0.jsonl"
    lines = outcomes.read_text().splitlines()
    assert len(lines) == 3
    outcomes.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])  # as an interrupt in a line leaves it
    settled = list[str]()
    monkeypatch.setattr(_Partial, "keep_outcome", lambda self, text, outcome: settled.append(text))
    generate(few(tmp_path, workers=2))
    assert not {json.loads(line)[0] for line in lines[:2]} & set(settled)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (one / name).read_bytes(), name


def interrupt_at(number: int) -> Callable[..., None]:
    """`_Run._take`, which is interrupted at an outcome."""
    take, taken = _Run._take, list[str]()

    def stop(self: _Run, family: str, text: str, outcome: Outcome, counts: _Counts) -> None:
        taken.append(text)
        if len(taken) == number:
            raise KeyboardInterrupt
        take(self, family, text, outcome, counts)

    return stop


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="1 to 4"):
        generate(GenerateOptions(5, (), 0, 1, None, False, tmp_path))
    with pytest.raises(InvalidOption, match="no family 'tasso'"):
        generate(GenerateOptions(2, ("tasso",), 0, 1, None, False, tmp_path))


def test_a_false_candidate_is_refuted_with_values() -> None:
    wrong = RuleCandidate("relu(neg(x)) == neg(relu(x))", "x: (m, k)", 2)
    outcome = settle_candidate(wrong, "elementwise", 0)
    assert outcome.rule is None
    assert outcome.rejected is not None
    assert outcome.rejected[2]


@pytest.mark.sampled(3)
def test_what_the_rules_derive_is_superfluous() -> None:
    needed = Needed(0)
    texts = ("add(add(x, y), z) == add(x, add(y, z))", "relu(add(add(x, y), z)) == relu(add(x, add(y, z)))")
    first, second = (
        settle_candidate(RuleCandidate(t, "x: (m, k), y: (m, k), z: (m, k)", n), "f", 0) for n, t in enumerate(texts, 2)
    )
    assert isinstance(first, Outcome)
    assert first.rule
    assert second.rule
    assert needed.offer(parse_rules(first.rule)[0])
    assert not needed.offer(parse_rules(second.rule)[0])
    assert needed.derives(RuleCandidate(texts[1], "x: (m, k), y: (m, k), z: (m, k)", 3))
    assert not needed.derives(RuleCandidate("relu(x) == x", "x: (m, k)", 1))


@pytest.mark.slow  # test_generate.py finds them in the table by default
def test_sixteen_merges_of_three_operators() -> None:
    """Convolutions, with relu too, and matrix products share data or weights (6); pools, relu,
    scale and transpose on two axes each (10). Depthwise convolutions share weights as the dense
    ones do, so they are counted with them."""
    found = [c.text for c in propose("taso", 3, 0).candidates if c.text.startswith("(")]
    merges = [t for t in found if "group=c" not in t]
    assert len(merges) == 16
    assert len(found) == 18


@pytest.mark.parametrize("workers", [0, 1])
def test_time_limit_of_any_thread(workers: int) -> None:
    """A Dask worker settles candidates in a thread that is not the main one."""

    def endless() -> int:
        with time_limit(0.2):
            for turn in range(10**9):
                int(turn)
        return 0

    with pytest.raises(TooLong):
        ThreadPoolExecutor(1).submit(endless).result() if workers else endless()


def test_time_limit_kept() -> None:
    """The timer ends with the work, and does nothing where it was about to call."""
    before = {*threading.enumerate()}
    with time_limit(6000):
        (timer,) = (each for each in {*threading.enumerate()} - before if isinstance(each, threading.Timer))
    timer.join(600)
    assert not timer.is_alive()
    timer.function()


def test_given_of_a_candidate_reads_back() -> None:
    for candidate in propose("norm", 1, 0).candidates:
        assert parse_given(candidate.given)


# ---------------------------------------------------------------- the shipped library

SHIPPED = load_rules()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", SHIPPED[:: max(1, len(SHIPPED) // 4)], ids=lambda r: r.name)
def test_a_sample_of_the_shipped_rules_is_proved_again(rule: Rule) -> None:
    """On a seed that the generator did not use."""
    verdict = verdict_of(rule, 11, 256)
    assert (verdict.problem, verdict.evidence is None) == ("", False)


@pytest.mark.slow
@pytest.mark.parametrize("rule", SHIPPED, ids=lambda r: r.name)
def test_every_shipped_rule_is_proved_again(rule: Rule) -> None:
    verdict = verdict_of(rule, 11, 256)
    assert (verdict.problem, verdict.evidence is None) == ("", False)
