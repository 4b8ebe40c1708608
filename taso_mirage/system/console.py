"""Rich's console, for texts with names from files."""

from __future__ import annotations

from collections.abc import Iterable

import rich.console
from rich.segment import Segment

from taso_mirage.system.terminal import printable


class Console(rich.console.Console):
    """A console that escapes control characters in texts; its own styles and cursor movements are
    unchanged."""

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
