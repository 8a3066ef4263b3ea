"""How the messages of a plan's phases get from rank to rank."""
