"""The user's code as a process has loaded it: executors compute with the driver's, or an error says so.

Functions and classes that can be imported travel by name, and Python workers are used again. So a worker may
have loaded a module before its file was edited, and another one after that. What is pickled here goes with a
digest of the code that it names, and a worker compares.
"""
