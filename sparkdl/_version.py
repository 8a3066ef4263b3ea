"""The version of this package, for modules that must not import what the package exports."""

__version__ = "0.1.0"
