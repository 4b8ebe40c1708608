"""Writing a file, interrupted at every line; run by tests/cli/test_hostile_texts.py.

    python interrupted.py probe|file FOLDER

Prints how many lines there are. An error says after which line something was left in the folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from taso_mirage.onnx_io.outputs import check_writable
from taso_mirage.system.files import write_file


class Pressed(BaseException):
    """An interrupt at any moment, as Ctrl-C raises it."""


def interrupted(call: Callable[[], None], line: int) -> bool:
    """Raise in the `line`-th line that a call runs, of ours and of Python's library, in a process
    of its own; whether there is one."""
    seen = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen
        seen += event == "line"
        if event == "line" and seen == line:
            raise Pressed
        return trace

    number = os.fork()
    if number:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 7
    code = 1
    try:
        sys.settrace(trace)
        call()
        sys.settrace(None)
        code = 0 if seen < line else 7
    except Pressed:
        code = 7
    finally:
        sys.settrace(None)
        os._exit(code)


def main(write: Callable[[Path], None], folder: Path) -> None:
    line = 1
    while interrupted(lambda: write(folder / "out"), line):
        left = [each.name for each in folder.iterdir() if each.name != "out"]
        assert left == [], (line, left)
        line += 1
    print(line)


if __name__ == "__main__":
    main(check_writable if sys.argv[1] == "probe" else lambda path: write_file(path, "new"), Path(sys.argv[2]))
