"""A template for plug-ins of taso-mirage."""
