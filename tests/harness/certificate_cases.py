"""Certificates of whole models, and how they are followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from taso_mirage.certificates.follow import Followed, follow
from taso_mirage.certificates.judge import CaseJudge
from taso_mirage.ir.model import Model
from taso_mirage.onnx_io import load, save
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.report.result import Result
from taso_mirage.search.rulesets import rules

Case = tuple[Model, Model, dict[str, Any]]


def certified(original: Model, result: Result, folder: Path) -> Case:
    """A model, its optimized form, read back from its file, and the certificate as JSON."""
    save(result.model, folder / "optimized.onnx")
    mutants = (m.equation for m in result.mutations.by_name.values())
    found = certificate(result, {e.name: e for e in (*rules(), *mutants)}, Proofs())
    return original, load(folder / "optimized.onnx"), json.loads(json.dumps(found))


def followed(case: Case, strict: bool = False) -> Followed:
    return follow(*case, CaseJudge(strict))


LARGE = (
    *("light_vgg19", "light_zfnet512", "light_alexnet"),
    *("light_resnet50", "light_inception_v2", "light_densenet121"),
)
