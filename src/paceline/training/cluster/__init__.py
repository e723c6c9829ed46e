"""Workers and shards as processes of a cluster, and the coordinator's side of them."""
