"""The evidence of a rule: drawn typings, cases, inferred guards, and the proof of every
application."""
