"""Index maps of movements against the movements themselves."""

import numpy as np
import pytest

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Tensor, constant, numpy_dtype, topological, variable
from taso_mirage.meanings.reals import Reals
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.movements import index_map, is_moved, moved_elements
from taso_mirage.operators.ops import term

X = variable("x", Tensor("float32", (4, 6)))
Y = variable("y", Tensor("float32", (4, 2)))
ROWS = variable("rows", Tensor("int64", (3,)))


def arrays(node):
    found, rng = {}, np.random.default_rng(0)
    for leaf in [n for n in topological([node]) if not n.args]:
        if leaf.op == "constant":
            found[leaf] = leaf.attr("value").numpy()
        elif leaf.dtype == "int64":
            found[leaf] = rng.integers(-4, 4, leaf.shape)
        else:
            found[leaf] = (
                (np.arange(np.prod(leaf.shape)) + 100 * len(found)).reshape(leaf.shape).astype(numpy_dtype(leaf.dtype))
            )
    return found


def same(node):
    given = arrays(node)
    wanted = interpret([node], Reals(), given)[node]
    found = moved_elements(index_map(node), given)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def random_movement(rng, node):
    shape = node.shape
    axis = int(rng.integers(len(shape))) if shape else 0
    n = shape[axis] if shape else 1
    match rng.integers(8):
        case 0 if n > 1:
            start, step = int(rng.integers(n - 1)), int(rng.integers(1, 3))
            return term("slice", node, starts=(start,), ends=(n,), axes=(axis,), steps=(step,))
        case 1 if n > 1:
            return term("slice", node, starts=(n - 1,), ends=(-1,), axes=(axis,), steps=(-1,))
        case 2 if np.prod(shape) < 200:
            return term("concat", node, node, axis=axis)
        case 3 if np.prod(shape) < 200:
            pads = [int(k) for k in rng.integers(0, 2, 2 * len(shape))]
            return padded(node, pads)
        case 4:
            return term("transpose", node, perm=tuple(int(i) for i in rng.permutation(len(shape))))
        case 5:
            left, dims = int(np.prod(shape)), list[int]()
            for _ in range(3):
                dims.append(int(rng.choice([k for k in range(1, left + 1) if left % k == 0])))
                left //= dims[-1]
            return term("reshape", node, shape=(*dims, left))
        case 6:
            rows = constant(rng.integers(-n, n, 3).astype(np.int64))
            return term("gather", node, rows, axis=axis)
        case _:
            return (
                term("expand", term("reshape", node, shape=(1, *shape)), shape=(2, *shape))
                if np.prod(shape) < 100
                else node
            )


def padded(node, pads):
    return term("pad", node, pads=tuple(pads), value=0.0)


@pytest.mark.parametrize("seed", range(60))
def test_a_chain_of_movements_is_its_index_map(seed):
    rng = np.random.default_rng(seed)
    node = term("concat", X, Y, axis=1) if seed % 2 else X
    for _ in range(rng.integers(1, 6)):
        node = random_movement(rng, node)
    same(node)


def test_a_reshape_without_elements_is_refused() -> None:
    assert not is_moved(term("reshape", variable("none", Tensor("float32", (2, 0, 3))), shape=(0, 5)))


def test_rows_of_an_input_wrap_and_are_clamped():
    same(term("gather", X, ROWS, axis=0))
    found = moved_elements(
        index_map(term("gather", X, ROWS, axis=0)), {X: np.arange(24).reshape(4, 6), ROWS: np.array([9, -9, -1])}
    )
    assert found[:, 0].tolist() == [18, 0, 18]


def test_rows_that_no_element_needs_are_not_read():
    once = term("gather", variable("z", Tensor("float32", (1, 6))), ROWS, axis=0)
    assert index_map(once).rows == ()
    first = term(
        "slice",
        term("concat", term("gather", X, ROWS, axis=0), X, axis=0),
        starts=(3,),
        ends=(5,),
        axes=(0,),
        steps=(1,),
    )
    assert index_map(first).sources == (X,)


def test_conditions_that_always_hold_are_left_out():
    (piece,) = index_map(term("slice", padded(X, (1, 0, 1, 0)), starts=(1,), ends=(5,), axes=(0,), steps=(1,))).pieces
    assert piece.conditions == ()


def test_sizes_may_be_symbolic():
    past, new = (variable(name, Tensor("float32", (n, 8))) for name, n in (("past", symbol("s")), ("new", 1)))
    found = index_map(term("concat", past, new, axis=0))
    assert found.shape == (symbol("s") + 1, 8)
    first, second = found.pieces
    assert first.conditions == (symbol("s") - 1 - symbol("i0"),)
    assert second.index == (0, symbol("i1"))
    assert second.conditions == (symbol("i0") - symbol("s"),)


def test_a_computed_element_is_refused_by_the_name_of_its_operator():
    with pytest.raises(Unsupported, match="relu"):
        index_map(term("slice", term("relu", X), starts=(0,), ends=(2,), axes=(0,), steps=(1,)))
    assert not is_moved(term("relu", X))
    assert not is_moved(X)
    assert is_moved(term("transpose", X, perm=(1, 0)))
