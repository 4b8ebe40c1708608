"""Applications that a proved case contains are not proved again, but others are."""

from __future__ import annotations

import pytest

from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.meanings.sizes import LARGEST
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.contained import ProvedCases
from taso_mirage.prove.rules.proofs import Coverage, Proofs
from taso_mirage.rewriting.index import Application, Rules
from taso_mirage.rewriting.text import parse_equation

N, M = symbol("n"), symbol("m")


def doubled(*shape: Dim, name: str = "x", dtype: str = "float32") -> Instance:
    """relu(relu(x)) and relu(x)."""
    once = term("relu", variable(name, Tensor(dtype, shape)))
    return Instance((term("relu", once),), (once,))


def summed(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> Instance:
    x, y = variable("x", Tensor("float32", left)), variable("y", Tensor("float32", right))
    return Instance((term("add", x, y),), (term("add", y, x),))


def reshaped(n: Dim, m: Dim) -> Instance:
    """A reshape whose attribute has the sizes of its operand."""
    x = variable("x", Tensor("float32", (n, m)))
    return Instance(
        (term("reshape", term("relu", x), shape=(n * m,)),), (term("relu", term("reshape", x, shape=(n * m,))),)
    )


def known(*cases: Instance) -> ProvedCases:
    found = ProvedCases()
    for each in cases:
        found.add(each)
    return found


@pytest.mark.parametrize(
    ("case", "instance"),
    [
        (doubled(N, M), doubled(3, 5)),
        (doubled(N, M), doubled(4, 4)),
        (doubled(N, M), doubled(symbol("batch"), 5)),
        (doubled(N, 2 * M), doubled(3, 6)),
        (summed((N, M), (M,)), summed((3, 5), (5,))),
        (reshaped(N, M), reshaped(6, 7)),
        (reshaped(N, 3), reshaped(6, 3)),
    ],
)
def test_sizes_that_stand_for_the_letters_are_contained(case: Instance, instance: Instance) -> None:
    assert known(case).contain(instance)


@pytest.mark.parametrize(
    ("case", "instance"),
    [
        (doubled(N, M), doubled(3, 1)),
        (doubled(N, M), doubled(3, 0)),
        (doubled(N, M), doubled(3, LARGEST + 1)),
        (doubled(N, M), doubled(3, symbol("batch") - 1)),
        (doubled(N, N), doubled(3, 5)),
        (doubled(N, 4), doubled(3, 5)),
        (doubled(N, 2 * M), doubled(3, 5)),
        (doubled(N, M), doubled(3, 5, 7)),
        (doubled(N, M), doubled(3, 5, name="y")),
        (doubled(N, M), doubled(3, 5, dtype="float16")),
        (summed((N, M), (M,)), summed((5, 5), (5, 5))),
        (summed((N, M), (M,)), summed((5,), (3, 5))),
        (reshaped(N, 3), reshaped(6, 7)),
        (doubled(N, M), Instance(doubled(3, 5).rhs, doubled(3, 5).lhs)),
    ],
)
def test_what_is_no_instance_of_a_case_is_not(case: Instance, instance: Instance) -> None:
    assert not known(case).contain(instance)


def applied(text: str, node: Node) -> Application:
    (found,) = Rules([parse_equation(text, "mine")]).applications(node)
    return found


def maximum(*shape: Dim) -> Node:
    return term(
        "relu", term("reduce_max", term("relu", variable("x", Tensor("float32", shape))), axes=(0,), keepdims=0)
    )


TWICE = "relu(relu(x)) == relu(x)"
OF_NOTHING = "relu(reduce_max(relu(x), axes=a, keepdims=k)) == reduce_max(relu(x), axes=a, keepdims=k)"


def test_an_application_at_other_sizes_is_not_asked_about() -> None:
    proofs = Proofs()
    sizes: list[tuple[Dim, Dim]] = [(3, 5), (7, 9), (4, 4), (symbol("batch"), 6)]
    assert all(proofs(applied(TWICE, doubled(*each).lhs[0])) for each in sizes)
    assert proofs.asked == 1
    assert proofs(applied(TWICE, doubled(1, 5).lhs[0]))
    assert proofs.asked == 2
    assert all(proofs.judge(doubled(*each)).covers is Coverage.EVERY for each in sizes)


def test_a_dim_that_may_be_empty_is_not_contained_where_the_empty_one_is_not_proved() -> None:
    """A maximum over nothing is not zero."""
    proofs = Proofs()
    assert proofs(applied(OF_NOTHING, maximum(3, 4)))
    assert proofs(applied(OF_NOTHING, maximum(5, 6)))
    assert proofs.asked == 1
    assert not proofs(applied(OF_NOTHING, maximum(symbol("n"), 4)))


def test_what_is_proved_at_its_own_sizes_alone_vouches_for_no_others() -> None:
    """A number of axes of 2,049 is beyond the digits of half precision."""
    text = "cast(cast(size_of(x), to='float16'), to='int64') == size_of(x)"
    proofs = Proofs()
    found = [proofs(applied(text, _counted(n))) for n in (7, 9, 2049, 11)]
    assert found == [True, True, False, True]


def _counted(n: int) -> Node:
    size = term("size_of", variable("x", Tensor("float32", (n,))))
    return term("cast", term("cast", size, to="float16"), to="int64")
