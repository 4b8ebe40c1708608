"""`substitutions verify FILE` judges a stranger's rules as they are stated: a rule that is false in
some case is refused, a true one is not."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from commandline import run
from rule_mutations import falsely_accepted

from taso_mirage.errors import SyntaxProblem
from taso_mirage.prove.rules.enumeration import enumerated
from taso_mirage.prove.rules.examine import apart_somewhere
from taso_mirage.prove.rules.hostile import RuleStatement
from taso_mirage.prove.rules.recheck import law_rules, verdict_of
from taso_mirage.rewriting.library import Rule, read
from taso_mirage.verdicts import NO_EVIDENCE

FOLDER = Path(__file__).parents[1] / "equations"
FALSE = [rule for file in sorted(FOLDER.glob("false_*.toml")) for rule in read(file)]
TRUE = [rule for file in sorted(FOLDER.glob("true*.toml")) for rule in read(file)]
SCALARS = read(FOLDER / "true_scalars.toml")
OPEN = {
    **dict.fromkeys(
        ("scalars.argmax_to_argmax.4", "scalars.reduce_max_to_sinh", "second.argmax_to_argmax.3"),
        "a sum of increasing functions",
    ),
    "scalars.argmax_to_argmax.6": "x / (1 + |x|) is not known to increase",
    **dict.fromkeys(
        ("scalars.argmax_to_argmax.8", "scalars.argmax_to_argmax.9", "scalars.reduce_max_to_leaky_relu"),
        "an increasing function in two pieces",
    ),
    "second.argmax_to_argmax.4": "a power that increases",
    "second.argmin_to_argmin.2": "a logarithm of a minimum of sums",
    "second.relu_to_sub": "a logarithm of a sum of which one term is known",
    "second.clip_to_softmax": "a term is at most the sum",
    "second.sqrt_to_reciprocal": "a root of a quotient that is a square",
    **dict.fromkeys(("second.equal_to_equal", "second.less_to_greater"), "the two neighbours of what is not whole"),
}
"""True equations of scalars without a proof, and why."""
UNDECIDED = 0.2
"""The share of true rules for which a case may be left without a proof."""


def accepts(rule: Rule, typings: int = 300) -> bool:
    return not verdict_of(rule, 1, typings).problem


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", FALSE[::70], ids=lambda rule: rule.name)
def test_false_rules_are_refused(rule: Rule) -> None:
    assert not accepts(rule)


MET = [
    rule
    for kind in ("enumerated", "unseen")
    for file in sorted(FOLDER.glob(f"false_{kind}_*.toml"))
    for rule in read(file)
]


def told_apart(rule: Rule) -> bool:
    """Whether numbers tell the sides apart at a typing that is enumerated, whatever is drawn."""
    statement = RuleStatement(rule.equation, rule.given, rule.attributes)
    return any(apart_somewhere(typing, 1) for typing in islice(enumerated(statement, 1), 960))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rules", [MET[i::4] for i in range(4)], ids=range(4))
def test_the_enumeration_meets_the_failing_case(rules: list[Rule]) -> None:
    """Numbers of the right side, axes, high ranks, equal sizes, vectors that broadcast."""
    assert [rule.name for rule in rules[::5] if not told_apart(rule)] == []


@pytest.mark.slow
def test_the_enumeration_meets_every_failing_case() -> None:
    assert [rule.name for rule in MET if not told_apart(rule)] == []


def test_what_is_enumerated_and_not_proved_is_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULES)
    (_, rule) = read(file)
    verdict = verdict_of(rule, 1, 16)
    assert verdict.compared
    judged = sum(verdict.cases.values())
    said = f"bounded: {judged} of {judged + verdict.compared} cases, the others compared in numbers"
    assert verdict.kind == "bounded"
    assert said in verdict.evidence.proof.bound if verdict.evidence.proof else False
    command = ("substitutions", "verify", file, "--rule", "mine.right", "--workers", 1, "--typings", 16)
    assert said in run(*command).stdout


EVERYWHERE = """
[[rule]]
name = "mine.transpose_to_operand"
operators = 2
given = "x: (n, m)"
lhs = "transpose(transpose(x, perm=(1, 0)), perm=(1, 0))"
rhs = "x"
"""


def test_strict_asks_for_a_proof_of_every_case(tmp_path: Path) -> None:
    """Few typings of the rule are judged; more of them reach all that are enumerated."""
    file = tmp_path / "mine.toml"
    file.write_text(EVERYWHERE)
    command = ("substitutions", "verify", file, "--workers", 1)
    run(*command, "--typings", 16)  # exit code 0
    refused = run(*command, "--typings", 16, "--strict", check=5)
    assert "1 of 1 rules are bounded, which --strict refuses: mine.transpose_to_operand" in refused.stderr
    run(*command, "--typings", 320, "--strict")


@pytest.mark.slow
@pytest.mark.parametrize("rule", FALSE, ids=lambda rule: rule.name)
def test_every_false_rule_is_refused(rule: Rule) -> None:
    assert not accepts(rule, 600)


@pytest.mark.sampled(3)
def test_true_rules_are_accepted() -> None:
    sample = TRUE[::42]
    assert sum(accepts(rule, 120) for rule in sample) >= (1 - UNDECIDED) * len(sample)


@pytest.mark.slow
def test_all_true_rules_are_accepted() -> None:
    assert sum(accepts(rule) for rule in TRUE) >= (1 - UNDECIDED) * len(TRUE)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", [r for r in SCALARS if r.name not in OPEN][::12], ids=lambda rule: rule.name)
def test_true_rules_of_scalars_are_accepted(rule: Rule) -> None:
    assert accepts(rule, 64)


@pytest.mark.slow
def test_all_true_rules_of_scalars_are_accepted() -> None:
    assert {rule.name for rule in SCALARS if not accepts(rule, 120)} <= OPEN.keys()


@pytest.mark.slow
def test_no_false_mutant_is_accepted() -> None:
    assert falsely_accepted(accepts) == []


PADDED = """
[[rule]]
name = "mine.conv_to_conv"
operators = 2
given = "x: (n, c, h, w), y: (a, c, k, l)"
attributes = "a: {group: 1, strides: (1, 1)}, p: (1, 1, 1, 1)"
lhs = "conv(x, pad(y, pads=(0, 0, 1, 0, 0, 0, 1, 0), value=0.0, mode='constant'), pads=p, dilations=(1, 1), **a)"
rhs = "conv(x, y, pads=plus(p, (-1, 0, -1, 0)), dilations=(1, 1), **a)"
"""


def test_letters_of_a_rule_are_sizes_of_at_least_one(tmp_path: Path) -> None:
    """A kernel of size 0 is no kernel, while its padded form is one: that is no counterexample."""
    (tmp_path / "mine.toml").write_text(PADDED)
    (rule,) = read(tmp_path / "mine.toml")
    assert accepts(rule, 64)


RULES = """
[[rule]]
name = "mine.relu_to_relu"
operators = 2
given = "x: (n, m)"
attributes = "a: 0.25"
lhs = "relu(leaky_relu(x, alpha=a))"
rhs = "relu(x)"

