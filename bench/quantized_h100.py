"""Weights of 4 and 8 bits in blocks (`MatMulNBits`) with activations in half precision on a GPU,
and products of integers.

    python bench/quantized_h100.py [products] [integers] [decode] [--rows 1 8] [--programs 50]

`products`: matrix products alone, searched, generated and tuned, against ONNX Runtime's own
MatMulNBits and PyTorch's product of half precision weights; the floor is the bytes that a run reads
and writes over the bandwidth of a copy, measured just before. CUDA graphs of 64 calls or more on
all sides, weights that rotate through three times the L2 cache, medians; results are compared in
float64 first. `integers`: products of integers with scales and a bias behind them, over weights as
they are stored for kernels and as they are read, and of half precision with weights of 8 bits
(integer_products.py), against the runtime's operators, and PyTorch's product of integers. `decode`:
the decode model of end_to_end_h100.py with its products in blocks of 4 bits: ONNX Runtime alone,
after the substitutions, with the kernels too; torch.compile over torchao's blocks of 4 bits as a
peer. Prints a line for each row and writes bench/results/quantized_h100-DEVICE.json after it
(microseconds).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent))

import end_to_end_common as common
import end_to_end_h100 as end_to_end
from end_to_end_common import ROOT, Case
from integer_products import INTEGER_PRODUCTS, IntegerProduct, timed_peers
from kernels_h100 import searched
from roofline import Machine

from taso_mirage import __version__
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import compile_jobs, tune
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.ir.terms import ABSENT, Graph, Tensor, variable
from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CUDA
from taso_mirage.operators.ops import term
from taso_mirage.search.config import Config

TOLERANCE = 4e-3
"""The norm of the difference from float64, over its norm."""
MEASURED, ROUNDS = 15, 8
"""Runs of a session of ONNX Runtime, and how often each has every set of weights."""
DECODE = Case("decode_int4", *end_to_end.MODELS["decode"][:1], options=end_to_end.MODELS["decode"][1])


@dataclass(frozen=True)
class Product:
    """A product of (rows, inner) with the weights of `columns` columns."""

    rows: int
    columns: int = 4096
    inner: int = 4096
    bits: int = 4
    block: int = 128
    zeros: bool = False

    @property
    def case(self) -> str:
        packed = " zeros" if self.zeros else ""
        return f"{self.rows}x{self.inner}x{self.columns} {self.bits} bits, block {self.block}{packed}"

    @property
    def blocks(self) -> int:
        return self.inner // self.block

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """The shapes of x, the weights, the scales and the zeros."""
        packed = (self.columns, self.blocks, self.block * self.bits // 8)
        found = [
            ("float16", (self.rows, self.inner)),
            ("uint8", packed),
            ("float16", (self.columns, self.blocks)),
        ]
        return [*found, *([("uint8", (self.columns, self.blocks * self.bits // 8))] if self.zeros else [])]

    def attributes(self) -> dict[str, int]:
        return {"K": self.inner, "N": self.columns, "bits": self.bits, "block_size": self.block}

    def goal(self) -> Graph:
        leaves = [variable(name, Tensor(*own)) for name, own in zip("xbsz", self.shapes(), strict=False)]
        operands = [*leaves, ABSENT][:4]
        return Graph(tuple(leaves), (term("matmul_nbits", *operands, **self.attributes()),))

    def bytes(self) -> int:
        return 2 * self.rows * self.columns + sum(np.dtype(d).itemsize * math.prod(s) for d, s in self.shapes())

    def exact(self, inputs: Sequence[Any]) -> Any:
        """The result in float64."""
        x, *stored = inputs
        return x.double() @ weights(self, *stored).T

    def peers(self, sets: Sequence[Sequence[Any]]) -> Iterator[tuple[str, float]]:
        """Seconds of others."""
        return peers(self, sets)


PRODUCTS = (
    *(Product(rows, block=block) for rows in (1, 8, 16) for block in (128, 32)),
    Product(1, block=32, zeros=True),
    *(Product(rows, bits=8) for rows in (1, 8)),
    Product(1, columns=11008),
    Product(1, inner=11008),
    Product(64),
)


# ---------------------------------------------------------------- products


def weights(product: Product, b: Any, s: Any, z: Any = None) -> Any:
    """The numbers that blocks stand for, in float64: (columns, inner)."""
    import torch

    def apart(x: Any) -> Any:
        parts = [x] if product.bits == 8 else [x & 15, x >> 4]
        return torch.stack(parts, -1).reshape(*x.shape[:-1], -1).double()

    zero = 2 ** (product.bits - 1) if z is None else apart(z)[:, :, None]
    return ((apart(b) - zero) * s.double()[:, :, None]).reshape(product.columns, product.inner)


def checked(product: Product | IntegerProduct, errors: list[float]) -> tune.Check:
    """Whether results are right in float64, by norm; the errors are noted."""
    known: dict[int, Any] = {}

    def check(inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        key = inputs[0].data_ptr()
        if key not in known:
            known[key] = product.exact(inputs)
        error = float((results[0].double() - known[key]).norm() / known[key].norm())
        errors.append(error)
        return math.isfinite(error) and error < TOLERANCE

    return check


def of_runtime(product: Product, sets: Sequence[Sequence[Any]]) -> float:
    """Seconds of ONNX Runtime's operator: a captured session of ROUNDS for each set of weights."""
    nodes, held = [], []
    inputs = [f"x{i}" for i in range(ROUNDS)]
    for i, (_, *stored) in enumerate(sets):
        names = [f"{name}{i}" for name, _ in zip("bsz", stored, strict=False)]
        held += [numpy_helper.from_array(v.cpu().numpy(), n) for n, v in zip(names, stored, strict=True)]
        for x in inputs:
            given = [x, *names], [f"y{i}_{x}"]
            nodes.append(helper.make_node("MatMulNBits", *given, domain="com.microsoft", **product.attributes()))
    nodes.sort(key=lambda node: node.input[0])  # so that weights come in turn
    half, results = TensorProto.FLOAT16, [node.output[0] for node in nodes]
    outputs = [helper.make_tensor_value_info(y, half, [product.rows, product.columns]) for y in results]
    given = [helper.make_tensor_value_info(x, half, [product.rows, product.inner]) for x in inputs]
    graph = helper.make_graph(nodes, "products", given, outputs, held)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    session = runtime.Session(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), CUDA)
    run = session.prepared(dict.fromkeys(inputs, sets[0][0].cpu().numpy()))
    times = [run() for _ in range(MEASURED)]
    return statistics.median(times) / len(nodes)


