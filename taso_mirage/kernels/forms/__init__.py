"""Kinds of kernels, nearly all of them written by hand: each file of this folder has one form,
`FORM`, which `codegen.discovery` finds."""
