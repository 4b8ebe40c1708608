"""How classes are derived from others: one object for each kind, in a file beside this one."""
