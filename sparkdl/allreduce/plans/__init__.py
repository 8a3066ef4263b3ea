"""Ways of getting from the gradients of all ranks to new weights on all of them, as lists of pure phases."""
