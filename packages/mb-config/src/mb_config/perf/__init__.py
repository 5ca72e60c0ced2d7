"""Settings of a fast run by kind of GPU, as `perf=h100` selects them."""
