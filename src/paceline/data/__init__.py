"""Raw files → blocks on disk → batches in memory."""
