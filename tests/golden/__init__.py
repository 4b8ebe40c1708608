"""The texts of generated programs, kept by digest, so that a change of the generators shows as a
difference of text (tinygrad's process replay)."""
