"""Params: one table of what they are, their converters, and those that stages share."""
