"""The roles of a run: worker, shard, coordinator; their pace, checkpoints and evaluation."""
