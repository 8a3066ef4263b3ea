"""From gradients to updated weights, slice by slice. Knows neither modules nor data."""
