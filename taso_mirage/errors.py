"""Every error of the package. Each class has the exit code that the command line ends with, its own
or that of its base."""

from __future__ import annotations


class TasoMirageError(Exception):
    """The base of all errors that users see."""

    exit_code = 1


class InvalidModel(TasoMirageError):
    """The file is not a usable ONNX model."""

    exit_code = 3


class InvalidOption(TasoMirageError):
    """An option, or a file that an option names, is not valid."""

    exit_code = 2


class InputsRefused(InvalidOption):
    """The model does not run on the given inputs, or on inputs of the given sizes."""


class OutputError(TasoMirageError):
    """The result could not be written; no partial file is left."""

    exit_code = 4


class CheckFailed(TasoMirageError):
    """An optimized model differs from its original."""

    exit_code = 5


class RuntimeUnavailable(TasoMirageError):
    """A requested runtime, provider or package is not available."""

    exit_code = 6


class RunFailed(RuntimeUnavailable):
    """ONNX Runtime did not load or run a model."""


class RunRefused(RunFailed):
    """ONNX Runtime refused to load or to run a model."""


class RuntimeCrashed(RunFailed):
    """ONNX Runtime's process ended while it loaded or ran a model."""


class OutOfTime(TasoMirageError):
    """The time limit was reached before a step was done; earlier results remain valid."""


class IllTyped(TasoMirageError):
    """Operands are not valid for an operator."""


class Undecidable(TasoMirageError):
    """A question about symbolic sizes that has no answer for every size."""


class Unsupported(TasoMirageError):
    """An ONNX node that the operator's mapping does not cover; the text is the reason that
    `inspect` shows."""


class SyntaxProblem(TasoMirageError):
    """A text is not a valid term, graph, law or substitution."""

    exit_code = 2
