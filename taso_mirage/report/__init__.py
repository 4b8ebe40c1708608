"""Reports on a result: summaries, pages, explanations, differences and certificates."""
