"""Plans: from the gradients of all ranks to new weights on all ranks, as lists of pure phases."""
