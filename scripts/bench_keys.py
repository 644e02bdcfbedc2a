"""What keys and users' own indices cost: minting on demand, revoking, a shard a user.

.venv/bin/python -m scripts.bench_keys [--mints 200] [--users 200]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import numpy as np

from memory_es import Platform
from scripts.throwaway import throwaway


def milliseconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1_000


def keys(platform: Platform, mints: int) -> dict[str, float]:
    """Minting a key of 15 minutes for a known user, as a server does, and ending a user's keys."""
    users = platform.users()
    names = [f"user {number}" for number in range(20)]
    for name in names:
        users.add(name)

    mint = partial(users.mint, issued_by="bench", expiration="15m", purpose="on demand")
    for name in names:
        mint(name)
    gc.disable()
    minted = [milliseconds(partial(mint, names[n % len(names)])) for n in range(mints)]
    gc.enable()
    revoked = [milliseconds(partial(users.revoke, name)) for name in names[:10]]
    return {
        "mint_p50_ms": round(float(np.percentile(minted, 50)), 1),
        "mint_p95_ms": round(float(np.percentile(minted, 95)), 1),
        "revoke_p50_ms": round(statistics.median(revoked), 1),
    }


def heap(platform: Platform) -> int:
    """Bytes of heap that are in use, the least of a few looks: collections come in between."""
    seen = []
    for _ in range(10):
        stats = platform.service().nodes.stats(metric="jvm")["nodes"]
        seen.append(sum(int(node["jvm"]["mem"]["heap_used_in_bytes"]) for node in stats.values()))
        time.sleep(0.5)
    return min(seen)


def shards(platform: Platform, count: int) -> dict[str, float]:
    """One index and one memory for each of many users."""
    before = heap(platform)
    added = []
    for number in range(count):
        name = f"user {number}"
        added.append(milliseconds(partial(platform.mint, name)))
        platform.for_user(name).remember("drinks tea", kind="semantic")
    state = platform.service().cluster.stats()["indices"]["shards"]["total"]
    return {
        "users": count,
        "shards_on_the_node": state,
        "user_added_p50_ms": round(statistics.median(added), 1),
        "user_added_last_ten_p50_ms": round(statistics.median(added[-10:]), 1),
        "heap_mib_a_user": round((heap(platform) - before) / count / 2**20, 2),
    }


def main() -> None:
    """Measure both and print one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mints", type=int, default=200)
    parser.add_argument("--users", type=int, default=200)
    options = parser.parse_args()
    with throwaway() as platform:
        found = keys(platform, options.mints)
    with throwaway(isolation="index") as platform:
        found |= shards(platform, options.users)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    print(json.dumps({"at": at, **found}, indent=2))


if __name__ == "__main__":
    main()
