"""`python -m taso_mirage.cli`."""

from taso_mirage.cli import main

main()
