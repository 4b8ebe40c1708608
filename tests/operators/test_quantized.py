"""Quantized operators against ONNX Runtime on random integers: bit by bit, or at most one step off
where their docstrings say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from taso_mirage.ir.terms import is_float
from taso_mirage.meanings.reals import EXACT, REALS
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_proto, serialize
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.operators.interpret import interpret

Arrays = list[NDArray[Any] | None]
U8, I8, F = np.uint8, np.int8, np.float32


@dataclass(frozen=True)
class Draw:
    """Random operands of a quantized operator."""

    rng: np.random.Generator

    def of(self, dtype: Any, *shape: int) -> NDArray[Any]:
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, info.max + 1, shape).astype(dtype)

    def scale(self, typical: float, *shape: int) -> NDArray[Any]:
        return np.asarray(typical * np.exp(self.rng.normal(0, 0.4, shape)), F)

    def real(self, *shape: int) -> NDArray[Any]:
        return self.rng.normal(0, 3, shape).astype(F)

    def zero(self, dtype: Any, *shape: int) -> NDArray[Any]:
        info = np.iinfo(dtype)
        middle = (info.min + info.max + 1) // 2
        return np.asarray(self.rng.integers(middle - 9, middle + 9, shape), dtype)


@dataclass(frozen=True)
class Case:
    """One operator on operands that are drawn; `steps` is how far results may be off, where `rare`
    is the share of those that are."""

    op: str
    draw: Callable[[Draw], Arrays]
    attrs: Mapping[str, Any]
    domain: str = "com.microsoft"
    steps: int = 0
    rare: float = 0.0
    tolerance: float = 0.0


def _case(op: str, draw: Callable[[Draw], Arrays], domain: str = "", **more: Any) -> Any:
    limits = {k: more.pop(k) for k in ("steps", "rare", "tolerance") if k in more}
    return pytest.param(Case(op, draw, more, domain, **limits), id=f"{op} {len(more)}")


def _unary(op: str, dtype: Any, shape: tuple[int, ...], out: float, **more: Any) -> Any:
    def draw(d: Draw) -> Arrays:
        zero = np.iinfo(dtype).min if op in ("QLinearSigmoid", "QLinearSoftmax") else int(d.zero(dtype))
        return [d.of(dtype, *shape), d.scale(0.05), d.zero(dtype), np.asarray(out, F), np.asarray(zero, dtype)]

    return _case(op, draw, "com.microsoft", **more)


def _pair(op: str, dtype: Any, out: float, **more: Any) -> Any:
    def draw(d: Draw) -> Arrays:
        a = [d.of(dtype, 3, 40, 7), d.scale(0.05), d.zero(dtype)]
        return [*a, d.of(dtype, 40, 7), d.scale(0.05), d.zero(dtype), d.scale(out), d.zero(dtype)]

    return _case(op, draw, "com.microsoft", **more)


def _conv(dtype: Any, weights: Any, group: int, channels: int) -> Any:
    def draw(d: Draw) -> Arrays:
        one = () if channels == 1 else (channels,)
        x: Arrays = [d.of(dtype, 2, 8, 9, 7), d.scale(0.05), d.zero(dtype)]
        w = [d.of(weights, 6, 8 // group, 3, 2), d.scale(0.01, *one), np.zeros(one, weights)]
        return [*x, *w, d.scale(0.5), d.zero(dtype), d.rng.integers(-900, 900, 6).astype(np.int32)]

    return _case("QLinearConv", draw, pads=[1, 0, 1, 1], strides=[2, 1], group=group)


def _product(op: str, a: Any, b: Any, columns: tuple[int, ...], last: Callable[[Draw], Arrays], **more: Any) -> Any:
    def draw(d: Draw) -> Arrays:
        left = [d.of(a, 3, 5, 33), d.scale(0.05), d.zero(a)]
        zeros = d.zero(b, *columns)
        return [*left, d.of(b, 33, 12), d.scale(0.01, *columns), zeros, *last(d)]

    return _case(op, draw, **more)


def _nbits(bits: int, block: int, k: int, zeros: bool) -> Any:
    def draw(d: Draw) -> Arrays:
        blocks = -(-k // block)
        packed = d.of(U8, 9, (blocks * bits + 7) // 8) if zeros else None
        return [d.real(4, k), d.of(U8, 9, blocks, block * bits // 8), d.scale(0.05, 9, blocks), packed]

    attrs = {"K": k, "N": 9, "bits": bits, "block_size": block}
    return _case("MatMulNBits", draw, "com.microsoft", tolerance=2e-5, **attrs)


def _rows(bits: int, zeros: bool) -> Any:
    def draw(d: Draw) -> Arrays:
        packed = d.of(U8, 11, 4 * bits // 8) if zeros else None
        indices = d.rng.integers(0, 11, (2, 3))
        return [d.of(U8, 11, 64 * bits // 8), indices, d.scale(0.05, 11, 4), packed]

    return _case("GatherBlockQuantized", draw, "com.microsoft", bits=bits, block_size=16)


def _attention(weights: Any, columns: tuple[int, ...], mask: Callable[[Draw], Any], **more: Any) -> Any:
    def draw(d: Draw) -> Arrays:
        x, w = d.of(U8, 2, 5, 24), d.of(weights, 24, 36)
        return [
            x,
            w,
            d.real(36),
            d.scale(0.02),
            d.scale(0.01, *columns),
            mask(d),
            d.zero(U8),
            d.zero(weights, *columns),
        ]

    return _case("QAttention", draw, "com.microsoft", tolerance=2e-6, num_heads=3, **more)


def _kept(d: Draw) -> NDArray[Any]:
    """A mask that keeps the first key, and others."""
    return np.maximum(d.rng.integers(0, 2, (2, 5)), np.arange(5) == 0).astype(np.int32)


def _quantized(dtype: Any, shape: tuple[int, ...], zeros: bool = True, **more: Any) -> list[Any]:
    def there(d: Draw) -> Arrays:
        return [d.real(6, 5, 8), d.scale(0.03, *shape), d.zero(dtype, *shape) if zeros else None]

    def back(d: Draw) -> Arrays:
        return [d.of(dtype, 6, 5, 8), d.scale(0.03, *shape), d.zero(dtype, *shape) if zeros else None]

    forth = [] if not zeros and dtype is not U8 else [_case("QuantizeLinear", there, **more)]
    return [*forth, _case("DequantizeLinear", back, **more)]


def _to_bytes(d: Draw) -> Arrays:
    return [d.scale(0.5), d.zero(U8)]


CASES = [
    *_quantized(U8, ()),
    *_quantized(U8, (), False),
    *_quantized(I8, (5,)),
    *_quantized(np.int16, (8,), axis=-1),
    *_quantized(np.uint16, ()),
    *_quantized(I8, (6, 5, 2), axis=2, block_size=4),
    *_quantized(U8, (2, 5, 8), axis=0, block_size=4),
    _case("DequantizeLinear", lambda d: [d.of(np.int32, 6, 5), d.scale(0.03), None]),
    _case("DynamicQuantizeLinear", lambda d: [d.real(40, 5)]),
    _case("DynamicQuantizeLinear", lambda d: [np.abs(d.real(40, 5)) + 1]),
    _case("DynamicQuantizeLinear", lambda d: [np.zeros((3, 4), F)]),
    _case("MatMulInteger", lambda d: [d.of(U8, 3, 5, 33), d.of(I8, 33, 12), d.zero(U8), d.zero(I8, 12)]),
    _case("MatMulInteger", lambda d: [d.of(I8, 5, 33), d.of(I8, 33, 12), d.zero(I8), d.zero(I8)]),
    _case(
        "ConvInteger", lambda d: [d.of(U8, 2, 4, 9, 7), d.of(U8, 6, 4, 3, 2), d.zero(U8), d.zero(U8)], pads=[1, 0, 1, 1]
    ),
    _product("QLinearMatMul", U8, U8, (), _to_bytes),
    _product("QLinearMatMul", U8, I8, (12,), _to_bytes),
    _product("QLinearMatMul", I8, I8, (), lambda d: [d.scale(0.5), d.zero(I8)]),
    *(_conv(U8, I8, *each) for each in ((1, 1), (1, 6), (2, 6))),
    _conv(I8, I8, 1, 6),
    _conv(U8, U8, 2, 1),
    _case(
        "MatMulIntegerToFloat",
        lambda d: [
            d.of(U8, 5, 33),
            d.of(I8, 33, 12),
            d.scale(0.05),
            d.scale(0.01, 12),
            d.zero(U8),
            d.zero(I8, 12),
            d.real(12),
        ],
        "com.microsoft",
        tolerance=1e-6,
    ),
    _case(
        "DynamicQuantizeMatMul",
        lambda d: [d.real(3, 5, 33), d.of(I8, 33, 12), d.scale(0.01), d.zero(I8), d.real(12)],
        "com.microsoft",
        tolerance=1e-6,
    ),
    _case(
        "QGemm",
        lambda d: [
            d.of(U8, 5, 33),
            d.scale(0.05),
            d.zero(U8),
            d.of(I8, 12, 33),
            d.scale(0.01, 12),
            d.zero(I8, 12),
            d.rng.integers(-900, 900, 12).astype(np.int32),
            *_to_bytes(d),
        ],
        "com.microsoft",
        transB=1,
        alpha=0.75,
    ),
    _case(
        "QGemm",
        lambda d: [d.of(U8, 5, 33), d.scale(0.05), d.zero(U8), d.of(U8, 33, 12), d.scale(0.01), d.zero(U8)],
        "com.microsoft",
        tolerance=1e-6,
    ),
    *(_pair("QLinearAdd", dtype, 0.1, steps=1, rare=1e-3) for dtype in (U8, I8)),
    *(_pair("QLinearMul", dtype, 0.3, steps=1, rare=1e-3) for dtype in (U8, I8)),
    *(_unary("QLinearSigmoid", dtype, (256,), 1 / 256, steps=1, rare=1e-3) for dtype in (U8, I8)),
    *(_unary("QLinearLeakyRelu", dtype, (256,), 0.04, alpha=0.1) for dtype in (U8, I8)),
    *(_unary("QLinearSoftmax", dtype, (9, 33), 1 / 256, axis=-1, opset=13, steps=1, rare=1e-3) for dtype in (U8, I8)),
    _unary("QLinearSoftmax", U8, (4, 9, 6), 1 / 250.7, axis=1, opset=13, steps=1, rare=1e-2),
    *(
        _unary(
            "QLinearAveragePool",
            dtype,
            (2, 3, 9, 8),
            0.04,
            steps=1,
            rare=2e-3,
            kernel_shape=[3, 2],
            pads=[1, 0, 1, 1],
            strides=[2, 2],
            count_include_pad=i,
        )
        for dtype in (U8, I8)
        for i in (0, 1)
    ),
    *(_unary("QLinearGlobalAveragePool", dtype, (2, 5, 9, 8), 0.04, steps=1, rare=2e-3) for dtype in (U8, I8)),
    _case(
        "QLinearConcat",
        lambda d: [
            d.scale(0.05),
            d.zero(U8),
            *(each for _ in range(3) for each in (d.of(U8, 5, 256), d.scale(0.05), d.zero(U8))),
        ],
        "com.microsoft",
        axis=1,
    ),
    *(
        _case(
            "QLinearWhere",
            lambda d, dtype=dtype: [
                d.rng.random((3, 1, 40)) < 0.5,
                *(d.of(dtype, 7, 40), d.scale(0.05), d.zero(dtype)),
                *(d.of(dtype, 3, 7, 1), d.scale(0.05), d.zero(dtype)),
                *(d.scale(0.05), d.zero(dtype)),
            ],
            "com.microsoft",
        )
        for dtype in (U8, I8)
    ),
    _attention(I8, (), lambda d: None),
    _attention(I8, (36,), _kept),
    _attention(U8, (), lambda d: d.rng.integers(1, 6, 2).astype(np.int32), scale=0.4),
    _attention(I8, (), lambda d: None, unidirectional=1),
    _attention(I8, (36,), _kept, unidirectional=1, mask_filter_value=-500.0),
    *(
        _nbits(*each)
        for each in ((4, 16, 64, True), (4, 32, 80, False), (4, 32, 96, True), (8, 32, 64, True), (2, 32, 64, False))
    ),
    *(_rows(*each) for each in ((4, True), (4, False), (8, True))),
]


def model(case: Case, operands: Arrays) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The operator alone, with its first operand as input and the others as initializers."""
    named = {f"x{i}": a for i, a in enumerate(operands) if a is not None}
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(operands)]
    outputs = ["y", "s", "z"] if case.op == "DynamicQuantizeLinear" else ["y"]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in named.items()
    ]
    found = helper.make_graph(
        [helper.make_node(case.op, names, outputs, domain=case.domain, **case.attrs)],
        "g",
        infos,
        [helper.make_empty_tensor_value_info(o) for o in outputs],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(found, opset_imports=opsets, ir_version=10), named


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_the_definition_gives_the_numbers_of_the_runtime(case: Case) -> None:
    off = total = 0
    for seed in range(8):
        proto, named = model(case, case.draw(Draw(np.random.default_rng(seed))))
        read = from_ir(from_proto(proto))
        assert not read.opaque, read.opaque
        there = Session(serialize(read)).run(named)
        for meaning in (REALS, EXACT):
            env = {n: meaning.load(named[n.attr("name")]) for n in read.graph.inputs}
            ours = interpret(read.graph.outputs, meaning, env)
            for output, theirs in zip(read.graph.outputs, there, strict=True):
                apart = np.abs(ours[output].astype(np.float64) - theirs.astype(np.float64))
                assert theirs.dtype.name == output.dtype
                if is_float(output.dtype):
                    limit = case.tolerance if meaning is REALS else max(case.tolerance, 1e-6)
                    assert apart.max() <= limit * max(1.0, np.abs(theirs).max())
                else:
                    assert apart.max() <= case.steps
                    off, total = off + int((apart > 0).sum()), total + apart.size
    assert off <= case.rare * total, f"{off} of {total} are off"
