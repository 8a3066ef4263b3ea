"""Bytes and how they lie: frames, pieces, codecs, layouts of flat vectors, buffers that are lent."""
