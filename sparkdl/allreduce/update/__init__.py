"""From the gradients of a shard to its new weights."""
