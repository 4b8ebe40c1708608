"""Tiles of a kernel as lines of Triton: what lies behind `codegen.triton`."""
