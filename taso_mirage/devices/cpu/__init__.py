"""The processor that this process runs on, its compiler, and the options of its runtime."""
