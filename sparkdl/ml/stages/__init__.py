"""Transformers of texts, images and tables, and the scorer behind every transform."""
