"""The prover: both sides of an equation at one symbolic index, or refuted by numbers."""
