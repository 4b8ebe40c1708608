"""The meanings of a program: each module interprets the same primitives in another domain."""
