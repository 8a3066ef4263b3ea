"""What the columns of a table become: plain data and arithmetic, without Spark and torch."""
