"""Descriptions of the hardware that models run on, and of the options of its runtimes: data that a
file or a key may have, which opens nothing."""
