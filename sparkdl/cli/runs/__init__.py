"""``sparkdl runs``: the runs of a folder, as a list or a page."""
