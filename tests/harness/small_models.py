"""Small models of terms: inputs, random weights, and the operators of a graph."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable, weight
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.rewriting.equation import work_terms
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.cost import Cost, Roofline
from taso_mirage.search.passes import Context
from taso_mirage.search.rulesets import rules
from taso_mirage.search.rulesets import rules as all_rules
from taso_mirage.search.search import Budget, directions, search_model
from taso_mirage.search.simultaneous import all_at_once, laws_together

F = "float32"
CONTEXT = Context({"": 20, "com.microsoft": 1}, {})


def x(*shape: int, name: str = "x") -> Node:
    return variable(name, Tensor(F, shape))


def w(*shape: int, name: str = "w") -> Node:
    return weight(name, Tensor(F, shape))


def model(inputs: tuple[Node, ...], outputs: tuple[Node, ...], seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    weights = {
        n.attr("name"): StoredWeight(rng.normal(size=[int(d) for d in n.shape]).astype(np.float32))
        for n in topological(outputs)
        if n.op == "weight"
    }
    built = standalone(Graph(inputs, outputs), {"": 20}, weights)
    return from_ir(to_ir(built))


def searched(outputs: tuple[Node, ...], seconds: float = 20) -> tuple[Node, ...]:
    rules = all_rules()
    cost = Cost(Roofline(CONTEXT))
    found, _, _ = search_model(
        outputs, Rules(directions(rules.equations)), Rules(rules), cost, CONTEXT, Budget(seconds)
    )
    assert cost(topological(found)) <= cost(topological(outputs))
    return found


def ops(outputs: tuple[Node, ...]) -> list[str]:
    return sorted(n.op for n in work_terms(topological(outputs)))


def relus(path: Path, count: int, shape: tuple[int, ...] = (4, 8)) -> None:
    """A chain of activations, of which all but one are too many."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def shortened() -> onnx.ModelProto:
    """Two transposes cancel, and two sums of weights become one."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[1, 0]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
        helper.make_node("Add", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy")
    weights = [numpy_helper.from_array(np.full(4, 0.5, np.float32), name) for name in "vw"]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def changed(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    return all_at_once(outputs, Rules(laws_together(rules())), CONTEXT)[0]
