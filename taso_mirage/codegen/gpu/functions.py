"""Scalar functions in Triton. Core Triton has no tanh and no log1p; these keep their digits where results are small: what comes later may
scale them up (the cap of Gemma 2's scores is 50 tanh(x / 50), the steps of Mamba are softplus of about -6)."""

LOG1P = (
    "tl.where(1.0 + {0} == 1.0, {0}, "
    "tl.where({0} < 1.0, tl.log(1.0 + {0}) * ({0} / ((1.0 + {0}) - 1.0)), tl.log(1.0 + {0})))"
)
"""Kahan's: the quotient is what rounding 1 + x left of x. At most 3e-7 of the result off."""
TANH = (
    "tl.where(tl.abs({0}) < 0.3, {0} + {0} * {0} * {0} * (-0.33333334 + {0} * {0} * (0.13333334 + {0} * {0} * (-0.053968254 "
    "+ {0} * {0} * 0.021869488))), 1.0 - 2.0 / (tl.exp(2.0 * {0}) + 1.0))"
)
"""Its series near 0. At most 6e-7 of the result off."""
FUNCTIONS = {
    "add": "{} + {}",
    "subtract": "{} - {}",
    "multiply": "{} * {}",
    "divide": "{} / {}",
    "negative": "-{}",
    "reciprocal": "1.0 / {}",
    "square": "{0} * {0}",
    "absolute": "tl.abs({})",
    "maximum": "tl.maximum({}, {})",
    "minimum": "tl.minimum({}, {})",
    "where": "tl.where({}, {}, {})",
    "exp": "tl.exp({})",
    "exp2": "tl.exp2({})",
    "expm1": "tl.exp({}) - 1.0",
    "log": "tl.log({})",
    "log1p": LOG1P,
    "sqrt": "tl.sqrt({})",
    "sin": "tl.sin({})",
    "cos": "tl.cos({})",
    "tanh": TANH,
    "error_function": "tl.erf({})",
    "floor": "tl.floor({})",
    "ceil": "tl.ceil({})",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
    "isnan": "{0} != {0}",
    "less": "{} < {}",
    "less_equal": "{} <= {}",
    "greater": "{} > {}",
    "greater_equal": "{} >= {}",
    "equal": "{} == {}",
    "not_equal": "{} != {}",
    "logical_and": "{} & {}",
    "logical_or": "{} | {}",
    "logical_xor": "{} ^ {}",
    "logical_not": "{} == 0",
}
"""The expression of every scalar function that definitions map over elements."""
