"""Resource plan of a run by arithmetic: parameters, bytes per rank, microbatches, pipeline bubble. Builds no model."""
