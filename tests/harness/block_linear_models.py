"""Products with weights of few bits in blocks: kernels, goals and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from named_models import w, x

from taso_mirage.forms.linear import WeightProduct
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable, weight
from taso_mirage.meanings.reals import EXACT
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term


def bytes_(name: str, *shape: int) -> Node:
    return variable(name, Tensor("uint8", shape))


def case(shape: tuple[int, ...], n: int, bits: int, size: int, follows: str) -> tuple[WeightProduct, Graph]:
    """A product with weights of few bits, with the named operators, and its goal over inputs."""
    blocks = -(-shape[-1] // size)
    zeros = bytes_("zeros", n, -(-blocks * bits // 8)) if "whole" in follows else ABSENT
    form = (
        ("K", shape[-1]),
        ("N", n),
        ("accuracy_level", 4 * ("level 4" in follows)),
        ("bits", bits),
        ("block_size", size),
    )
    made = WeightProduct(
        x("x", *shape),
        bytes_("w", n, blocks, size * bits // 8),
        x("b", n) if "bias" in follows else ABSENT,
        x("z", *shape[:-1], n) if "sum" in follows else ABSENT,
        x("scales", n, blocks),
        x("zeros", n, blocks) if "floating" in follows else zeros,
        form,
        "own" in follows,
    )
    leaves = tuple([leaf for leaf in (made.x, *made.known, made.b, made.z) if leaf is not ABSENT])
    return made, Graph(leaves, (made.goal(),))


def exact(goal: Graph, given: Sequence[Any]) -> Any:
    env: dict[Node, Any] = dict(zip(goal.inputs, [EXACT.load(a) for a in given], strict=True))
    return interpret(goal.outputs, EXACT, env)[goal.outputs[0]]


def is_near(found: Any, wanted: Any, rounding: float = 4e-6) -> bool:
    """Whether a result has the shape and, up to rounding, the values."""
    bound = rounding * np.abs(wanted).max() + 1e-30
    return bool(found.shape == wanted.shape and (np.abs(found - wanted) < bound).all())


def product(rows: Any, k: int, n: int, size: int = 32, level: int = 0, zeros: str = "", **others: Any) -> Node:
    """A product of a model."""
    blocks = -(-k // size)
    codes = weight(f"q{n}", Tensor("uint8", (n, blocks, size // 2)))
    offsets = weight(f"o{n}", Tensor(zeros, (n, -(-blocks // 2) if zeros == "uint8" else blocks))) if zeros else ABSENT
    data = others.get("data") or variable("x", Tensor("float32", (rows, k)))
    form = {"K": k, "N": n, "bits": 4, "block_size": size, "accuracy_level": level}
    return term("matmul_nbits", data, codes, w(f"s{n}", n, blocks), offsets, ABSENT, others.get("bias", ABSENT), **form)


def model(*outputs: Node) -> Model:
    """A model of these terms with random weights, as it is read from a file."""
    leaves = Graph((), outputs)
    rng = np.random.default_rng(0)
    arrays = {
        n.attr("name"): StoredWeight(
            rng.integers(0, 256, n.shape).astype(np.uint8)
            if n.dtype == "uint8"
            else rng.normal(size=n.shape).astype(np.float32)
        )
        for n in leaves
        if n.op == "weight"
    }
    graph = Graph(tuple(n for n in leaves if n.op == "input"), outputs)
    made = standalone(graph, {"": 20, "com.microsoft": 1}, arrays)
    return from_ir(from_proto(onnx.load_from_string(serialize(made))))
