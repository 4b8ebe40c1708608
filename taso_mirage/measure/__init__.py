"""Running models: sessions in a child process, times, and results against float64."""
