"""What is said of a result: summaries, pages, explanations, differences and certificates."""
