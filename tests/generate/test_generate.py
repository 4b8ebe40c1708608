"""The enumeration of a family: against brute force (`oracle.py`), its counts, its equations and
those that it must not have, and small families."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from oracle import Oracle, canonical, names, ordered

from taso_mirage.errors import InvalidOption
from taso_mirage.generate.enumeration import INPUT, Table, evaluate_here
from taso_mirage.generate.equations import Classes, Trees, common_supergraph, recheck_equations, sharing
from taso_mirage.generate.family import FOLDER, Family, families, load_family, read_family
from taso_mirage.generate.joins import joins
from taso_mirage.generate.minimise import Derivation

Term = Any
TASO = FOLDER / "taso.toml"


def grown(family: Family, operators: int, whole: bool = False, seed: int = 0) -> Table:
    """The table of a family up to so many operators; with `whole` the last level is kept too, as
    the levels before it."""
    table = Table.start(family, seed)
    for size in range(1, operators + 1):
        table.grow(size == operators and not whole, evaluate_here)
    return table


def shown(table: Table, candidate: int) -> Term:
    """A candidate as nested tuples of names."""
    columns = table.all
    if columns.op[candidate] == INPUT:
        return table.family.inputs[int(columns.kept[candidate])][0]
    args = [shown(table, int(table.candidate[a])) for a in columns.args[candidate] if a >= 0]
    return ordered((table.family.operators[int(columns.op[candidate])].name, *args))


def classes_of(table: Table) -> set[frozenset[Term]]:
    found: dict[int, set[Term]] = defaultdict(set)
    for candidate, fingerprint in enumerate(table.all.hash.tolist()):
        found[fingerprint].add(shown(table, candidate))
    return {frozenset(c) for c in found.values()}


@cache
def full(name: str) -> Table:
    """A shipped family up to the operators whose equations are asked for."""
    return grown(load_family(name), 3 if name == "taso" else 4)


@pytest.fixture(scope="module")
def three() -> Table:
    """Family taso at 3 operators."""
    return full("taso")


# ---------------------------------------------------------------- against brute force


@pytest.mark.sampled(3)
def test_brute_force_finds_the_same_terms_and_classes() -> None:
    oracle = Oracle(TASO)
    oracle.grow()
    oracle.grow()
    table = grown(load_family("taso"), 2, whole=True)
    ours = [shown(table, i) for i in range(len(table.all))]
    assert len(set(ours)) == len(ours)
    assert set(ours) == {ordered(t) for t in oracle.types}
    assert classes_of(table) == oracle.classes()
    assert [c.candidates for c in table.counts] == [len({ordered(t) for t in c}) for c in oracle.candidates]
    assert not oracle.joins(2)
    assert not joins(table, Classes.of(table), 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("inputs", "operators"),
    [
        (("x1", "x2", "y1", "y2"), ("matmul", "concat0", "concat1", "split00", "split01", "split10", "split11")),
        (("x1", "x2", "s"), ("smul", "relu", "transpose", "concat0", "concat1", "split00", "split01", "split10", "split11")),
        (("i1", "i2"), ("avgpool", "maxpool", "concat0", "concat1", "split00", "split01", "split10", "split11")),
    ],
    ids=lambda names: names[0],
)  # fmt: skip
def test_brute_force_finds_the_same_joins_of_three_operators(
    inputs: tuple[str, ...], operators: tuple[str, ...]
) -> None:
    oracle = Oracle(TASO, inputs, operators)
    family = load_family("taso")
    family = replace(
        family,
        inputs=tuple(i for i in family.inputs if i[0] in inputs),
        operators=tuple(o for o in family.operators if o.name in operators),
    )
    for _ in range(3):
        oracle.grow()
    table = grown(family, 3)
    found = joins(table, Classes.of(table), 3)
    ours = {canonical(tuple(shown(table, c) for c in row), oracle.group) for row in found.values()}  # type: ignore[arg-type]
    assert ours == oracle.joins(3)
    assert ours


# ---------------------------------------------------------------- counts


@pytest.mark.sampled(3)
def test_counts_of_family_taso(three: Table) -> None:
    """Level 1 is counted by hand below (f(t, t) is left out); level 2 agrees with brute force in
    another test; level 3 is recorded: only terms whose inputs are a prefix of each group of
    interchangeable ones."""
    assert [c.operators for c in three.counts] == [1, 2, 3]
    assert [c.candidates for c in three.counts][:2] == [249, 6280]
    assert [c.classes for c in three.counts][:2] == [249, 5523]
    assert three.counts[2].candidates == 49575
    by_operator: dict[str, int] = defaultdict(int)
    for number in three.all.op[three.all.size == 1].tolist():
        by_operator[three.family.operators[number].name] += 1
    assert dict(by_operator) == LEVEL_ONE


LEVEL_ONE = {
    "ewadd": 18, "ewmul": 18,  # 3 pairs in each of the groups x, y, i, u, v, r
    "smul": 19, "relu": 19,  # everything but the scalar
    "matmul": 15,  # x y: 3 * 3, and y y: 3 * 2
    "conv3": 12, "convr3": 12,  # 3 images with 3 dense kernels and the depthwise one
    "conv13": 9, "convr13": 9,
    "transpose": 6, "avgpool": 3, "maxpool": 3, "enlarge13": 3, "enlarge31": 3,
    "concat0": 54,  # 36 within the groups, and x with y in both orders: both have k columns
    "concat1": 42,  # 36 within the groups, and u with d in both orders
    "pooling_kernel": 1, "identity_kernel": 1, "identity_matrix": 1, "ones": 1,
}  # fmt: skip


@pytest.mark.sampled(3)
def test_growing_is_deterministic() -> None:
    family = load_family("taso")
    one, two, other = grown(family, 2), grown(family, 2), grown(family, 2, seed=7)
    assert (one.all.hash == two.all.hash).all()
    assert (one.all.args == other.all.args).all()
    assert (one.all.hash != other.all.hash).all()


# ---------------------------------------------------------------- the found equations


@pytest.fixture(scope="module")
def equal(three: Table) -> dict[Term, int]:
    """The fingerprint of every term, by its form with inputs renamed in order of occurrence where
    that is a prefix."""
    return {shown(three, i): int(h) for i, h in enumerate(three.all.hash.tolist())}


def c0(a: Term, b: Term) -> Term:
    return ("concat0", a, b)


def c1(a: Term, b: Term) -> Term:
    return ("concat1", a, b)


TRUE = {
    "matmul is associative": (("matmul", ("matmul", "x1", "y1"), "y2"), ("matmul", "x1", ("matmul", "y1", "y2"))),
    "matmul distributes on the right": (
        ("matmul", "x1", ("ewadd", "y1", "y2")),
        ("ewadd", ("matmul", "x1", "y1"), ("matmul", "x1", "y2")),
    ),
    "matmul distributes on the left": (
        ("matmul", ("ewadd", "x1", "x2"), "y1"),
        ("ewadd", ("matmul", "x1", "y1"), ("matmul", "x2", "y1")),
    ),
    "transpose of matmul": (
        ("transpose", ("matmul", "y1", "y2")),
        ("matmul", ("transpose", "y2"), ("transpose", "y1")),
    ),
    "two products of one operand": (
        c1(("matmul", "x1", "y1"), ("matmul", "x1", "y2")),
        ("matmul", "x1", c1("y1", "y2")),
    ),
    "a sum of products": (
        ("ewadd", ("matmul", "x1", "y1"), ("matmul", "x2", "y2")),
        ("matmul", c1("x1", "x2"), c0("y1", "y2")),
    ),
    "two convolutions of one image": (
        c1(("conv3", "i1", "u1"), ("conv3", "i1", "u2")),
        ("conv3", "i1", c0("u1", "u2")),
    ),
    "with relu": (c1(("convr3", "i1", "u1"), ("convr3", "i1", "u2")), ("convr3", "i1", c0("u1", "u2"))),
    "enlarge and merge": (
        c1(("conv3", "i1", "u1"), ("conv13", "i1", "v1")),
        ("conv3", "i1", c0("u1", ("enlarge13", "v1"))),
    ),
    "enlarge": (("conv13", "i1", "v1"), ("conv3", "i1", ("enlarge13", "v1"))),
    "a pool is a convolution": (("avgpool", "i1"), ("conv3", "i1", ("pooling_kernel",))),
    "a sum of convolutions": (
        ("ewadd", ("conv3", "i1", "u1"), ("conv3", "i2", "u2")),
        ("conv3", c1("i1", "i2"), c1("u1", "u2")),
    ),
    "linear in the kernel": (
        ("conv3", "i1", ("ewadd", "u1", "u2")),
        ("ewadd", ("conv3", "i1", "u1"), ("conv3", "i1", "u2")),
    ),
    "linear in the image": (
        ("conv3", ("ewadd", "i1", "i2"), "u1"),
        ("ewadd", ("conv3", "i1", "u1"), ("conv3", "i2", "u1")),
    ),
    "along the batch": (c0(("conv3", "i1", "u1"), ("conv3", "i2", "u1")), ("conv3", c0("i1", "i2"), "u1")),
    "groups side by side": (
        c1(("conv3", "i1", "u1"), ("conv3", "i2", "u2")),
        ("conv3", c1("i1", "i2"), c0("u1", "u2")),
    ),
    "a residual": (("ewadd", ("conv3", "i1", "u1"), "i1"), ("conv3", "i1", ("ewadd", "u1", ("identity_kernel",)))),
    "a pool in parallel": (
        ("ewadd", ("avgpool", "i1"), ("conv3", "i1", "d")),
        ("conv3", "i1", ("ewadd", "d", ("pooling_kernel",))),
    ),
    "scalars move": (("smul", ("conv3", "i1", "u1"), "s"), ("conv3", "i1", ("smul", "u1", "s"))),
    "relu after a convolution": (("relu", ("conv3", "i1", "u1")), ("convr3", "i1", "u1")),
    "relu and max pool": (("relu", ("maxpool", "i1")), ("maxpool", ("relu", "i1"))),
    "relu of a concatenation": (("relu", c0("x1", "x2")), c0(("relu", "x1"), ("relu", "x2"))),
    "transpose of a concatenation": (("transpose", c0("x1", "x2")), c1(("transpose", "x1"), ("transpose", "x2"))),
    "a pool of a concatenation": (c1(("avgpool", "i1"), ("avgpool", "i2")), ("avgpool", c1("i1", "i2"))),
    "a split undoes a concatenation": ("i1", ("split10", c1("i1", "i2"))),
}
FALSE = {
    "matmul commutes": (("matmul", "y1", "y2"), ("matmul", "y2", "y1")),
    "relu is linear": (("relu", ("ewadd", "x1", "x2")), ("ewadd", ("relu", "x1"), ("relu", "x2"))),
    "relu of a scale": (("relu", ("smul", "x1", "s")), ("smul", ("relu", "x1"), "s")),
    "max pool is linear": (("maxpool", ("ewadd", "i1", "i2")), ("ewadd", ("maxpool", "i1"), ("maxpool", "i2"))),
    "max pool of a scale": (("maxpool", ("smul", "i1", "s")), ("smul", ("maxpool", "i1"), "s")),
    "max pool of max pool": (("maxpool", ("maxpool", "i1")), ("maxpool", "i1")),
    "max pool swallows relu": (("maxpool", ("relu", "i1")), ("maxpool", "i1")),
    "wrong transpose": (("transpose", ("matmul", "y1", "y2")), ("matmul", ("transpose", "y1"), ("transpose", "y2"))),
    "wrong half": ("i1", ("split11", c1("i1", "i2"))),
    "wrong axis": (c1(("conv3", "i1", "u1"), ("conv3", "i1", "u2")), ("conv3", "i1", c1("u1", "u2"))),
    "concat is a sum": (("ewadd", "x1", "x2"), ("split00", c0("x1", "x2"))),
    "pools commute": (("avgpool", ("maxpool", "i1")), ("maxpool", ("avgpool", "i1"))),
}


@pytest.mark.parametrize("name", TRUE)
def test_known_equations_are_found(name: str, equal: dict[Term, int]) -> None:
    left, right = (ordered(t) for t in TRUE[name])
    assert equal[left] == equal[right]


@pytest.mark.parametrize("name", FALSE)
def test_known_wrong_equations_are_not(name: str, equal: dict[Term, int]) -> None:
    left, right = (ordered(t) for t in FALSE[name])
    assert equal.get(left, 0) != equal.get(right, 1)


def test_the_sixteen_merges(three: Table) -> None:
    """conv, conv with relu and matmul share their data or their weights; pools, relu, transpose and
    scalars go along two axes. They are the joins whose sides are one operator each, with groups and
    depthwise kernels as one (the group is an attribute)."""
    found = set()
    for row in joins(three, Classes.of(three), 3):
        if all(isinstance(a, int) for side in row[:2] for a in side[1:]):  # type: ignore[index]
            found.add(without_groups(row))
    roots = [a[0] for a, _, _, _ in found]
    assert {r: roots.count(r) for r in roots} == dict.fromkeys(
        ("conv", "convr", "matmul", "avgpool", "maxpool", "relu", "smul", "transpose"), 2
    )


def without_groups(tree: Any) -> Any:
    if isinstance(tree, str):
        return tree.split(":")[0]
    return tuple(without_groups(t) for t in tree) if isinstance(tree, tuple) else tree


# ---------------------------------------------------------------- families as data


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", families())
def test_every_operator_is_used(name: str) -> None:
    """An operator that no kinds fit is a mistake in the file."""
    table = full(name)
    used = set(table.all.op.tolist())
    assert [o.name for i, o in enumerate(table.family.operators) if i not in used] == []


HEAD = """
about = "a test"
elements = 100
assignments = [{ trials = 4, sizes = { m = 2, n = 3 } }, { trials = 4, sizes = { m = 3, n = 2 } }]
recheck = [{ trials = 8, sizes = { m = 4, n = 1 } }]
"""


@pytest.fixture
def family_of(tmp_path: Path) -> Any:
    def read(text: str) -> Family:
        path = tmp_path / "small.toml"
        path.write_text(HEAD + text)
        return read_family(path)

    return read


def test_operators_of_three_operands_and_kinds(family_of: Any) -> None:
    family = family_of("""
