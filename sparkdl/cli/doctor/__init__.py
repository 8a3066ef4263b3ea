"""``python -m sparkdl doctor``: what is installed, what a session offers, and what to change.

Everything is checked where it is needed: versions on the driver, and Python, torch, sparkdl and
the local directories from inside real tasks on the executors.
"""
