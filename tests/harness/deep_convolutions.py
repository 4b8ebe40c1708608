"""Convolutional models of many blocks with one wrong rewrite deep inside of them: beside
convolutions and norms they have features that `deep_mutants` lacks: branches, splits, pools,
padding, an `If` with a captured value, values that are outputs too, and operators without a
definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from deep_mutants import but_rows, in_dtype, sliced
from onnx import TensorProto, helper, numpy_helper

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Node, Tensor, constant, weight
from taso_mirage.onnx_io import from_ir, from_proto
from taso_mirage.operators.ops import term

EPSILON = 1e-5
CLASSES, BEST = 32, 5


@dataclass(frozen=True)
class ImageSizes:
    """The sizes of a convolutional model: images at once, channels, lines and columns, blocks."""

    batch: int = 2
    channels: int = 16
    edge: int = 12
    layers: int = 4


@dataclass
class Convolutional:
    """A convolutional model, the terms of each block by their names, and new weights."""

    sizes: ImageSizes
    weights: dict[str, StoredWeight] = field(default_factory=dict)
    layers: list[dict[str, Node]] = field(default_factory=list)

    def __post_init__(self) -> None:
        proto, names = _proto(self.sizes)
        self.model: Model = replace(from_ir(from_proto(proto)), sizes={"n": self.sizes.batch})
        terms = {name: node for node, name in self.model.names.items()}
        head = {name: terms[name] for name in ("logits", "best", "index", "shares", "rows", "total", "sums")}
        self.layers = [{kind: terms[name] for kind, name in each.items()} | head for each in names]

    def weight(self, name: str, array: Any) -> Node:
        """A new weight."""
        array = np.ascontiguousarray(array, np.float32)
        self.weights[name] = StoredWeight(array)
        return weight(name, Tensor("float32", array.shape))

    def array(self, node: Node) -> Any:
        return np.array(self.model.weights[node.attr("name")].numpy())

    def changed(self, node: Node, change: Callable[[Any], Any]) -> Node:
        """A new weight in the place of one."""
        return self.weight(f"wrong{len(self.weights)}", change(self.array(node)))


def number(value: float) -> Node:
    return constant(np.float32(value))


def _proto(sizes: ImageSizes) -> tuple[onnx.ModelProto, list[dict[str, str]]]:
    """The model, and the names of the values of each block."""
    rng, c, edge = np.random.default_rng(0), sizes.channels, sizes.edge
    nodes: list[Any] = []
    weights: list[Any] = []

    def given(name: str, array: Any, dtype: Any = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(array).astype(dtype), name))
        return name

    def drawn(name: str, *shape: int, scale: float = 1.0, middle: float = 0.0) -> str:
        return given(name, middle + scale * rng.normal(size=shape))

    def put(op: str, inputs: list[str], *outputs: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, inputs, list(outputs), **attributes))

    float_info = helper.make_tensor_value_info
    around = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4}
    x, names = "x", list[dict[str, str]]()
    for i in range(sizes.layers):
        kinds = "conv norm relu mean small smaller gate_input gate gated deep clip most average first second swapped"
        kinds += " difference chosen peak above where padded cut y"
        t = {kind: f"{kind}.{i}" for kind in kinds.split()}
        names.append(t)
        put(
            "Conv",
            [x, drawn(f"w.{i}", c, c, 3, 3, scale=c**-0.5 / 3), drawn(f"b.{i}", c, scale=0.3)],
            t["conv"],
            pads=[1] * 4,
        )
        norm = [drawn(f"gain.{i}", c, scale=0.2, middle=1.0), drawn(f"shift.{i}", c, scale=0.2)]
        norm += [drawn(f"means.{i}", c, scale=0.2), given(f"variances.{i}", 0.2 + rng.random(c))]
        put("BatchNormalization", [t["conv"], *norm], t["norm"], epsilon=EPSILON)
        put("Relu", [t["norm"]], t["relu"])
        put("GlobalAveragePool", [t["relu"]], t["mean"])
        put("Conv", [t["mean"], drawn(f"s1.{i}", 4, c, 1, 1, scale=0.5), drawn(f"s1b.{i}", 4, scale=0.1)], t["small"])
        put("Relu", [t["small"]], t["smaller"])
        put(
            "Conv",
            [t["smaller"], drawn(f"s2.{i}", c, 4, 1, 1, scale=0.5), drawn(f"s2b.{i}", c, scale=0.1)],
            t["gate_input"],
        )
        put("Sigmoid", [t["gate_input"]], t["gate"])
        put("Mul", [t["relu"], t["gate"]], t["gated"])
        put("Conv", [t["gated"], drawn(f"d.{i}", c, 1, 3, 3, scale=0.4)], t["deep"], pads=[1] * 4, group=c)
        put("Clip", [t["deep"], given(f"low.{i}", 0.0), given(f"high.{i}", 0.5)], t["clip"])
        put("MaxPool", [t["clip"]], t["most"], **around)
        put("AveragePool", [t["clip"]], t["average"], count_include_pad=0, **around)
        put("Split", [t["most"]], t["first"], t["second"], axis=1, num_outputs=2)
        put("Concat", [t["second"], t["first"]], t["swapped"], axis=1)
        put("Sub", [t["swapped"], t["average"]], t["difference"])
        factor = given(f"factor.{i}", 0.7 + 0.1 * (i % 4))
        put(
            "If",
            ["flag"],
            t["chosen"],
            then_branch=_branch("Mul", t["difference"], factor),
            else_branch=_branch("Add", t["difference"], factor),
        )
        put("ReduceMax", [t["chosen"], given(f"axes.{i}", [2, 3], np.int64)], t["peak"], keepdims=1)
        put("Greater", [t["chosen"], given(f"level.{i}", 0.6)], t["above"])
        put("Where", [t["above"], t["chosen"], t["peak"]], t["where"])
        put("Pad", [t["where"], given(f"around.{i}", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)], t["padded"], mode="reflect")
        places = [
            given(f"{k}.{i}", v, np.int64) for k, v in (("from", [0, 1]), ("to", [edge, edge + 1]), ("of", [2, 3]))
        ]
        put("Slice", [t["padded"], *places], t["cut"])
        put("Add", [x, t["cut"]], t["y"])
        x = t["y"]
    put("Flatten", [x], "flat")
    put("MatMul", ["flat", drawn("head", c * edge * edge, CLASSES, scale=(c * edge * edge) ** -0.5)], "logits")
    put("TopK", ["logits", given("count", [BEST], np.int64)], "best", "index")
    put("Softmax", ["logits"], "shares")
    put("Gather", [drawn("table", CLASSES, 8), "index"], "rows", axis=0)
    put("ReduceLogSumExp", ["logits", given("last", [1], np.int64)], "total", keepdims=0)
    put("CumSum", ["shares", given("one", 1, np.int64)], "sums")
    inner = [t["gate"] for t in names[1::2]]
    outputs = [float_info(n, TensorProto.FLOAT, None) for n in (*inner, "best", "shares", "rows", "total", "sums")]
    outputs.append(float_info("index", TensorProto.INT64, None))
    inputs = [float_info("x", TensorProto.FLOAT, ["n", c, edge, edge]), float_info("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "images", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), names


def _branch(op: str, x: str, factor: str) -> Any:
    """A branch that captures a value."""
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op, [x, factor], ["out"])], "branch", [], [out])


ImageChange = Callable[[Convolutional, int, dict[str, Node]], tuple[Node, Node]]


def _with(node: Node, *args: Node, **attrs: Any) -> Node:
    """A term with other operands, the first ones, and other attributes."""
    return term(node.op, *args, *node.args[len(args) :], **{**dict(node.attrs), **attrs})


def _conv(f: Convolutional, node: Node, change: Callable[[Any], Any]) -> tuple[Node, Node]:
    return node, _with(node, node.args[0], f.changed(node.args[1], change))


def _norm(f: Convolutional, node: Node, place: int, change: Callable[[Any], Any]) -> tuple[Node, Node]:
    return node, _with(node, *node.args[:place], f.changed(node.args[place], change))


def _at(array: Any, place: Any, by: float) -> Any:
    array[place] *= by
    return array


def _padded(x: Node, mode: str, value: float = 0.0) -> Node:
    return term("pad", x, pads=(0, 0, 1, 1, 0, 0, 1, 1), value=value, mode=mode)


def _unpadded(node: Node, mode: str, value: float = 0.0) -> tuple[Node, Node]:
    """A window over an operand that is padded otherwise."""
    return node, _with(node, _padded(node.args[0], mode, value), pads=(0, 0, 0, 0))


def _first_alone(x: Node) -> Node:
    """The first of a batch in the place of all: x - x + the first."""
    return term("add", term("sub", x, x), sliced(x, 0, 0, 1))


def image_mutants() -> dict[str, ImageChange]:
    """Wrong rewrites of one block, or of the terms after the last."""
    return _wrong_windows() | _wrong_norms() | _wrong_gates() | _wrong_moves() | _wrong_heads()


def _wrong_windows() -> dict[str, ImageChange]:
    return {
        "kernel turned": lambda f, i, t: _conv(f, t["conv"], lambda a: a[:, :, ::-1, ::-1]),
        "lines and columns of the kernel exchanged": lambda f, i, t: _conv(f, t["conv"], lambda a: a.swapaxes(2, 3)),
        "channels of the kernel exchanged": lambda f, i, t: _conv(f, t["conv"], lambda a: a.swapaxes(0, 1)),
        "one number of the kernel off by 5 %": lambda f, i, t: _conv(
            f, t["conv"], lambda a: _at(a, (3, 3, 0, 0), 1.05)
        ),
        "no bias": lambda f, i, t: (t["conv"], term("conv", *t["conv"].args[:2], **dict(t["conv"].attrs))),
        "bias of another block": lambda f, i, t: (
            t["conv"],
            _with(t["conv"], *t["conv"].args[:2], f.layers[i - 1]["conv"].args[2]),
        ),
        "padded by the edge": lambda f, i, t: _unpadded(t["conv"], "edge"),
        "padded by 0.001": lambda f, i, t: _unpadded(t["conv"], "constant", 1e-3),
        "a line late": lambda f, i, t: (t["conv"], _with(t["conv"], pads=(2, 1, 0, 1))),
        "in half precision": lambda f, i, t: (
            t["conv"],
            in_dtype("float16", "conv", *t["conv"].args, **dict(t["conv"].attrs)),
        ),
        "kernels of another block": lambda f, i, t: (
            t["deep"],
            _with(t["deep"], t["deep"].args[0], f.layers[i - 1]["deep"].args[1]),
        ),
        "kernels of the next channels": lambda f, i, t: _conv(f, t["deep"], lambda a: np.roll(a, 1, 0)),
        "the last kernel is 0": lambda f, i, t: _conv(f, t["deep"], lambda a: _at(a, -1, 0.0)),
        "most padded by 0.4": lambda f, i, t: _unpadded(t["most"], "constant", 0.4),
        "average counts what is padded": lambda f, i, t: (t["average"], _with(t["average"], count_include_pad=1)),
        "average in the place of most": lambda f, i, t: (t["most"], t["average"]),
    }


def _wrong_norms() -> dict[str, ImageChange]:
    return {
        "epsilon is 0.001": lambda f, i, t: (t["norm"], _with(t["norm"], epsilon=1e-3)),
        "epsilon is 0.0001": lambda f, i, t: (t["norm"], _with(t["norm"], epsilon=1e-4)),
        "no epsilon": lambda f, i, t: (t["norm"], _with(t["norm"], epsilon=0.0)),
        "no means": lambda f, i, t: _norm(f, t["norm"], 3, lambda a: 0 * a),
        "gain of the other sign": lambda f, i, t: _norm(f, t["norm"], 1, lambda a: -a),
        "variance for its root": lambda f, i, t: _norm(f, t["norm"], 4, lambda a: a * a),
        "shift of the last channel off by 1 %": lambda f, i, t: _norm(f, t["norm"], 2, lambda a: _at(a, -1, 1.01)),
        "gain and shift exchanged": lambda f, i, t: (
            t["norm"],
            _with(t["norm"], t["conv"], t["norm"].args[2], t["norm"].args[1]),
        ),
        "the norm is lost": lambda f, i, t: (t["norm"], t["conv"]),
        "relu leaks": lambda f, i, t: (t["relu"], term("leaky_relu", t["norm"], alpha=1e-3)),
        "relu is lost": lambda f, i, t: (t["relu"], t["norm"]),
        "relu ends at 1": lambda f, i, t: (t["relu"], term("clip", t["norm"], number(0), number(1))),
        "clip begins below 0": lambda f, i, t: (t["clip"], term("clip", t["deep"], number(-1e-3), number(0.5))),
        "clip ends early": lambda f, i, t: (t["clip"], term("clip", t["deep"], number(0), number(0.49))),
        "clip is relu": lambda f, i, t: (t["clip"], term("relu", t["deep"])),
    }


def _wrong_gates() -> dict[str, ImageChange]:
    return {
        "gate of the most": lambda f, i, t: (t["mean"], term("reduce_max", t["relu"], axes=(2, 3), keepdims=1)),
        "gate without the last line": lambda f, i, t: (
            t["mean"],
            term("reduce_mean", sliced(t["relu"], 2, 0, f.sizes.edge - 1), axes=(2, 3), keepdims=1),
        ),
        "gate of the first image": lambda f, i, t: (t["mean"], _first_alone(t["mean"])),
        "gate by a line": lambda f, i, t: (
            t["gate"],
            term("clip", term("add", term("mul", t["gate_input"], number(0.25)), number(0.5)), number(0), number(1)),
        ),
        "gate of what has no relu": lambda f, i, t: (t["gated"], term("mul", t["norm"], t["gate"])),
        "gate of another block": lambda f, i, t: (t["gated"], term("mul", t["relu"], f.layers[i - 1]["gate"])),
        "relu of the gate is lost": lambda f, i, t: (t["smaller"], t["small"]),
        "gate counts twice": lambda f, i, t: (t["gated"], term("mul", t["gated"], t["gate"])),
    }


def _wrong_moves() -> dict[str, ImageChange]:
    def factor(t: dict[str, Node]) -> Node:
        return t["chosen"].args[2]

    return {
        "halves in order": lambda f, i, t: (t["swapped"], t["most"]),
        "a half is the other": lambda f, i, t: (t["first"], t["second"]),
        "difference turned": lambda f, i, t: (t["difference"], term("sub", t["average"], t["swapped"])),
        "the branch is taken": lambda f, i, t: (t["chosen"], term("mul", t["difference"], factor(t))),
        "the branch is not taken": lambda f, i, t: (t["chosen"], term("add", t["difference"], factor(t))),
        "no branch": lambda f, i, t: (t["chosen"], t["difference"]),
        "mean for the peak": lambda f, i, t: (t["peak"], term("reduce_mean", t["chosen"], axes=(2, 3), keepdims=1)),
        "peak of lines": lambda f, i, t: (
            t["where"],
            term("where", t["above"], t["chosen"], term("reduce_max", t["chosen"], axes=(3,), keepdims=1)),
        ),
        "another level": lambda f, i, t: (t["above"], term("greater", t["chosen"], number(0.61))),
        "where turned": lambda f, i, t: (t["where"], term("where", t["above"], t["peak"], t["chosen"])),
        "padded by the edge, not mirrored": lambda f, i, t: (
            t["cut"],
            _with(t["cut"], _padded(t["where"], "edge")),
        ),
        "padded by zeros, not mirrored": lambda f, i, t: (t["cut"], _with(t["cut"], _padded(t["where"], "constant"))),
        "cut a line late": lambda f, i, t: (
            t["cut"],
            _with(t["cut"], starts=(1, 1), ends=(f.sizes.edge + 1, f.sizes.edge + 1)),
        ),
        "the residual is of the convolution": lambda f, i, t: (t["y"], term("add", t["conv"], t["cut"])),
        "all images are the first": lambda f, i, t: (t["cut"], _first_alone(t["cut"])),
        "the last column is off by 0.3 %": lambda f, i, t: (
            t["y"],
            but_rows(t["y"], term("mul", t["y"], number(1.003)), 3, f.sizes.edge - 1, f.sizes.edge),
        ),
    }


def _wrong_heads() -> dict[str, ImageChange]:
    return {
        "best of the shares": lambda f, i, t: (t["best"], sliced(t["shares"], 1, 0, BEST)),
        "index is 0": lambda f, i, t: (t["index"], term("mul", t["index"], constant(np.int64(0)))),
        "the first two exchanged": lambda f, i, t: (
            t["index"],
            term("concat", *[sliced(t["index"], 1, a, b) for a, b in ((1, 2), (0, 1), (2, BEST))], axis=1),
        ),
        "table turned": lambda f, i, t: (
            t["rows"],
            term("gather", f.changed(t["rows"].args[0], lambda a: a[::-1]), t["index"], **dict(t["rows"].attrs)),
        ),
        "shares a thousandth hotter": lambda f, i, t: (
            t["shares"],
            term("softmax", term("mul", t["logits"], number(1.001)), **dict(t["shares"].attrs)),
        ),
        "the largest for the total": lambda f, i, t: (
            t["total"],
            term("reduce_max", t["logits"], axes=(1,), keepdims=0),
        ),
        "sums without their own": lambda f, i, t: (t["sums"], _with(t["sums"], exclusive=1)),
        "sums from the end": lambda f, i, t: (t["sums"], _with(t["sums"], reverse=1)),
    }
