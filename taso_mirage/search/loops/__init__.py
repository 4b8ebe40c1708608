"""Rewrites of loops over sequences: to operators, and with less inside."""
