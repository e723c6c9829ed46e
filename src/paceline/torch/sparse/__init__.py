"""Sparse rows on a GPU: kernels in Triton, the table that they train, and the rows that they read.

Triton comes with PyTorch's CUDA builds. With TRITON_INTERPRET=1, its interpreter runs the kernels on the CPU, as tests
without a GPU do.
"""
