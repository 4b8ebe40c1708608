"""Evidence for equations: fingerprints in the finite field, and fuzzing over random legal typings."""
