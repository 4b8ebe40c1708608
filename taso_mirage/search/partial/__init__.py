"""Rewrites that hold on a part of their result, and what makes them whole (PET, OSDI'21)."""
