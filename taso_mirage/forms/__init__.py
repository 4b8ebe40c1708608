"""Kinds of kernels, nearly all of them written by hand: each file of this folder has one form,
`FORM`, which `emit.discovery` finds. `base/` has the protocol and the parts that forms share."""
