"""Images: batches, datasets, readers."""
