"""Processes, files and the terminal: what the rest asks of the operating system."""
