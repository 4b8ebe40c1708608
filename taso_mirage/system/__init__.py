"""Processes, files and the terminal: the calls to the operating system."""
