"""What interleaved runs say."""

from __future__ import annotations

from taso_mirage.measure.timing import compared_times


def test_a_good_moment_of_one_model_is_no_gain() -> None:
    """Nearly every round says that the other is 1 % faster. Moments in which all is faster met it
    three times, the original once: the quotient of the lower quartiles is larger than any of the
    middle rounds'."""
    original = [7.0, 7.1, 7.2, 7.1, 7.1, 7.1, 7.1, 4.25]
    other = [6.9, 7.0, 7.1, 4.2, 7.0, 4.3, 7.0, 4.2]
    timing = compared_times([original], [other], [1.0])
    assert timing.original / timing.optimized > 1.6
    assert timing.ratio == timing.high < 1.2


def test_a_steady_gain_is_the_quotient() -> None:
    assert compared_times([[2.0] * 8], [[1.0] * 8], [1.0]).ratio == 2.0