def peers(product: Product, sets: Sequence[Sequence[Any]]) -> Iterator[tuple[str, float]]:
    kinds: list[tuple[str, Callable[[], float]]] = [("onnxruntime", lambda: of_runtime(product, sets))]
    dense = [(each[0], weights(product, *each[1:]).half()) for each in sets[: max(2, 600 // (product.inner >> 3))]]
    kinds.append(("torch float16", lambda: float(tune.measured(lambda x, w: x @ w.T, dense))))
    yield from timed_peers(kinds)


def measured(
    product: Product | IntegerProduct, programs: Sequence[TritonProgram], compiler: Any, known: Machine
) -> dict[str, Any]:
    errors: list[float] = []
    best = tune.tuned_program(programs, compiler=compiler, check=checked(product, errors))
    floor = product.bytes() / known.bandwidth
    return {
        "case": product.case,
        "ours": best.seconds * 1e6,
        "baselines": {name: seconds * 1e6 for name, seconds in product.peers(tune.input_sets(best.program))},
        "floor": floor * 1e6,
        "of_floor": floor / best.seconds,
        "error": max((e for e in errors if e < TOLERANCE), default=None),
        "refused": sum(not e < TOLERANCE for e in errors),
        "programs": len(programs),
        "launches": [{"grid": x.grid, "loop": x.loop} | asdict(x.schedule) for x in best.program.launches],
    }


def products(
    rows: Sequence[Product | IntegerProduct], options: argparse.Namespace, known: Machine
) -> Iterator[dict[str, Any]]:
    spawn = multiprocessing.get_context("spawn")
    chosen = [p for p in rows if not options.rows or p.rows in options.rows]
    with (
        ProcessPoolExecutor(options.workers, spawn) as executor,
        closing(compile_jobs.compilers(options.workers)) as compiler,
    ):
        asked = [(p, executor.submit(searched, p.goal(), options.programs, H100, 60.0)) for p in chosen]
        for product, future in asked:
            try:
                yield measured(product, future.result(), compiler, known)
            except Exception as error:  # the other rows are wanted all the same
                print(f"{product.case}: {type(error).__name__}: {native.first_line(error)}", flush=True)


# ---------------------------------------------------------------- a model


def in_blocks(model: onnx.ModelProto, block: int = 128) -> onnx.ModelProto:
    """The model with its products by weights as MatMulNBits of 4 bits, rounded to the nearest."""
    held = {each.name: each for each in model.graph.initializer}
    done: dict[str, list[str]] = {}
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in held:
            continue
        w = numpy_helper.to_array(held[name := node.input[1]])
        inner, columns = w.shape
        if name not in done:
            parts = w.T.astype(np.float32).reshape(columns, inner // block, block)
            scales = np.maximum(np.abs(parts).max(-1, keepdims=True) / 7, 1e-6).astype(np.float16)
            numbers = np.clip(np.rint(parts / scales.astype(np.float32)) + 8, 0, 15).astype(np.uint8)
            done[name] = [f"{name}_numbers", f"{name}_scales"]
            made = (numbers[..., ::2] | numbers[..., 1::2] << 4, scales[..., 0])
            model.graph.initializer.extend(
                numpy_helper.from_array(*each) for each in zip(made, done[name], strict=True)
            )
        replaced = helper.make_node(
            *("MatMulNBits", [node.input[0], *done[name]], list(node.output), node.name),
            **{"domain": "com.microsoft", "K": inner, "N": columns, "bits": 4, "block_size": block},
        )
        node.CopyFrom(replaced)
    for name in done:
        model.graph.initializer.remove(held[name])
    if not any(o.domain == "com.microsoft" for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def in_blocks_of_torch(module: Any) -> Any:
    """A torch module in bfloat16 with its linear layers in blocks of 4 bits, by torchao: the
    packing of PyTorch's own kernel, which is of bfloat16 alone."""
    from torchao.quantization import Int4WeightOnlyConfig, quantize_
    from torchao.quantization.quantize_.workflows import Int4PackingFormat

    quantize_(module, Int4WeightOnlyConfig(group_size=128, int4_packing_format=Int4PackingFormat.TILE_PACKED_TO_4D))
    return module


def decode(options: argparse.Namespace, known: Machine) -> dict[str, Any]:
    case = DECODE
    if options.layers is not None:
        own = {**DECODE.options["configuration"], "num_hidden_layers": options.layers}
        case = replace(DECODE, name=f"{DECODE.name}_{options.layers}", options={**DECODE.options, "configuration": own})
    model = common.imported(in_blocks(common.halved(common.proto(case, options.models, options.small))))
    config = Config(budget=options.budget, target=CUDA, seconds=min(2.0, options.seconds))
    compiled = partial(
        common.Compiled,
        partial(common.torch_module, case, options.small),
        "cuda",
        "bfloat16",
        options.mode,
        in_blocks_of_torch,
    )
    peers = {} if options.no_compile else {"torchao": compiled}
    return {"case": str(case), **common.measured(model, config, options, peers, known, end_to_end.left)}


# ---------------------------------------------------------------- rows


def shown(row: dict[str, Any]) -> str:
    others = ", ".join(f"{k} {v:.2f}" for k, v in row["baselines"].items() if v is not None)
    floor = f"{row['of_floor']:.2f} of the floor {row['floor']:.2f}" if "of_floor" in row else ""
    launches = "; ".join(
        f"{x['grid']} loop {x['loop']} w{x['warps']} s{x['stages']}" for x in row.get("launches", ()) if "grid" in x
    )
    return f"{row['case']:40} {row['ours']:8.2f} us {floor} | {others} | {launches}"


def main() -> None:
    names = ["products", "integers", "decode"]
    parser = common.arguments(__doc__ or "", names, names)
    parser.add_argument("--rows", type=int, nargs="*", help="only products of so many rows")
    parser.add_argument("--programs", type=int, default=50, help="muGraphs of a product that are measured")
    parser.add_argument("--mode", default="max-autotune", help="of torch.compile")
    parser.add_argument("--layers", type=int, help="of the decode model, for a try")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    options = parser.parse_args()
    device, known = tune.gpu_and_versions(), end_to_end.machine()
    short = device.removeprefix("NVIDIA ").split()[0]
    path = options.output or ROOT / "bench" / "results" / f"quantized_h100-{short}.json"
    rows: list[dict[str, Any]] = []

    def kept(row: dict[str, Any]) -> None:
        rows.append(row)
        print(shown(row), flush=True)
        found = {"bench": "quantized_h100", "device": device, "unit": "us", "bandwidth": known.bandwidth, "rows": rows}
        path.write_text(json.dumps(found | {"versions": {"taso-mirage": __version__}}, indent=1) + "\n")

    chosen = options.names or names
    for name, own in (("products", PRODUCTS), ("integers", INTEGER_PRODUCTS)):
        for row in products(own, options, known) if name in chosen else ():
            kept(row)
    if "decode" in chosen:
        kept(decode(options, known))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # as end_to_end_h100.py: torch's profiler leaves a callback behind
