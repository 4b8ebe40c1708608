"""The engine of substitutions: equations, their text, their index and their library."""
