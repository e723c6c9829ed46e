"""Matrix jobs as processes of a cluster."""
