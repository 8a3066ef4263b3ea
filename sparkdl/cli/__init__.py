"""What the command line does beyond the library: submit jobs, list runs, write starters."""