inputs = [{ name = "x", kind = "matrix", shape = "(m, n)" }, { name = "w", kind = "weight", shape = "(n, n)" },
          { name = "b", count = 2, kind = "row", shape = "(n,)" }]
[operators]
matmul = { term = "matmul(a, w)", kinds = { a = "matrix", w = "weight" } }
add = { term = "add(a, b)", kinds = { a = "matrix", b = "row" } }
gemm = { term = "gemm(a, w, b)", kinds = { a = "matrix", w = "weight", b = "row" } }
""")
    table = grown(family, 2)
    found = {shown(table, i): int(h) for i, h in enumerate(table.all.hash.tolist())}
    assert found[("gemm", "x", "w", "b1")] == found[("add", ("matmul", "x", "w"), "b1")]
    assert found[("gemm", "x", "w", "b1")] != found[("gemm", "x", "w", "b2")]
    level_one = {t for t in found if t in {shown(table, i) for i in range(len(table.all)) if table.all.size[i] == 1}}
    assert level_one == {
        ("matmul", "x", "w"), ("add", "x", "b1"), ("add", "x", "b2"), ("gemm", "x", "w", "b1"), ("gemm", "x", "w", "b2"),
    }  # fmt: skip


def test_constants_and_inputs_only(family_of: Any) -> None:
    family = family_of("""
