"""The command line."""

import time


def main() -> None:
    """Run the command of this process, whose budget begins here: before the imports, which take
    most of the start. The start of the process says nothing, since a shell that waited for other
    programs may have become this one by `exec`."""
    began = time.monotonic()
    from taso_mirage.cli import commands
    from taso_mirage.system.memory import leave_garbage

    try:
        commands.main(began)
    finally:
        leave_garbage()


__all__ = ["main"]
