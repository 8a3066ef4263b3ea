"""Modules on disk: where their code comes from, what a file may name, weights, metadata and checksums."""
