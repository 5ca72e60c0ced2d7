"""fault_tolerance."""
