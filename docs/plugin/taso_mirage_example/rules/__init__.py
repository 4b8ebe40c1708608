"""Rules in files, in the format of the library in `substitutions/`."""
