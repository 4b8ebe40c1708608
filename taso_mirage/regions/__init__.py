"""The regions of a model for which a search for kernels is worthwhile: their choice, their
canonical graphs, and their places."""
