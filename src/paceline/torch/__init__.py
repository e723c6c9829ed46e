"""Everything that imports PyTorch."""
