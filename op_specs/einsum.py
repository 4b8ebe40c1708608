"""Sums of products by index letters."""

from collections import Counter

from op_specs.reductions import reduce_sum
from op_specs.transpose import transpose
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, op


@op(onnx="Einsum", since=12, lowering=Lowering.CONTRACT)
def einsum(xp, a, b, *, equation: str):
    """two operands by `equation`, as in numpy, the result spelled out"""
    return xp.contract(equation, a, b)


@einsum.importer
def _(call: Call) -> Node:
    equation = _spelled_out(str(call.attrs["equation"]))
    inputs, result = equation.split("->")
    letters = inputs.split(",")
    if any(len(set(t) - {"."}) != len(t.replace(".", "")) for t in (*letters, result)):
        raise Unsupported(f"Einsum {equation} with a diagonal")
    if any(c.isupper() for c in equation):
        raise Unsupported(f"Einsum {equation} with capital letters")
    if len(call.args) == 1 and "." not in equation:
        return _of_one(call.arg(0), letters[0], result)
    if len(call.args) != 2:
        raise Unsupported(f"Einsum of {len(call.args)} operands: {equation}")
    return einsum.term(*call.args, equation=equation)


def _spelled_out(equation: str) -> str:
    """Without blanks, and with the result that is meant when none is given: the letters that occur
    once, sorted."""
    equation = equation.replace(" ", "")
    if "->" in equation:
        return equation
    counts = Counter(c for c in equation if c.isalpha())
    once = "".join(sorted(c for c, n in counts.items() if n == 1))
    return f"{equation}->{'...' if '...' in equation else ''}{once}"


def _of_one(x: Node, letters: str, result: str) -> Node:
    summed = [i for i, c in enumerate(letters) if c not in result]
    kept = [c for c in letters if c in result]
    total = reduce_sum.term(x, axes=summed, keepdims=0) if summed else x
    perm = tuple(kept.index(c) for c in result)
    return total if perm == tuple(range(len(perm))) else transpose.term(total, perm=perm)


einsum.example("float32[2,3]", "float32[3,4]", equation="ij,jk->ik")
einsum.example("float32[2,3,4]", "float32[2,5,4]", equation="bik,bjk->bij")
einsum.example("float32[2,3,4,5]", "float32[2,6,4,5]", equation="bnij,bmij->bnm")
einsum.example("float32[3]", "float32[4]", equation="i,j->ji")
einsum.example("float32[2,3,4]", "float32[4,5]", equation="...ij,jk->...ik")
einsum.example("float32[2,3]", "float32[2,3]", equation="ij,ij->")
