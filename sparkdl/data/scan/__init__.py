"""Rows of Parquet files where they lie: their order in an epoch, and how tasks read them."""
