"""The optimizer: passes, search over substitutions (TASO section 6), measurement and the check against the original."""
