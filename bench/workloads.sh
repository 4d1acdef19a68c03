# bench/workloads.sh
#   The tables, indexes and loads that bench/copy, bench/peers and bench/limits
#   move.  To be sourced by bash after bench/lib.sh.
#
# Assumption: tablespaces a and b exist; the server runs without fsync while it
# is loaded.  make_workload() sets TABLE and INDEX, and writes the script of the
# load, in which every update makes a new entry in the index.

KINDS='btree text gin gist bloat'

# $1: kind, $2: megabytes of the index.  The bytes of index a row were measured
# with these very definitions.
make_workload() {
  local rows scale
  case "$1" in
    btree)          # the primary key of pgbench_accounts
      scale=$(($2 * 100 / 214 + 1))
      as_server "$BIN/pgbench" -i -I dtGp -q -s "$scale" --index-tablespace=a > "$WORK/pgbench_init.log" 2>&1 ||
        { tail -n 5 "$WORK/pgbench_init.log" >&2; die "pgbench -i failed"; }
      TABLE=pgbench_accounts INDEX=pgbench_accounts_pkey
      # An index that stays empty, so that no update is heap-only and each one
      # makes an entry in the index that is measured.
      sql -c "CREATE INDEX no_hot ON pgbench_accounts (abalance) WHERE abalance > 2000000000"
      tee "$WORK/update.sql" > /dev/null << SQL
\set aid random(1, 100000 * $scale)
\set delta random(-5000, 5000)
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SQL
      ;;
    text)           # btree of random text
      rows=$(($2 * 1048576 / 59 + 1))
      sql << SQL
BEGIN;
CREATE TABLE texts (id int, t text);
INSERT INTO texts SELECT g, md5(g::text) FROM generate_series(1, $rows) g;
COMMIT;
ALTER TABLE texts ADD PRIMARY KEY (id);
CREATE INDEX texts_t ON texts (t) TABLESPACE a;
SQL
      TABLE=texts INDEX=texts_t
      tee "$WORK/update.sql" > /dev/null << SQL
\set id random(1, $rows)
UPDATE texts SET t = md5(random()::text) WHERE id = :id;
SQL
      ;;
    grown)          # a btree of random text that has grown entry by entry
      rows=$(($2 * 1048576 / 66 + 1))
      sql << SQL
BEGIN;
CREATE TABLE texts (id int, t text);
CREATE INDEX texts_t ON texts (t) TABLESPACE a;
INSERT INTO texts SELECT g, md5(g::text) FROM generate_series(1, $rows) g;
COMMIT;
ALTER TABLE texts ADD PRIMARY KEY (id);
SQL
      TABLE=texts INDEX=texts_t
      tee "$WORK/update.sql" > /dev/null << SQL
\set id random(1, $rows)
UPDATE texts SET t = md5(random()::text) WHERE id = :id;
SQL
      ;;
    gin)            # GIN of tsvector
      rows=$(($2 * 1048576 / 2588 + 1))
      # 30 words of a language, and 20 that are found nowhere else
      sql << SQL
CREATE FUNCTION document() RETURNS tsvector LANGUAGE sql VOLATILE AS
\$\$ SELECT array_to_tsvector(array_agg(DISTINCT CASE WHEN g <= 20 THEN md5(random()::text) ELSE 'w' || (20000 * random() ^ 2)::int END))
     FROM generate_series(1, 50) g \$\$;
BEGIN;
CREATE TABLE documents (id int, body tsvector);
INSERT INTO documents SELECT g, document() FROM generate_series(1, $rows) g;
COMMIT;
ALTER TABLE documents ADD PRIMARY KEY (id);
CREATE INDEX documents_body ON documents USING gin (body) TABLESPACE a;
SQL
      TABLE=documents INDEX=documents_body
      tee "$WORK/update.sql" > /dev/null << SQL
\set id random(1, $rows)
UPDATE documents SET body = document() WHERE id = :id;
SQL
      ;;
    gist)           # GiST of points
      rows=$(($2 * 1048576 / 49 + 1))
      sql << SQL
BEGIN;
CREATE TABLE places (id int, at point);
INSERT INTO places SELECT g, point(random(), random()) FROM generate_series(1, $rows) g;
COMMIT;
ALTER TABLE places ADD PRIMARY KEY (id);
CREATE INDEX places_at ON places USING gist (at) TABLESPACE a;
SQL
      TABLE=places INDEX=places_at
      tee "$WORK/update.sql" > /dev/null << SQL
\set id random(1, $rows)
UPDATE places SET at = point(random(), random()) WHERE id = :id;
SQL
      ;;
    bloat)          # a btree of which three quarters are empty space
      rows=$(($2 * 1048576 / 89 + 1))
      sql << SQL
BEGIN;
CREATE TABLE events (id int, at timestamptz);
INSERT INTO events SELECT g, now() - g * interval '1 minute' FROM generate_series(1, $rows) g;
COMMIT;
ALTER TABLE events ADD PRIMARY KEY (id);
CREATE INDEX events_at ON events (at) TABLESPACE a;
SQL
      TABLE=events INDEX=events_at
      bloat_again
      tee "$WORK/update.sql" > /dev/null << SQL
\set id random(1, $rows)
UPDATE events SET at = now() - random() * $rows * interval '1 minute' WHERE id = :id;
SQL
      ;;
    *) die "unknown kind $1: one of $KINDS grown" ;;
  esac
}

# Put an end to what a load has left: the dead rows go, and the index is as it was
# when it was loaded, so that each way moves the same one.  (The table keeps the
# size that the first load has given it.)
fresh_again() {
  sql -c "VACUUM $TABLE"
  if [ "$INDEX" = events_at ]; then bloat_again; else sql -c "REINDEX INDEX $INDEX"; fi
}

# Give an index that was rebuilt its empty space back.  The setting goes
# again, so that whoever rebuilds it gets rid of the space.
bloat_again() {
  sql -c "ALTER INDEX events_at SET (fillfactor = 20)" -c "REINDEX INDEX events_at" -c "ALTER INDEX events_at RESET (fillfactor)"
}
