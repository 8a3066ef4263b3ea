"""The command line beyond the library: it submits jobs, lists runs, writes starters."""
