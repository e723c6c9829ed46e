"""Sparse rows: batches, datasets, readers."""
