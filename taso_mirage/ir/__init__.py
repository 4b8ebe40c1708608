"""Graphs: symbolic dims, interned terms, muGraphs and models; the meaning of a term is defined
elsewhere."""
