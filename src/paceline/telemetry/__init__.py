"""What happened in a run: where each role's time went, and what its node was doing."""
