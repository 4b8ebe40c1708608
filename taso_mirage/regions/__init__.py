"""The regions of a model that a search for kernels is worth on: which they are, their canonical
graphs, and their places."""
