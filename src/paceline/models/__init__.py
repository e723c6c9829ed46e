"""What is learned: the keys that a batch needs, and the gradient from their values."""
