"""The body of an attention kernel: the softmax of scores times values over the keys of a loop, in
parts. `warp_specialized.py` generates its program with specialized warps."""

from __future__ import annotations

from dataclasses import dataclass

from taso_mirage.emit.gpu.block import TritonBlock
from taso_mirage.emit.gpu.tiles import MAXIMUM_START
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import LoopPhase, Lowering
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.forms import RegionPattern

POWERS = RegionPattern("exp(sub(x, m))")
DIVIDED = RegionPattern("div(x, y)")
ROOT = RegionPattern("sqrt(x)")
LARGEST = RegionPattern("reduce_max(x, axes=a, keepdims=k)")


@dataclass(frozen=True, slots=True)
class Operand:
    """A side of the scores: a leaf with its dims in some order (`x`), and the divisor of each of
    its rows."""

    leaf: Node
    x: Node
    letters: str
    divisor: Node | None


@dataclass(frozen=True, slots=True)
class AttentionBody:
    """The terms of a body that computes softmax(queries keys) values over the keys of a loop, in
    parts."""

    queries: Operand
    keys: Operand
    values: Node
    sums: Node
    products: Node
    largest: Node
    scores: Node


def attention(block: TritonBlock) -> AttentionBody:
    """Read a kernel's body as attention. Raises Unsupported with the reason if the body computes
    anything else."""
    found: dict[object, Node] = {}
    for node in (n for n in block.body if traits(n).lowering is Lowering.ACCUMULATE):
        over = node.attr("over")
        demand(over == "max" or (over == "rescaled" and node.attr("degree") == 1), f"an accumulator over {over}")
        kind = "max" if over == "max" else traits(node.args[0]).lowering
        demand(kind not in found, "two accumulators of a kind")
        found[kind] = node
    demand(found.keys() == {"max", Lowering.SUM, Lowering.CONTRACT}, "no sums, products and maxima")
    sums, products, largest = found[Lowering.SUM], found[Lowering.CONTRACT], found["max"]
    weights = sums.args[0].args[0]
    power = POWERS.match(weights)
    demand(power is not None, f"a sum of {weights.op}, and not of exponentials of differences")
    assert power is not None
    scores, top = power["x"], largest.args[0]
    running = [bare(each) for each in (power["m"], sums.args[1], products.args[1])]
    demand(all(bare(each.args[0]) is bare(top) for each in running), "exponentials relative to another maximum")
    demand(_is_largest(block, top, scores), "a maximum of something else than the scores")
    queries, keys = _sides(block, scores)
    values = _values(block, products.args[0], weights, scores)
    return AttentionBody(queries, keys, values, sums, products, largest, scores)


def demand(holds: bool, otherwise: str) -> None:
    """Raise Unsupported with the reason if a condition does not hold."""
    if not holds:
        raise Unsupported(f"{otherwise}: no attention that warps with roles are generated for")


def bare(node: Node) -> Node:
    """A term without the reshapes around it."""
    while traits(node).lowering is Lowering.RESHAPE:
        node = node.args[0]
    return node


def _is_largest(block: TritonBlock, top: Node, scores: Node) -> bool:
    """Whether a term is the maximum of the least float and of the scores of each row."""
    node = bare(top)
    if traits(node).lowering is not Lowering.MAXIMUM or len(node.args) != 2:
        return False
    numbers = [block.values[x].number for x in node.args]
    over = [LARGEST.match(x) for x, number in zip(node.args, numbers, strict=True) if number is None]
    return (
        numbers.count(MAXIMUM_START) == 1
        and len(over) == 1
        and over[0] is not None
        and over[0]["x"] is scores
        and tuple(over[0]["a"]) == (len(scores.shape) - 1,)
    )


def letters_of(node: Node) -> tuple[list[str], str]:
    """The letters of both operands of a contraction, and those of its result."""
    product = traits(node).lowering is Lowering.CONTRACT and len(node.args) == 2 and "equation" in dict(node.attrs)
    demand(product, f"{node.op} for a product with an equation")
    operands, _, result = node.attr("equation").partition("->")
    return operands.split(","), result


def _sides(block: TritonBlock, scores: Node) -> tuple[Operand, Operand]:
    """Queries and keys of a product of scores."""
    letters, result = letters_of(scores)
    sides = [_side(x, own) for x, own in zip(scores.args, letters, strict=True)]
    sides.sort(key=lambda each: result[-1] in each.letters)
    queries, keys = sides
    demand(result[-2] in queries.letters and result[-1] in keys.letters, "scores of other dims than queries and keys")
    demand(block.term.stage[queries.leaf] is LoopPhase.INVARIANT, "queries that the loop cuts")
    demand(block.term.stage[keys.leaf] is LoopPhase.LOOP, "keys that the loop does not cut")
    (width,) = {*keys.letters} & {*queries.letters} - {*result}
    for each in sides:
        own = each.letters.index(width)
        demand(each.divisor is None or each.divisor.shape[own] == 1, "a divisor that differs along a sum")
    demand(
        queries.divisor is None or ROOT.match(bare(queries.divisor)) is not None,
        "queries divided by a term that may be negative",
    )
    return queries, keys


def _side(x: Node, letters: str) -> Operand:
    divided = DIVIDED.match(x)
    x, divisor = (divided["x"], divided["y"]) if divided else (x, None)
    leaf = x.args[0] if traits(x).lowering is Lowering.TRANSPOSE else x
    demand(not leaf.args, f"{leaf.op} for an operand of scores")
    return Operand(leaf, x, letters, divisor)


def _values(block: TritonBlock, product: Node, weights: Node, scores: Node) -> Node:
    letters, result = letters_of(product)
    demand(weights in product.args, "a product of something else than the exponentials")
    i = 1 - product.args.index(weights)
    values, own = product.args[i], letters[i]
    demand(not values.args and block.term.stage[values] is LoopPhase.LOOP, "values that are no operand of the loop")
    _, of_scores = letters_of(scores)
    demand(own[-1] == result[-1] and own[-2] == letters[1 - i][-1], "values whose rows are no keys")
    demand(len(of_scores) == len(result), "a product of other dims")
    return values
