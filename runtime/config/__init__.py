"""What runs: the plan, its digest, and where each value came from."""
