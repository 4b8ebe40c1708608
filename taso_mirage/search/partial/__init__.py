"""Rewrites that hold on a part of their result, and their corrections (PET, OSDI'21)."""
