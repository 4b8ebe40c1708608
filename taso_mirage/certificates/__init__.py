"""The check of a certificate, without search and without trust in the optimizer: the format, the
classes of equal terms, and the judge of each equality."""
