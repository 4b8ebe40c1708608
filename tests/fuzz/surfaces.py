"""Models of strings, sequences and optional values through the commands that read one, with the
inputs that a user would give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from fuzz.judge import in_folder, ran
from fuzz.values import random_values

QUICK = ("--no-measure", "--kernels", "off", "--budget", "2")
OTHERS = (
    ["inspect", "m.onnx"],
    ["inspect", "m.onnx", "--json"],
    ["kernels", "m.onnx", "--budget", "0"],
    ["mutants", "m.onnx", "--budget", "0"],
    ["diff", "m.onnx", "m.onnx"],
    ["verify", "m.onnx", "out.onnx", "steps.json"],
)
"""Further commands that read the model, or a result of it."""


def valued(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A random model of strings, sequences and optional values: its outputs after `optimize`, and
    one of the other commands."""
    content, inputs = random_values(seed)
    (folder / "m.onnx").write_bytes(content)
    command = ["optimize", "m.onnx", *QUICK, "-o", "out.onnx", "--certificate", "steps.json"]
    given = _written(inputs, folder / "i.npz", content) if seed % 3 or _has_texts(inputs) else []
    command += given
    with in_folder(folder, folder.parent / "cache") as seen:
        code, wrong = ran(command)
        if code != "done":
            wrong.append(f"{code}: for a model that runs")
        else:
            wrong += differing(folder, inputs)
            other = OTHERS[seed % len(OTHERS)]
            other = [*other, *given] if other[0] == "diff" else other
            if (folder / "steps.json").exists() if other[0] == "verify" else other[0] != "diff" or given:
                second, said = ran(other)
                code, wrong = f"{code}, {other[0]} {second}", wrong + said
                wrong += [] if second == "done" else [f"{' '.join(other)}: {second}"]
    return f"value {code}", wrong + seen


def _has_texts(inputs: Mapping[str, Any]) -> bool:
    return any(isinstance(each, np.ndarray) and each.dtype == object for each in inputs.values())


def _written(inputs: Mapping[str, Any], path: Path, content: bytes) -> list[str]:
    """The option for a file of the inputs; nothing for a model of which one is no tensor."""
    if not all(each.type.HasField("tensor_type") for each in onnx.load_from_string(content).graph.input):
        return []
    np.savez(path, **{n: a.astype(str) if a.dtype == object else a for n, a in inputs.items()})
    return ["--inputs", path.name]


def differing(folder: Path, inputs: Mapping[str, Any]) -> list[str]:
    """Outputs of both models that are not alike, and the differences of their types."""
    first, second = (onnx.load(folder / name) for name in ("m.onnx", "out.onnx"))
    wrong = [f"the type of {a.name}" for a, b in zip(first.graph.output, second.graph.output, strict=True) if a != b]
    given = [
        onnxruntime.InferenceSession(folder / name, _quiet(), providers=["CPUExecutionProvider"]).run(
            None, dict(inputs)
        )
        for name in ("m.onnx", "out.onnx")
    ]
    names = [each.name for each in first.graph.output]
    return wrong + [f"the output {n} differs" for n, a, b in zip(names, *given, strict=True) if not alike(a, b)]


def _quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def alike(a: Any, b: Any) -> bool:
    """Whether two values of the runtime are alike: arrays, lists of them, or nothing."""
    if isinstance(a, list) or a is None or b is None:
        return type(a) is type(b) and (a is None or (len(a) == len(b) and all(map(alike, a, b))))
    one, other = np.asarray(a), np.asarray(b)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool((one == other).all())
    return np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
