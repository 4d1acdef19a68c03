#!/usr/bin/env python3
"""Follow hot sets that change with policies of a budget; called by bench/tiers.

Weeks pass in minutes: a step of an hour makes all samples and all moves an hour older,
and has each relation read as the scenario says, in the table of samples.  Samples are written to it, too:
take_index_sample() keeps the last of each day of the calendar, which here stands still.  The policies
are planned and carried out by the extension itself.  Compared are the share of reads that hit
the fast tablespace, with an oracle that knows the reads of the hour that comes, and with the best
placement that never changes, which knows them all, too; and the bytes moved with the oracle's.
"""
import os
import random
import subprocess
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit(0)

BIN, HOST, PORT, WORK, OUT = (os.environ[v] for v in ("BIN", "HOST", "PORT", "WORK", "OUT"))
SERVER = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []
WEEKS, RELATIONS = int(os.environ["WEEKS"]), int(os.environ["RELATIONS"])
CHOICES = [tuple(c.split("/")) for c in os.environ["CHOICES"].split(",")]
HOT = RELATIONS // 5            # as many fit into the budget, of the same size
# months take their time; of what changes daily less will do
LENGTHS = {"weekly": WEEKS, "month-end": WEEKS}


class Session:
    """One psql for all statements of a scenario."""

    def __init__(self):
        self.psql = subprocess.Popen(
            SERVER + [f"{BIN}/psql", "-XqAt", "-h", HOST, "-p", PORT, "-U", "postgres", "-v", "ON_ERROR_STOP=1", "postgres"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")

    def run(self, sql):
        self.psql.stdin.write(sql + ";\n\\echo ready\n")
        self.psql.stdin.flush()
        rows = []
        for line in self.psql.stdout:
            if line == "ready\n":
                return rows
            rows.append(line.rstrip("\n").split("|"))
        sys.exit("psql has ended")


def sets(number, seed):
    """So many sets of relations that are hot together."""
    order = list(range(RELATIONS))
    random.Random(seed).shuffle(order)
    return [[order[(n * HOT + i) % RELATIONS] for i in range(HOT)] for n in range(number)]


def scenario(name, hour):
    """The relations that are hot in an hour, and how much hotter than others they are."""
    day = hour // 24
    if name == "weekly":
        return sets(5, day // 35)[day // 7 % 5], 100
    if name == "month-end":
        regular, closing = sets(2, 1)
        return (closing, 300) if day % 30 >= 27 else (regular, 100)
    if name == "daily":
        return sets(5, 2)[day % 5], 100
    if name == "two days":
        return sets(2, 3)[day % 2], 100
    if name == "day and night":
        return sets(2, 4)[0 if 8 <= hour % 24 < 20 else 1], 100
    if name == "shifts":
        return sets(3, 5)[hour % 24 // 8], 100
    sys.exit(f"no scenario {name}")


def reads_of(name):
    """Blocks that each relation is asked for in each hour, of an hour 3,600 and more."""
    chance = random.Random(name)
    result = []
    for hour in range(LENGTHS.get(name, max(WEEKS // 3, 1)) * 7 * 24):
        hot, factor = scenario(name, hour)
        members = set(hot)
        reads = [int(3600 * chance.uniform(0.5, 1.5) * (factor if r in members else 1)) for r in range(RELATIONS)]
        if name == "month-end" and factor == 300:
            # what is always used is, then, too
            for r in sets(2, 1)[0]:
                reads[r] = int(3600 * chance.uniform(0.5, 1.5) * 100)
        result.append(reads)
    return result


def best(reads):
    return set(sorted(range(RELATIONS), key=lambda r: -reads[r])[:HOT])


def oracle(reads):
    """Hits and moves of one that moves, before an hour, what that hour and the next eleven want."""
    place, hits, moves = set(), [], 0
    for hour in range(len(reads)):
        ahead = reads[hour:hour + 12]
        wanted = best([sum(h[r] for h in ahead) for r in range(RELATIONS)])
        # as hysteresis does: not for noise
        for old, new in zip(sorted(place - wanted, key=lambda r: sum(h[r] for h in ahead)),
                            sorted(wanted - place, key=lambda r: -sum(h[r] for h in ahead))):
            if sum(h[new] for h in ahead) > 1.2 * sum(h[old] for h in ahead):
                place = place - {old} | {new}
                moves += 2
        if len(place) < HOT:
            moves += len(wanted - place)
            place = wanted
        hits.append(sum(reads[hour][r] for r in place))
    return hits, moves


def follow(session, reads, half_life, min_stay):
    """Hits and moves of the policy."""
    run = session.run
    run(f"""SELECT count(*) FROM evacuate_tablespace('fast', 'slow');
DELETE FROM tier_policy; DELETE FROM index_mover.sample; DELETE FROM index_mover.move_log; DELETE FROM index_mover.job_log;
INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, budget, half_life, min_stay)
VALUES ('hot', 'many', 'slow', 'fast', 'indexes', {HOT} * (SELECT max(pg_relation_size(oid)) FROM pg_class
  WHERE relnamespace = 'many'::regnamespace AND relkind = 'i'), '{half_life}', '{min_stay}');
SELECT count(*) FROM take_index_sample();
DROP TABLE IF EXISTS now; CREATE TABLE now AS TABLE index_mover.sample; TRUNCATE index_mover.sample;
INSERT INTO index_mover.sample SELECT clock_timestamp(), 0, NULL, 0;
INSERT INTO index_mover.sample SELECT (SELECT max(taken_at) FROM index_mover.sample), i.indrelid, c.relname, 0, -1e15::bigint, 1
  FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE c.relnamespace = 'many'::regnamespace""")
    hits, moves, vain = [], 0, 0
    since, used = {}, {}
    place = set()
    for hour in range(len(reads)):
        hits.append(sum(reads[hour][r] for r in place))
        for r in place:
            used[r] += reads[hour][r]
        # the counters of now stay what they are, so those before go down
        values = ", ".join(map(str, reads[hour]))
        # of each day a sample is kept, and all of the last week
        thinned = "now() - interval '7 days 30 min'" if hour % 24 else "now()"
        rows = run(f"""DELETE FROM index_mover.sample
 WHERE taken_at < now() - 56 * interval '{half_life}' OR taken_at BETWEEN {thinned} AND now() - interval '6 days 23:30';
UPDATE index_mover.sample s SET taken_at = s.taken_at - interval '1 hour', blks_read = s.blks_read - v.n, blks_wanted = s.blks_wanted - v.n
  FROM (SELECT o.ctid, coalesce((ARRAY[{values}])[substr(o.index_name, 2, length(o.index_name) - 6)::int + 1], 0) AS n
          FROM index_mover.sample o) v WHERE v.ctid = s.ctid;
UPDATE index_mover.move_log SET finished_at = finished_at - interval '1 hour';
INSERT INTO index_mover.sample SELECT now(), table_oid, index_name, blks_read, blks_wanted, index_scans, other_scans, changes
  FROM now;
SELECT name, 'moved' FROM run_tier_policies('hot', wait => true) WHERE kind = 'index' AND status = 'moved';
{"VACUUM index_mover.sample; VACUUM index_mover.move_log" if hour % 24 == 0 else ""}""")
        for name, _ in (row for row in rows if len(row) == 2):
            relation = int(name.rsplit(".t", 1)[-1].lstrip("t").removesuffix("_pkey"))
            moves += 1
            if relation not in place:
                place.add(relation)
                since[relation], used[relation] = hour, 0
            else:
                place.discard(relation)
                # it was read no more there than it would have been cold
                vain += used[relation] < 2 * 3600 * (hour - since[relation])
    return hits, moves, vain


def main():
    session = Session()
    lines = ["| hot set changes | half_life | min_stay | reads that hit | of the oracle's | best that never changes | bytes moved / oracle's "
             "| moved in vain |", "|---|---|---|---|---|---|---|---|"]
    for name in ("weekly", "month-end", "daily", "two days", "day and night", "shifts"):
        reads = reads_of(name)
        # the first week is for learning
        first = min(7 * 24, len(reads) // 4)
        special = range(first, len(reads))
        total = sum(sum(reads[h]) for h in special)
        known, known_moves = oracle(reads)
        static = best([sum(h[r] for h in reads[first:]) for r in range(RELATIONS)])
        static_hits = sum(reads[h][r] for h in special for r in static)
        for half_life, min_stay in CHOICES:
            hits, moves, vain = follow(session, reads, half_life, min_stay)
            reached = sum(hits[first:])
            extra = ""
            if name == "month-end":
                closing = [h for h in special if h // 24 % 30 >= 27]
                if closing:
                    extra = f" ({100 * sum(hits[h] for h in closing) / sum(known[h] for h in closing):.0f} % in these days)"
            lines.append(f"| {name} | {half_life} | {min_stay} | {100 * reached / total:.0f} % | {100 * reached / sum(known[first:]):.0f} %{extra} "
                         f"| {100 * static_hits / total:.0f} % | {moves / max(known_moves, 1):.2f} | {vain} |")
            print(lines[-1], flush=True)
    with open(f"{OUT}/tiers.md", "w", encoding="utf-8") as file:
        file.write(f"{WEEKS} weeks, {RELATIONS} indexes of one size, {HOT} of them fit into the budget; a run each hour.\n\n")
        file.write("\n".join(lines) + "\n")


main()
