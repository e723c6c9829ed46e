"""What a run looked like: live progress and tables in the terminal, pages, traces, TensorBoard."""
