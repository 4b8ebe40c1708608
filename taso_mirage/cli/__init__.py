"""The command line."""

from taso_mirage.cli import commands
from taso_mirage.system.deadline import process_start


def main() -> None:
    """Run the command of this process, whose budget began with it."""
    commands.main(process_start())


__all__ = ["main"]
