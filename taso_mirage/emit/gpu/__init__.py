"""Tiles of a kernel as lines of Triton: the room behind `emit.triton`."""
