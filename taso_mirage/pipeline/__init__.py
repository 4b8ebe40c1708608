"""The way of a model through the optimizer: the list of its stages (`stages`), and what runs them (`stage`)."""

from taso_mirage.pipeline.stages import optimize

__all__ = ["optimize"]
