"""The command line."""

import time

from taso_mirage.cli import commands
from taso_mirage.system.memory import leave_garbage
from taso_mirage.system.spending import process_age


def main() -> None:
    """Run the command of this process, whose budget began with it."""
    try:
        commands.main(time.monotonic() - process_age())
    finally:
        leave_garbage()


__all__ = ["main"]
