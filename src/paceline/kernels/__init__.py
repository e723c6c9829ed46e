"""Compiled loops, arrays in and arrays out. Nothing here knows what a run, a model or a file is."""
