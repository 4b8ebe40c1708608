"""An independent checker of equations between tensor programs: it shares no code with the prover.

See `equations`.
"""

from taso_mirage.checker.equations import Accepted, Refused, check, check_step

__all__ = ["Accepted", "Refused", "check", "check_step"]
