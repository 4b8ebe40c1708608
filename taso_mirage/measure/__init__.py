"""What a model does when it runs: sessions in a child process, times, and results against
float64."""
