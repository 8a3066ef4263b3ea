"""The last stage of a job: what it sends to the driver, and what it leaves on the executors."""

from __future__ import annotations

from sparkdl._spark.frames import JavaObject
from sparkdl._spark.jobs import FrameJobs
from sparkdl.access.base import RESULT, STATE
from sparkdl.frame import Buffer
from sparkdl.pieces import joined


def collect(
    jobs: FrameJobs, stage: JavaObject, shuffled: JavaObject | None, name: str, kept_bytes: int | None
) -> tuple[list[Buffer], JavaObject | None]:
    """Run the job whose last stage this is.

    Args:
        jobs: Spark access.
        stage: yields keyed frames.
        shuffled: what it reads, which nobody needs afterwards.
        name: names the job in the Spark UI.
        kept_bytes: length of a frame that stays, about; ``None`` if none does.

    Returns:
        Frames for the driver, and what stays.
    """
    kept = None
    if kept_bytes is not None:
        kept = stage
        jobs.persist_replicated(kept, kept_bytes)
    jobs.describe(name)
    try:
        results = jobs.select(jobs.keyed(stage), RESULT, drop=[] if kept is None else [STATE])
        return list(joined(jobs.collect(results))), kept
    except BaseException:
        if kept is not None:
            jobs.unpersist(kept)
        raise
    finally:
        jobs.describe(None)
        if shuffled is not None:
            jobs.release_shuffle(shuffled)


def staying(jobs: FrameJobs, keyed_frames: JavaObject) -> JavaObject:
    """Return the frames that an earlier job left for the shards."""
    return jobs.select(jobs.keyed(keyed_frames), STATE, drop=[RESULT])
