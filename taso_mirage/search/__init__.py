"""The search for rewrites that make a model faster: passes, best-first search, e-graph and
extraction, by cost."""
