"""Matrices too large for one memory, in blocks: a second kind of job on the same engines."""
