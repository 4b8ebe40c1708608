"""Hostile input of every kind, drawn from seeds: files that a stranger may send, and the remains of
one's own after an accident."""
