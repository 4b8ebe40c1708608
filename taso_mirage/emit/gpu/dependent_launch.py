"""The statements with which a kernel waits for the preceding one, and lets the next one begin
(programmatic dependent launch).

All generated kernels wait, so the end of each is the end of all before it. Early blocks of the next
kernel take free processors: if a block needs all registers of a processor, several go to the
processors that finish first, and none to the others. So a kernel may be `LATE` (the part of one
latent head's keys on an H200: 21.1 to 18.7 us).
"""

from taso_mirage.emit.statements import v, when

_WAIT = v.tl.extra.cuda.gdc_wait()
_NEXT = v.tl.extra.cuda.gdc_launch_dependents()
WAITING = (
    when("OVERLAP", _WAIT, why="loads follow the wait for the kernel before"),
    when("OVERLAP and not LATE", _NEXT, why="the one after may start now, and waits as well; else at the end"),
)
EARLY = (
    when(
        "OVERLAP and EARLY",
        _NEXT,
        why="the one after may start at once: it waits until this one ends, which waits for the one before",
    ),
    WAITING[0],
    when("OVERLAP and not EARLY and not LATE", _NEXT, why="to say it twice costs 0.1 us on an H100"),
)
"""The early start, but not of a kernel with a loop, which was up to 1.5 times as slow with it."""
