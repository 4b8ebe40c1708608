"""Graphs: symbolic dims, interned terms, muGraphs and models; what a term means is said
elsewhere."""
