"""Features of recommenders: functions on DataFrames, classic or Connect, as plain Spark SQL."""

from sparkdl.recsys.categories import count_categories, with_category
from sparkdl.recsys.hashing import Collisions, collisions, hash_ids, with_hash
from sparkdl.recsys.histories import with_history
from sparkdl.recsys.nearest import NearestItems
from sparkdl.recsys.negatives import with_negatives
from sparkdl.recsys.numbers import NumberSummary, summarise_numbers, with_buckets, with_scaled
from sparkdl.recsys.splits import leave_last_out, split_by_time

__all__ = [
    "Collisions",
    "NearestItems",
    "NumberSummary",
    "collisions",
    "count_categories",
    "hash_ids",
    "leave_last_out",
    "split_by_time",
    "summarise_numbers",
    "with_buckets",
    "with_category",
    "with_hash",
    "with_history",
    "with_negatives",
    "with_scaled",
]
