"""Hostile input of every kind, drawn from seeds: files that a stranger may send, and what is left
of one's own after an accident."""
