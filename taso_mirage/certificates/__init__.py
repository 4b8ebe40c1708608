"""The check of a certificate, without search and without the optimizer's word: the format, the
classes of equal terms, and the judge of each equality."""
