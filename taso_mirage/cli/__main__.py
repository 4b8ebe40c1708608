"""`python -m taso_mirage.cli`."""

from taso_mirage.cli.commands import main

main()
