"""Fused kernels (muGraphs) found by search: a closure of sub-expressions first, then roles, then
sizes (Mirage, OSDI'25)."""
