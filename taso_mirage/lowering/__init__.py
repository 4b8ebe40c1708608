"""How regions become compiled kernels for a target: the fastest muGraph of each, measured, as a
node of a model."""
