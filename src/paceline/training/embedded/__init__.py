"""Training inside one process: workers are threads."""
