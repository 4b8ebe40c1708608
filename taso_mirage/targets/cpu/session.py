"""A model in ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from taso_mirage.devices.cpu.options import FULL_LEVEL, LEVELS, OPTIMIZATIONS, PROVIDER, RESTING, SERIAL, THREADS
from taso_mirage.devices.stamp import TargetOptions
from taso_mirage.ir.terms import Tensor
from taso_mirage.targets.onnx_runtime import (
    check_provider,
    fixed_input_types,
    inference_session,
    ort_values,
    refused,
    run_of,
    run_session,
)
from taso_mirage.targets.protocol import Arrays, Source, timed, worked


class CpuSession:
    """See `protocol.RuntimeSession`."""

    captures = False

    def __init__(self, source: Source, alone: bool, apart: Arrays, options: TargetOptions = ()) -> None:
        self._apart = ort_values(apart)
        self._timed = worked if SERIAL in options else timed
        self._session = inference_session(
            source,
            [PROVIDER],
            alone,
            self._apart,
            level=LEVELS.get(dict(options).get(OPTIMIZATIONS, ""), FULL_LEVEL),
            threads=1 if SERIAL in options else int(dict(options).get(THREADS, 0)),
            resting=RESTING in options,
        )
        check_provider(self._session, PROVIDER)

    def run(self, inputs: Arrays) -> list[Any]:
        return run_session(self._session, inputs)

    def inputs(self) -> dict[str, Tensor]:
        return fixed_input_types(self._session)

    def prepared(self, inputs: Arrays) -> Callable[[], float]:
        self.run(inputs)
        return partial(self._timed, run_of(self._session, inputs))

    def bound(self, inputs: Arrays) -> Callable[[], float]:
        session, binding = self._session, self._session.io_binding()
        kept = ort_values(inputs)  # the binding does not
        try:
            for name, value in kept.items():
                binding.bind_ortvalue_input(name, value)
            for output in session.get_outputs():
                binding.bind_output(output.name)
            session.run_with_iobinding(binding)
        except Exception as error:
            raise refused("run", error) from None

        def run(kept: Arrays = kept) -> None:
            session.run_with_iobinding(binding)

        return partial(self._timed, run)
