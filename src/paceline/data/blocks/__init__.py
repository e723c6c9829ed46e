"""Datasets on disk: block files, manifests, folders."""
