"""The first call of a compiled loop compiles it: hypothesis must not take that for a slow test."""

from hypothesis import settings

settings.register_profile("compiled", deadline=None)
settings.load_profile("compiled")
