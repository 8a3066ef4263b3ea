"""Saving and loading of stages, where Spark can write and on this machine."""
