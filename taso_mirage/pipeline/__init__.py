"""The path of a model through the optimizer: the list of its stages (`stages`), and their runner
(`stage`)."""

from taso_mirage.pipeline.stages import optimize_model

__all__ = ["optimize_model"]
