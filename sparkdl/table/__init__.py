"""Encodings of a table's columns: plain data and arithmetic, without Spark and torch."""
