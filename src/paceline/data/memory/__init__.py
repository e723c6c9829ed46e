"""Rows that are in memory already: matrices, frames and Arrow tables."""
