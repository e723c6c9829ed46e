"""Where roles live. An engine starts workers and waits for them; it knows no SGD."""
