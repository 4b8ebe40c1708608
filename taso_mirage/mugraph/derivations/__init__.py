"""The kinds of derivations of classes from others: one object for each kind, in the files of this
folder."""