[[rule]]
name = "mine.right"
operators = 2
given = "x: (n, m)"
lhs = "relu(relu(x))"
rhs = "relu(x)"
"""


def test_the_command_says_why_and_under_which_guard_a_rule_holds(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULES)
    done = run("substitutions", "verify", file, "--workers", 1, "--typings", 300, check=5)
    assert "mine.relu_to_relu is wrong as it is stated" in done.stdout
    assert "inputs:" in done.stdout
    assert "a >= 0" in done.stdout.partition("on the drawn typings it holds under")[2]
    assert "1 of 2 rules failed" in done.stderr
    assert "cases:" in run("substitutions", "verify", file, "--rule", "mine.right", "--typings", 60).stdout


FALSE_WITH_EVIDENCE = """
[[rule]]
name = "mine.swish_to_mul"
operators = 2
given = "x: (n, m)"
attributes = "a: 1.0"
lhs = "relu(leaky_relu(x, alpha=a))"
rhs = "relu(x)"
evidence = { cases = 5, typings = 320, proof = "symbolic", bound = "every size of 5 cases", excluded = 1, steps = 1 }
"""


def test_what_a_file_says_of_a_rule_is_no_verdict(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(FALSE_WITH_EVIDENCE)
    (rule,) = read(file)
    assert verdict_of(rule, 1, 120).problem
    bare = replace(rule, evidence=NO_EVIDENCE)
    assert verdict_of(rule, 1, 120).cases == verdict_of(bare, 1, 120).cases
    assert "1 of 1 rules failed" in run("substitutions", "verify", file, "--workers", 1, check=5).stderr


def test_a_rule_may_claim_its_proved_cases_alone(tmp_path: Path) -> None:
    """The command counts the excluded cases, not the file."""
    file = tmp_path / "mine.toml"
    file.write_text(FALSE_WITH_EVIDENCE.replace("evidence", 'where = "proved()"\nevidence'))
    (rule,) = read(file)
    verdict = verdict_of(rule, 1, 120)
    assert not verdict.problem
    assert verdict.cases["excluded"] > 1
    met = sum(verdict.cases.values())
    said = run("substitutions", "verify", file, "--workers", 1, "--typings", 120).stdout
    assert f"mine.swish_to_mul applies in {met - verdict.cases['excluded']} of {met} cases" in said


def test_a_rule_whose_own_case_is_not_proved_claims_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        FALSE_WITH_EVIDENCE.replace("a: 1.0", "a: -1.0").replace("evidence", 'where = "proved()"\nevidence')
    )
    (rule,) = read(file)
    assert verdict_of(rule, 1, 120).problem


def test_an_attribute_is_no_operand(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULES.replace('rhs = "relu(x)"', 'rhs = "max(x, a)"', 1))
    with pytest.raises(SyntaxProblem, match="a is an operand and the attribute alpha of leaky_relu"):
        read(file)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["matmul.27", "pad.0"])
def test_every_seed_meets_typings_of_a_law_that_states_none(name: str, seed: int) -> None:
    (law,) = (each for each in law_rules() if each.name == name)
    verdict = verdict_of(law, seed, 320, laws=True)
    assert not verdict.problem
    assert verdict.cases["proved"]


@pytest.mark.sampled(3)
def test_a_law_claims_its_proved_cases_however_few_they_are() -> None:
    (law,) = (each for each in law_rules() if each.name == "reduce_mean.3")
    assert verdict_of(law, 1, 320).problem
    verdict = verdict_of(law, 1, 320, laws=True)
    assert not verdict.problem
    assert verdict.cases["proved"]
    assert verdict.cases["excluded"]
