"""Kernels with movements in a model: they are in place of the movements, and pass the check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from fused_models import CONFIG, fresh_cache, kernels, quick
from moved_goals import part

from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, topological, variable
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused

S = symbol("s")


def leaf(name: str, *shape: Dim) -> Node:
    return variable(name, Tensor("float32", shape))


def rotary() -> Graph:
    """A rotary embedding of any number of tokens."""
    x, cos, sin = leaf("x", 2, 4, S, 32), leaf("cos", S, 32), leaf("sin", S, 32)
    half = term("concat", term("neg", part(x, 3, 16, 32)), part(x, 3, 0, 16), axis=3)
    return Graph((x, cos, sin), (term("add", term("mul", x, cos), term("mul", half, sin)),))


def attention() -> Graph:
    """Attention to the last keys of a cache and a new one."""
    past, new, query = leaf("past", 4, 40, 16), leaf("new", 4, 1, 16), leaf("query", 4, 1, 16)
    keys = term("concat", part(past, 1, 9, 40), new, axis=1)
    scores = term("softmax", term("matmul", query, term("transpose", keys, perm=(0, 2, 1))), axis=2)
    return Graph((past, new, query), (term("matmul", scores, keys),))


def gated() -> Graph:
    """The halves of a projection, of which one is the gate of the other."""
    x = leaf("x", 6, 64)
    halves = term("split", x, axis=1, split=(32, 32))
    value, gate = (term("item", halves, index=i) for i in range(2))
    return Graph((x,), (term("mul", value, term("mul", gate, term("sigmoid", gate))),))


def framed() -> Graph:
    """A frame of ones around a picture, and a softmax of its columns."""
    x = leaf("x", 3, 8, 8)
    wide = term("pad", term("relu", x), pads=(0, 1, 1, 0, 1, 1), value=1.0)
    return Graph((x,), (term("softmax", term("mul", wide, constant(0.5, "float32")), axis=1),))


def projected(width: int = 32) -> Node:
    """The gated key of a token."""
    key = term("matmul", leaf("token", 1, 64), leaf("w", 64, width))
    return term("mul", key, term("sigmoid", leaf("gate", 1, width)))


def appended() -> Graph:
    """A cache with a new row behind it."""
    past = leaf("past", 40, 32)
    key = projected()
    return Graph((past, *leaves(key)), (term("concat", past, key, axis=0),))


def written() -> Graph:
    """A cache with a new row at the position that a run gives."""
    cache, at, key = leaf("cache", 40, 32), variable("at", Tensor("int64", (1, 1))), projected()
    return Graph((cache, at, *leaves(key)), (term("scatter_nd", cache, at, key),))


def leaves(x: Node) -> tuple[Node, ...]:
    return tuple([n for n in topological([x]) if n.op == "input"])


GRAPHS = {"rotary": rotary, "attention": attention, "gated": gated, "framed": framed}
GRAPHS |= {"appended": appended, "written": written}


def model(graph: Graph) -> Model:
    return from_ir(from_proto(onnx.load_from_string(serialize(standalone(graph, {"": 20}, {})))))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_kernel_takes_the_place_of_movements(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    config = replace(CONFIG, default_size=8)
    plain = optimize_model(model(GRAPHS[name]()), replace(config, measure=False, budget=0.0))
    found = fused(replace(plain, model=plain.original, steps=(), changed=False), config, "search")
    assert kernels(found) == 1, found.notes
    assert not {n.op for n in found.model.graph} & {"slice", "concat", "split", "pad", "scatter_nd", "matmul"}
    assert found.differences
    assert all(d.passed for d in found.differences)
