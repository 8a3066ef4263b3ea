"""Transports: ways of a plan's messages from rank to rank."""
