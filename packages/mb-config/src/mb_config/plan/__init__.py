"""What a run will need, by arithmetic alone: parameters, bytes on a rank, microbatches, idle time. Builds nothing."""
