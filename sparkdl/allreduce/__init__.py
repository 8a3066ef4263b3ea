"""From the gradients of all ranks to new weights on all ranks. Knows neither modules nor data."""
