"""Interpretations of the array primitives: types, numbers, residues, degrees, sizes."""
