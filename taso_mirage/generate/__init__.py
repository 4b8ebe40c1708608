"""The generator: families of terms, fingerprint classes, candidates, and from them proved rules."""
