"""Kernels that are written by hand rather than searched: each file of this folder has one form,
`FORM`, which `codegen.discovery` finds."""
