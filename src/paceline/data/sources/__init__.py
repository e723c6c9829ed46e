"""One file per input format, and where its bytes come from."""
