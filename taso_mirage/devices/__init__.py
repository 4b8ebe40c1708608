"""Descriptions of the hardware on which models run and of the options of its runtimes: data for
files and keys. Nothing here opens a device or a model."""
