"""From a torch module to an ONNX model by torch's dynamo exporter: quiet, seeded and the same on
every run."""

import contextlib
import contextvars
import importlib
import io
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from models import weights

if TYPE_CHECKING:
    import torch
    from torch import nn

CHATTY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir", "transformers")
# Where the exporter ran, not the model itself: file paths and line numbers, which differ from
# machine to machine.
PLACES = ("pkg.torch.onnx.stack_trace",)


class Intercepted(Exception):
    """Raised in place of an export: the module in evaluation mode, and its inputs by name."""

    def __init__(self, module: "nn.Module", arguments: Mapping[str, "torch.Tensor"]) -> None:
        self.module, self.arguments = module, arguments


_intercepting = contextvars.ContextVar("intercepting", default=False)


@contextlib.contextmanager
def intercept() -> Iterator[None]:
    """Within, an export raises `Intercepted`: for those who want the torch module itself."""
    token = _intercepting.set(True)
    try:
        yield
    finally:
        _intercepting.reset(token)


def hand_over(module: "nn.Module", arguments: Mapping[str, "torch.Tensor"]) -> None:
    """To those who intercept exports; to others nothing happens."""
    if _intercepting.get():
        raise Intercepted(module.eval(), arguments)


def require(name: str) -> Any:
    """Import a package that only the builders need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(f"this model needs {package}: pip install taso-mirage[models]") from error


def export(
    module: "nn.Module",
    arguments: Mapping[str, "torch.Tensor"],
    output: str,
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    keep_norms: bool = False,
) -> onnx.ModelProto:
    """The module in evaluation mode as an ONNX model, at the exporter's default opset.

    `arguments` are the inputs by name; `dynamic` names their dynamic dimensions. The exporter's own
    optimizer folds BatchNormalization into Conv; with `keep_norms` the model goes through the same
    clean-up without that step.
    """
    torch = require("torch")
    hand_over(module, arguments)
    require("onnxscript")
    with quiet():
        program = torch.onnx.export(
            module.eval(),
            kwargs=dict(arguments),
            input_names=list(arguments),
            output_names=[output],
            dynamic_shapes=dynamic,
            dynamo=True,
            optimize=not keep_norms,
            verbose=False,
        )
        if keep_norms:
            _clean(program.model)
        model: onnx.ModelProto = program.model_proto
    forget_places(model)
    return model


def _clean(model: Any) -> None:
    """Run the exporter's optimizer without the rules that fold a normalization into a
    convolution."""
    passes = require("onnx_ir.passes.common")
    optimizer = require("onnxscript.optimizer")
    rewriter = require("onnxscript.rewriter")
    common = require("onnxscript.rewriter.rules.common")
    passes.InlinePass()(model)
    optimizer.fold_constants(model)
    rewriter.rewrite(model, [common.remove_optional_bias_from_conv_rule])
    passes.RemoveUnusedNodesPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.DeduplicateInitializersPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)
    passes.RemoveUnusedFunctionsPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    passes.NameFixPass()(model)


def randomize(module: "nn.Module", seed: int) -> None:
    """Give every parameter of the module a seeded random value, by its layer and shape.

    Linear maps and convolutions keep the mean square of their input, embeddings are standard
    normal, norms scale by about one, and nothing is zero. numpy draws the values, since its streams
    are the same on every machine.
    """
    torch = require("torch")
    generator = np.random.default_rng(seed)
    embeddings = {id(part.weight) for part in module.modules() if isinstance(part, torch.nn.Embedding)}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            shape = tuple(parameter.shape)
            if id(parameter) in embeddings or name.endswith(("_token", "position_embeddings")):
                values = weights.normal(generator, shape)
            elif len(shape) > 1:
                values = weights.linear(generator, shape, math.prod(shape[1:]))
            else:
                values = weights.normal(generator, shape, 1.0 if name.endswith("weight") else 0.0, 0.1)
            parameter.copy_(torch.from_numpy(values))


def settle_norms(module: "nn.Module", shape: Sequence[int], seed: int) -> None:
    """Set the running statistics of all batch norms to those of random images, as training would
    leave them."""
    torch = require("torch")
    generator = np.random.default_rng(seed)
    norms = [part for part in module.modules() if isinstance(part, (torch.nn.BatchNorm2d, torch.nn.BatchNorm3d))]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(torch.from_numpy(weights.normal(generator, shape)))
        for norm in norms:
            mean = weights.normal(generator, norm.running_mean.shape, 0.0, 0.1)
            norm.running_mean += norm.running_var.sqrt() * torch.from_numpy(mean)
            norm.running_var *= torch.from_numpy(weights.variance(generator, norm.running_var.shape))
    module.eval()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's warnings, log lines and prints, which are about itself, away from the
    caller."""
    loggers = [logging.getLogger(name) for name in CHATTY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def forget_places(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key not in PLACES]
        node.ClearField("metadata_props")
        node.metadata_props.extend(kept)
