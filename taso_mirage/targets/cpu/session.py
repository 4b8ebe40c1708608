"""A model in ONNX Runtime's CPU provider."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from taso_mirage.ir.terms import Tensor
from taso_mirage.targets.cpu.options import PROVIDER
from taso_mirage.targets.onnx_runtime import (
    check_provider,
    fixed_input_types,
    inference_session,
    ort_values,
    refused,
    run_of,
    run_session,
)
from taso_mirage.targets.protocol import Arrays, Source


class CpuSession:
    """See `protocol.RuntimeSession`."""

    captures = False

    def __init__(self, source: Source, alone: bool, library: bool, apart: Arrays, optimized: bool = True) -> None:
        self._apart = ort_values(apart)
        kernels = False if library else None
        self._session = inference_session(source, [PROVIDER], alone, kernels, self._apart, optimized=optimized)
        check_provider(self._session, PROVIDER)

    def run(self, inputs: Arrays) -> list[Any]:
        return run_session(self._session, inputs)

    def inputs(self) -> dict[str, Tensor]:
        return fixed_input_types(self._session)

    def prepared(self, inputs: Arrays) -> Callable[[], float]:
        self.run(inputs)
        run = run_of(self._session, inputs)

        def timed() -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return timed

    def bound(self, inputs: Arrays) -> Callable[[], float]:
        binding = self._session.io_binding()
        kept = ort_values(inputs)  # the binding does not
        try:
            for name, value in kept.items():
                binding.bind_ortvalue_input(name, value)
            for output in self._session.get_outputs():
                binding.bind_output(output.name)
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise refused("run", error) from None
        return partial(_timed, self._session, binding, kept)


def _timed(session: Any, binding: Any, kept: Arrays) -> float:
    start = time.perf_counter()
    session.run_with_iobinding(binding)
    return time.perf_counter() - start
