"""Fused kernels (muGraphs) found by search: sub-expressions closed once, roles chosen after, sizes
last (Mirage, OSDI'25)."""
