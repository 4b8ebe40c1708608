"""The command line."""

from taso_mirage.cli.commands import main

__all__ = ["main"]
