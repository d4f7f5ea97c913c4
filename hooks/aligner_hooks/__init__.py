"""Adapters: each package here is the only importer of its framework (found by entry point, see aligner.registry)."""