inputs = [{ name = "x", kind = "matrix", shape = "(m, n)" }]
[operators]
one = { term = "expand(1, shape=(m, n))", result = "matrix" }
mul = { term = "mul(a, b)", commutative = true }
neg = { term = "neg(a)", inputs_only = true }
""")
    table = grown(family, 2)
    found = {shown(table, i): int(h) for i, h in enumerate(table.all.hash.tolist())}
    assert found["x"] == found[("mul", "x", ("one",))]
    assert ("neg", "x") in found
    assert ("neg", ("neg", "x")) not in found
    assert ("neg", ("one",)) not in found


def test_only_what_was_cut_may_be_split(family_of: Any) -> None:
    family = family_of("""
inputs = [{ name = "x", count = 2, kind = "matrix", shape = "(m, n)" }]
[operators]
concat = { term = "concat(a, b, axis=0)", cut = 0 }
neg = { term = "neg(a)" }
turn = { term = "transpose(a, perm=(1, 0))" }
first = { term = "item(split(a, axis=0, split=(dim(a, 0) // 2, dim(a, 0) // 2)), index=0)", part_of = 0 }
last = { term = "item(split(a, axis=1, split=(dim(a, 1) // 2, dim(a, 1) // 2)), index=1)", part_of = 1 }
""")
    table = grown(family, 3)
    found = {shown(table, i): int(h) for i, h in enumerate(table.all.hash.tolist())}
    both = ("concat", "x1", "x2")
    assert found["x1"] == found[("first", both)]
    assert found[("neg", "x1")] == found[("first", ("neg", both))]
    assert found[("turn", "x2")] == found[("last", ("turn", both))]
    assert ("first", "x1") not in found
    assert ("first", ("turn", both)) not in found
    assert ("first", ("neg", "x1")) not in found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", families())
def test_a_half_of_a_split_says_which_it_is(name: str) -> None:
    family = load_family(name)
    halves = [(o.part_of, o.half) for o in family.operators if o.part_of is not None]
    assert sorted(halves) == [(axis, half) for axis in sorted({a for a, _ in halves}) for half in (0, 1)]
    assert len(family.halves) == len(halves)


def test_a_wrong_family_is_an_error(family_of: Any) -> None:
    with pytest.raises(InvalidOption, match="no family 'none'"):
        load_family("none")
    with pytest.raises(InvalidOption, match="operator relu"):
        family_of('inputs = []\n[operators]\nrelu = { term = "relu(a)", comutative = true }\n')


# ---------------------------------------------------------------- fusions of the other families

FUSIONS = {
    "elementwise": [
        (("gelu", "x"), ("halved_product", ("half_signal", "x"), ("tail_one", ("erf_part", "x")))),
        (("gelu_tanh", "x"), ("gated", "x", ("half_gate", ("tail_one", ("tanh_power", "x"))))),
        (("swish", "x"), ("gated", "x", ("sigmoid", "x"))),
        (("sigmoid", "x"), ("exp_reciprocal", ("add_one", ("decay", "x")))),
        (("hard_swish", "h"), ("sixth_product", ("sixfold", "h", ("clip_gate", "h")))),
        (("mish", "x"), ("gated", "x", ("tanh", ("softplus", "x")))),
        (("bias_gelu", "x", "b"), ("gelu", ("bias", "x", "b"))),
        (("exp", ("log_add", "l1", "l2")), ("exp_mul", ("exp", "l1"), ("exp", "l2"))),
    ],
    "norm": [
        (("normalised", "x1"), ("over", "x1", ("root", ("mean_square", "x1")))),
        (("rms_norm", "x1", "g1"), ("scale", ("normalised", "x1"), "g1")),
        (("layer_norm", "x1", "g1"), ("scale", ("normalised_centred", ("centred", "x1")), "g1")),
        (("layer_norm_bias", "x1", "g1", "g2"), ("shift", ("layer_norm", "x1", "g1"), "g2")),
        (("skip_layer_norm_offset", "x1", "x2", "g1", "g2"), ("layer_norm_sum_bias", ("add", "x1", "x2"), "g1", "g2")),
        (("skip_rms_norm", "x1", "x2", "g1"), ("rms_norm_sum", ("add", "x1", "x2"), "g1")),
        (("matmul", ("rms_norm", "x1", "g1"), "w"), ("normal_matmul", ("normalised", "x1"), ("row_matrix", "g1", "w"))),
        (("l2", "x1"), ("root_energy", ("sum_square", "x1"))),
        (("group_norm", "i", "t1", "t2"), ("image_affine", ("ungrouped", ("instance_grouped", ("grouped", "i"))), "t1", "t2")),
    ],
    "attention": [
        (("attention_half", "q1", "q2", "q3"), ("mix", ("softmax", ("fused_dot_half", "q1", "q2")), "q3")),
        (("fused_dot_half", "q1", "q2"), ("half", ("dot_heads", "q1", "q2"))),
        (("attention_half_mask", "q1", "q2", "q3", "m"), ("mix", ("softmax", ("mask", ("fused_dot_half", "q1", "q2"), "m")), "q3")),
        (("softmax", "z"), ("shifted_share", ("shifted_exp", ("shifted", "z")), ("shifted_total", ("shifted_exp", ("shifted", "z"))))),
        (("multi_head_attention", "x1", "x2", "x3"), ("merge_heads", ("attend", "x1", "x2", "x3"))),
        (("attend_projected", "x1", "u1", "u2", "u3", "p"), ("attend_packed", "x1", "u1", "u2", "u3", "p")),
        (
            ("split_projected", ("project", "x1", "u1")),
            ("first_heads", ("split_wide", ("project_wide", "x1", ("concat_weights", "u1", "u2")))),
        ),
        (("rotary_embedding", "r", "c1", "c2"), ("turned", ("by_table", "r", "c1"), ("rotated_by_table", ("rotate", "r"), "c2"))),
        (("gemm_row", "y1", "w1", "e"), ("add_row", ("matmul", "y1", "w1"), "e")),
    ],
    "conv": [
        (("average_pool", "x1"), ("conv3", "x1", ("pooling_kernel",))),
        (("batch_norm", ("conv3", "x1", "v1"), "s", "t", "m", "q"),
         ("shift_offset", ("norm_conv", "x1", ("norm_kernel", "v1", "s", "q")), ("norm_offset", "t", "m", "s", "q"))),
        (("conv3_pointwise", "x1", "p", "v1"), ("product_conv", "x1", ("pointwise_before", "p", "v1"))),
        (("conv1_strided", "x1", "p"), ("sampled_conv", ("every_second", "x1"), "p")),
        (("scale", ("conv3", "x1", "d"), "b1"), ("scaled_kernel_conv", "x1", ("scale_outputs", "d", "b1"))),
        (("feature_channels", ("conv3", "x1", "u1"), ("conv3", "x2", "u2")),
         ("combined_conv", ("image_channels", "x1", "x2"), ("kernel_outputs", "u1", "u2"))),
        (("residual", ("conv3", "x1", "v1"), "x1"), ("residual_conv", "x1", ("plus_identity", "v1"))),
    ],
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUSIONS)
def test_fusions_are_found(name: str) -> None:
    table = full(name)
    found: dict[Term, int] = {}
    for i, fingerprint in enumerate(table.all.hash.tolist()):
        term = shown(table, i)
        found[_sorted(term)] = fingerprint
    missing = [
        (a, b) for a, b in FUSIONS[name] if (left := found.get(_sorted(a))) is None or left != found.get(_sorted(b))
    ]
    assert missing == []


COMMUTING = ("turned",)


def _sorted(term: Term) -> Term:
    if isinstance(term, str):
        return term
    args = [_sorted(a) for a in term[1:]]
    return (term[0], *(sorted(args, key=repr) if term[0] in COMMUTING else args))


# ---------------------------------------------------------------- equations


def test_equations_have_no_common_parts_and_hold_elsewhere(three: Table) -> None:
    classes = Classes.of(three)
    pairs, shared = classes.equations()
    assert shared > 0
    place = {int(m): i for i, m in enumerate(classes.members)}
    left = classes.nodes[[place[int(i)] for i in pairs.left]]
    right = classes.nodes[[place[int(i)] for i in pairs.right]]
    assert not sharing(left, right).any()
    pairs = pairs.where(~common_supergraph(three, pairs))
    assert recheck_equations(three, pairs, three.family.recheck, 5).all()


def test_canonical_forms_forget_names(three: Table) -> None:
    trees = Trees(three)
    one = trees.canonical(("ewadd", 3, ("matmul", 7, 3)), 7)
    assert one == trees.canonical(("ewadd", ("matmul", 2, 9), 9), 2)
    assert one != trees.canonical(("ewadd", ("matmul", 9, 2), 9), 2)


def test_what_smaller_rules_derive_is_known() -> None:
    derivation = Derivation({"add"})
    derivation.learn(("f", ("f", 0)), 0)
    derivation.learn(("f", ("add", 0, 1)), ("add", ("f", 0), ("f", 1)))
    assert derivation.derives(("f", ("add", ("f", 0), 1)), ("add", ("f", 1), 0))
    assert not derivation.derives(("f", ("add", 0, 1)), ("add", 0, ("f", 1)))
    assert names(("add", "x", ("f", "y"))) == {"x", "y"}
