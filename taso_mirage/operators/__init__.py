"""Operators: a definition of each over the primitives, and facts that follow from the
definition."""
