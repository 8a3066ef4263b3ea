"""Simulate ways of adding up many peers' gradients, in one process: all-to-all, a grid, a ring, a tree.

    python benchmarks/topologies.py --json topologies.json
    python benchmarks/topologies.py --peers 4 16 --parameters 1e5

Every message is packed as on the wire, copied, and unpacked, one peer after the other; nothing travels. Each
peer begins with a vector and ends with the sum of all:

    all-to-all  everybody sends each owner its shard; owners add in the order of the sources, and send back
    grid        the same within rows of a square of peers, then of a row's parts within columns, and back
    ring        each peer adds its part to what its neighbour sends, n - 1 times; n - 1 more for the sums
    tree        pairs, then pairs of pairs, add whole vectors; the sum goes back the same way

``messages``, ``bytes`` and ``exchanges`` (one after the other) are those of the peer that has most of them.
``cpu_ms`` is processor time per peer. ``foretold_ms`` is what that would take on machines of their own:
processor time, ``--message`` for each message (carrier.py), bytes over the network, a latency per exchange;
that is **extrapolated**. ``same_bits`` says whether the sum is that of all-to-all: other orders of additions
round otherwise, and then weights would depend on how peers are arranged, not on the partitions alone.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import keeping
import numpy as np

from sparkdl.wire import frame
from sparkdl.wire.frame import Array


@dataclass(slots=True)
class Wire:
    """Takes messages from peer to peer, and counts.

    Attributes:
        messages: sent, by peer.
        nbytes: sent, by peer.
        exchanges: how many came one after the other.
    """

    messages: Counter[int] = field(default_factory=Counter)
    nbytes: Counter[int] = field(default_factory=Counter)
    exchanges: int = 0

    def send(self, peer: int, vector: Array) -> Array:
        """Return what the receiver of a peer's vector gets."""
        packed = frame.join(frame.pack({"kind": "shard", "source": peer}, {"vector": vector}))
        self.messages[peer] += 1
        self.nbytes[peer] += len(packed)
        return frame.unpack(packed).arrays["vector"]


def all_to_all(vectors: Sequence[Array], wire: Wire, peers: Sequence[int] | None = None) -> list[Array]:
    """Add by owners of shards, among some peers."""
    peers = range(len(vectors)) if peers is None else peers
    sums = reduce_scatter(vectors, wire, peers)
    return all_gather(sums, wire, peers)


def reduce_scatter(vectors: Sequence[Array], wire: Wire, peers: Sequence[int]) -> list[Array]:
    """Return the sum of each peer's shard, at its owner."""
    cut = [np.array_split(vector, len(peers)) for vector in vectors]
    sums = []
    for owner in range(len(peers)):
        total = np.zeros_like(cut[0][owner])
        for source, peer in enumerate(peers):
            shard = cut[source][owner]
            total += shard if source == owner else wire.send(peer, shard)
        sums.append(total)
    wire.exchanges += 1
    return sums


def all_gather(shards: Sequence[Array], wire: Wire, peers: Sequence[int]) -> list[Array]:
    """Return all shards, at everybody."""
    wire.exchanges += 1
    return [
        np.concatenate(
            [
                shard if owner == receiver else wire.send(peers[owner], shard)
                for owner, shard in enumerate(shards)
            ]
        )
        for receiver in range(len(peers))
    ]


def grid(vectors: Sequence[Array], wire: Wire) -> list[Array]:
    """Add within rows, then within columns."""
    count = len(vectors)
    columns = next(c for c in range(math.isqrt(count), 0, -1) if count % c == 0)
    rows = [range(first, first + columns) for first in range(0, count, columns)]
    before = wire.exchanges
    parts = [part for row in rows for part in reduce_scatter([vectors[p] for p in row], wire, row)]
    for column in range(columns):
        peers = range(column, count, columns)
        for peer, total in zip(peers, all_to_all([parts[p] for p in peers], wire, peers), strict=True):
            parts[peer] = total
    sums = [total for row in rows for total in all_gather([parts[p] for p in row], wire, row)]
    wire.exchanges = before + 4  # rows, and columns, exchange at the same time
    return sums


def ring(vectors: Sequence[Array], wire: Wire) -> list[Array]:
    """Add from neighbour to neighbour."""
    count = len(vectors)
    cut = [[shard.copy() for shard in np.array_split(vector, count)] for vector in vectors]
    for turn in range(2 * (count - 1)):
        sent = [wire.send(p, cut[p][(p - turn) % count]) for p in range(count)]
        for peer, vector in enumerate(sent):
            at = (peer + 1) % count
            place = (peer - turn) % count
            cut[at][place] = cut[at][place] + vector if turn < count - 1 else vector
        wire.exchanges += 1
    return [np.concatenate(shards) for shards in cut]


def tree(vectors: Sequence[Array], wire: Wire) -> list[Array]:
    """Add in pairs."""
    sums, count = list(vectors), len(vectors)
    distances = [1 << level for level in range((count - 1).bit_length())]
    for distance in distances:
        for peer in range(0, count - distance, 2 * distance):
            sums[peer] = sums[peer] + wire.send(peer + distance, sums[peer + distance])
        wire.exchanges += 1
    for distance in reversed(distances):
        for peer in range(0, count - distance, 2 * distance):
            sums[peer + distance] = wire.send(peer, sums[peer])
        wire.exchanges += 1
    return sums


WAYS: Mapping[str, Callable[[Sequence[Array], Wire], list[Array]]] = {
    "all-to-all": all_to_all,
    "grid": grid,
    "ring": ring,
    "tree": tree,
}


def measure(count: int, numel: int, args: argparse.Namespace) -> list[keeping.Row]:
    """Return a row for each way."""
    draw = np.random.default_rng(count)
    vectors = [draw.standard_normal(numel, dtype=np.float32) for _ in range(count)]
    rows: list[keeping.Row] = []
    expected: Array | None = None
    for name, way in WAYS.items():
        wire, begin = Wire(), time.process_time()
        sums = way(vectors, wire)
        cpu = (time.process_time() - begin) / count
        expected = sums[0] if expected is None else expected
        messages, nbytes = max(wire.messages.values()), max(wire.nbytes.values())
        network = nbytes * 8 / (args.gigabits * 1e9) + wire.exchanges * args.latency / 1e6
        rows.append(
            {
                "way": name,
                "peers": count,
                "parameters": numel,
                "messages": messages,
                "bytes": nbytes,
                "exchanges": wire.exchanges,
                "cpu_ms": round(1e3 * cpu, 3),
                "foretold_ms": round(1e3 * (cpu + messages * args.message / 1e6 + network), 3),
                "same_bits": all(np.array_equal(total, expected) for total in sums),
                "largest_difference": float(max(np.abs(total - expected).max() for total in sums)),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 16, 64, 256])
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e5, 1e6])
    parser.add_argument("--message", type=float, default=46.0, help="microseconds of a message, for sockets")
    parser.add_argument("--latency", type=float, default=100.0, help="microseconds of the network")
    parser.add_argument("--gigabits", type=float, default=10.0, help="per second, in each direction")
    parser.add_argument("--json", help="where to write the rows, after every size")
    args = parser.parse_args()
    rows: list[keeping.Row] = []
    with keeping.cut_off():
        for numel in args.parameters:
            for count in args.peers:
                rows += measure(count, int(numel), args)
                keeping.write(args.json, rows)
                for row in rows[-len(WAYS) :]:
                    print(row, flush=True)


if __name__ == "__main__":
    main()
