"""Scalar functions, each one record in one place.

`record` describes the fields of a record. A new function is a record in a file here, or is declared
beside the operator that maps it.
"""

from taso_mirage.meanings.functions import analysis, arithmetic, logic
from taso_mirage.meanings.functions.analysis import ERROR_FUNCTION as ERROR_FUNCTION
from taso_mirage.meanings.functions.analysis import EXP as EXP
from taso_mirage.meanings.functions.arithmetic import ADD as ADD
from taso_mirage.meanings.functions.arithmetic import DIVIDE as DIVIDE
from taso_mirage.meanings.functions.arithmetic import MAXIMUM as MAXIMUM
from taso_mirage.meanings.functions.arithmetic import MULTIPLY as MULTIPLY
from taso_mirage.meanings.functions.arithmetic import POWER as POWER
from taso_mirage.meanings.functions.arithmetic import RECIPROCAL as RECIPROCAL
from taso_mirage.meanings.functions.arithmetic import SUBTRACT as SUBTRACT
from taso_mirage.meanings.functions.arithmetic import TRUNCATED_DIVIDE as TRUNCATED_DIVIDE
from taso_mirage.meanings.functions.logic import EQUAL as EQUAL
from taso_mirage.meanings.functions.logic import NEVER as NEVER
from taso_mirage.meanings.functions.logic import NOT_EQUAL as NOT_EQUAL
from taso_mirage.meanings.functions.logic import WHERE as WHERE
from taso_mirage.meanings.functions.record import SCALAR_FUNCTIONS as SCALAR_FUNCTIONS
from taso_mirage.meanings.functions.record import Comparison as Comparison
from taso_mirage.meanings.functions.record import Division as Division
from taso_mirage.meanings.functions.record import Fact as Fact
from taso_mirage.meanings.functions.record import Fold as Fold
from taso_mirage.meanings.functions.record import Function as Function
from taso_mirage.meanings.functions.record import Linear as Linear
from taso_mirage.meanings.functions.record import declare_function as declare_function
from taso_mirage.meanings.functions.record import function_of as function_of

for _own in (analysis, arithmetic, logic):
    for _each in vars(_own).values():
        if isinstance(_each, Function):
            declare_function(_each)
