"""Where a kernel waits for the one before it, and lets the next one begin (programmatic dependent
launch)."""

WAITING = (
    "if OVERLAP:  # loads follow the wait for the kernel before; the one after may start then, and waits as well",
    "    tl.extra.cuda.gdc_wait()",
    "    tl.extra.cuda.gdc_launch_dependents()",
)
EARLY = (
    "if OVERLAP and EARLY:  # the one after may start at once: it waits until this one ends, which waits for the one before",
    "    tl.extra.cuda.gdc_launch_dependents()",
    "if OVERLAP:  # loads follow the wait for the kernel before",
    "    tl.extra.cuda.gdc_wait()",
    "if OVERLAP and not EARLY:  # to say it twice costs 0.1 us on an H100",
    "    tl.extra.cuda.gdc_launch_dependents()",
)
"""Not of a kernel with a loop, which was up to 1.5 times as slow there.

All generated kernels wait, so the end of each is that of all before it.
"""
