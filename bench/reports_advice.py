#!/usr/bin/env python3
"""Judge recommend_moves() by measured latency; called by bench/reports.

Every index's query is timed with the index on the slow disk and on the fast
one, in a closed loop.  The latency of the mix for a set of moved indexes is
the weighted sum of those, so all sets that fit into the budget can be
compared, and the recommended set is then moved and the mix measured again.
"""
import itertools
import os
import re
import subprocess
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit(0)

BIN, HOST, PORT, WORK = (os.environ[v] for v in ("BIN", "HOST", "PORT", "WORK"))
SERVER = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []
SECONDS = int(os.environ.get("ADVICE_SECONDS", "6"))


def sql(text):
    run = subprocess.run(SERVER + [f"{BIN}/psql", "-h", HOST, "-p", PORT, "-U", "postgres", "-XAtq",
                                   "-v", "ON_ERROR_STOP=1", "-c", text, "bench"],
                         check=True, capture_output=True, text=True)
    return [line.split("|") for line in run.stdout.splitlines()]


def pgbench(seconds, scripts):
    args = [f"{BIN}/pgbench", "-h", HOST, "-p", PORT, "-U", "postgres", "-n", "-c", "1", "-T", str(seconds)]
    for number, weight in scripts:
        args += ["-f", f"{WORK}/q{number}.sql@{weight}"]
    out = subprocess.run(SERVER + args + ["bench"], check=True, capture_output=True, text=True).stdout
    return float(re.search(r"latency average = ([\d.]+) ms", out).group(1))


mix = {int(n): int(w) for n, w in (line.split() for line in open(f"{WORK}/mix"))}
total_weight = sum(mix.values())
names = {n: f"t{n}_k" for n in mix}

# what the server sees of the mix
pgbench(10, mix.items())
sql("SELECT take_index_sample()")
reads_before = {r[0]: int(r[1]) for r in sql("SELECT indexrelname, idx_blks_read FROM pg_statio_user_indexes")}
everything_slow = pgbench(40, mix.items())
sql("SELECT pg_sleep(1.5)")
reads = {r[0]: int(r[1]) - reads_before.get(r[0], 0)
         for r in sql("SELECT indexrelname, idx_blks_read FROM pg_statio_user_indexes")}
size = {n: int(sql(f"SELECT pg_relation_size('{names[n]}')")[0][0]) for n in mix}
budget = sum(size.values()) // 3
advice = sql(f"SELECT rank, index, method, size, size_after, round(reads_per_second::numeric, 1), "
             f"round(gain_ms_per_second::numeric, 1), round(bloat_ratio::numeric, 2) "
             f"FROM recommend_moves('fast', {budget}) WHERE index IS NOT NULL")
recommended = {n for n in mix if names[n] in {r[1] for r in advice}}

slow = {n: pgbench(SECONDS, [(n, 1)]) for n in mix}
fast, after = {}, {}
for n in mix:
    bloated = float(sql(f"SELECT bloat_ratio FROM index_bloat('{names[n]}')")[0][0]) > 0.3
    moved = sql(f"SELECT status, detail FROM move_indexes('{names[n]}', 'fast', "
                f"method => '{'rebuild' if bloated else 'copy'}')")
    assert moved[0][0] == "moved", moved
    after[n] = int(sql(f"SELECT pg_relation_size('{names[n]}')")[0][0])
    fast[n] = pgbench(SECONDS, [(n, 1)])


def latency(chosen):
    return sum(w * (fast[n] if n in chosen else slow[n]) for n, w in mix.items()) / total_weight


def fits(chosen, sizes):
    return sum(sizes[n] for n in chosen) <= budget


nothing = latency(())
best = min((set(c) for k in range(len(mix) + 1) for c in itertools.combinations(mix, k) if fits(c, after)),
           key=latency)
by_reads = set()
for n in sorted(mix, key=lambda n: -reads[names[n]]):
    if fits(by_reads | {n}, size):
        by_reads.add(n)

print(f"budget {budget >> 20} of {sum(size.values()) >> 20} MB; the mix on the slow disk: {everything_slow:.2f} ms measured, "
      f"{nothing:.2f} ms as the sum of its parts")
print("index  MB  after  weight  blocks read  slow ms  fast ms")
for n in mix:
    print(f"{names[n]:5} {size[n] / 2**20:4.0f} {after[n] / 2**20:5.0f} {mix[n]:7} {reads[names[n]]:12} {slow[n]:8.2f} {fast[n]:8.2f}")
print("recommended, in order:")
for row in advice:
    print("  " + " ".join(f"{c:>9}" for c in row))
gain = nothing - latency(best)
for what, chosen in (("best of all sets", best), ("recommended", recommended), ("by idx_blks_read", by_reads)):
    print(f"{what:17} {latency(chosen):6.2f} ms  {100 * (nothing - latency(chosen)) / gain:5.1f} % of the best gain  "
          f"{sorted(names[n] for n in chosen)}")
print(f"the recommended ones fit: {'yes' if fits(recommended, after) else 'NO'}")

# the recommended set as a whole
for n in mix:
    if n not in recommended:
        sql(f"SELECT status FROM move_indexes('{names[n]}', 'slow', method => 'copy')")
pgbench(10, mix.items())
print(f"the mix with the recommended set moved: {pgbench(30, mix.items()):.2f} ms measured")
