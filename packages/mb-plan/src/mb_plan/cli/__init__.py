"""The program `mb-plan`, and the texts of plans and sweeps that other programs print. Requires the extra `cli`."""
