# bench/lib.sh
#   What the benchmarks share.  To be sourced by bash, with HERE set to the top
#   of the source tree, after scripts/lib.sh.
#
# Assumption: nothing but PostgreSQL, bash, awk and perl is there.  Each
# benchmark has a throw-away server of its own, in a directory that is removed at
# the end, however it ends.
#
# A load is one pgbench with a log line for each transaction; what clients felt
# in a window of time is read from these lines afterwards (bench/figures).

ROUNDS=5
CLIENTS=4
OUT=$HERE/bench/results
INSTALLED=
KEEP=
SMOKE=
LOAD_PID=
BUSY=
SETTLE=3                # seconds of load before anything is measured
LOAD_OPTIONS=           # further options of pgbench

# The options that all have.  Returns how many words it has used, 0 for none.
common_option() {
  case "$1" in
    --rounds) ROUNDS=${2:?--rounds needs a number}; return 2 ;;
    --clients) CLIENTS=${2:?--clients needs a number}; return 2 ;;
    --out) OUT=${2:?--out needs a directory}; return 2 ;;
    --installed) INSTALLED=1; return 1 ;;
    --keep) KEEP=1; return 1 ;;
    --smoke) SMOKE=1; return 1 ;;
    --help|-h) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  esac
  return 0
}

now() { date +%s.%N; }
minus() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a - b }'; }
note() { printf '%s  %s\n' "$(date +%H:%M:%S)" "$*" >&2; }

# To be extended by a benchmark that has more to undo.
clean_up_more() { :; }

# To be extended by one that measures a changed source; $1: the copy of it.
change_source() { :; }

finish() {
  local status=$?
  trap - EXIT INT TERM
  [ -z "$LOAD_PID" ] || kill "$LOAD_PID" 2> /dev/null
  if [ -f "$WORK/data/postmaster.pid" ] && { [ -z "$KEEP" ] || [ "$status" -ne 0 ]; }; then
    as_server "$BIN/pg_ctl" -s -w -m immediate -D "$WORK/data" stop > /dev/null 2>&1
  fi
  if [ "$status" -ne 0 ] && [ -f "$WORK/run/server.log" ]; then
    grep -E 'ERROR|FATAL|PANIC' "$WORK/run/server.log" | grep -v 'terminating connection' | tail -n 5 >&2
  fi
  if [ -n "$KEEP" ] && [ "$status" -eq 0 ]; then
    echo "The server goes on: $BIN/psql -h $WORK/run -p $PGPORT -U postgres postgres"
    exit 0
  fi
  clean_up_more
  cd / && rm -rf "$WORK"
  exit "$status"
}

# Make WORK, build and install into it; with --installed, use the installation
# of PG_CONFIG, which then has index_mover already.
install_index_mover() {
  local config
  mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || die "cannot make $OUT"
  [ -n "$INSTALLED" ] || "$HERE/scripts/setup" > /dev/null || exit 2
  find_pg_config || die "no pg_config found"
  make_work_directory
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  if [ -n "$INSTALLED" ]; then
    BIN=$("$PG_CONFIG" --bindir)
    [ -f "$("$PG_CONFIG" --pkglibdir)/index_mover.so" ] || die "index_mover is not installed in $BIN"
    return
  fi
  note "building for $("$PG_CONFIG" --version)"
  copy_source "$WORK/src"
  change_source "$WORK/src"
  config=$(private_postgres "$WORK/pg")
  BIN=$(dirname "$config")
  server_directory "$WORK/build"
  as_server make -s -C "$WORK/build" -f "$WORK/src/Makefile" VPATH="$WORK/src" PG_CONFIG="$config" \
    with_llvm=no all install > "$WORK/build.log" 2>&1 || { tail -n 20 "$WORK/build.log" >&2; die "the build failed"; }
}

# Make the cluster; further settings come from standard input.
make_cluster() {
  server_directory "$WORK/data"
  as_server "$BIN/initdb" -D "$WORK/data" -k -A trust -U postgres --no-instructions > "$WORK/initdb.log" 2>&1 ||
    { cat "$WORK/initdb.log" >&2; die "initdb failed"; }
  {
    cat << CONF
listen_addresses = ''
unix_socket_directories = '$WORK/run'
autovacuum = off
checkpoint_timeout = 1d
max_wal_size = 32GB
min_wal_size = 8GB
maintenance_work_mem = 256MB
track_wal_io_timing = on
log_line_prefix = '%m [%p] %q%a '
index_mover.min_free_space = 0
CONF
    cat
  } | as_server tee -a "$WORK/data/postgresql.conf" > /dev/null
  export PGHOST=$WORK/run PGPORT=5432 PGUSER=postgres PGDATABASE=postgres PGOPTIONS='-c client_min_messages=warning'
}

start_server() {        # further options of the server
  as_server "$BIN/pg_ctl" -s -w -t 300 -D "$WORK/data" -l "$WORK/run/server.log" -o "${1-}" start ||
    { tail -n 5 "$WORK/run/server.log" >&2; die "the server does not start"; }
}

stop_server() {
  as_server "$BIN/pg_ctl" -s -w -t 300 -m fast -D "$WORK/data" stop || die "the server does not stop"
}

psql_() { as_server "$BIN/psql" -X -q -v ON_ERROR_STOP=1 "$@"; }
sql() { psql_ "$@" || die "a command failed: $*"; }
value() { psql_ -A -t -c "$1" || die "a query failed: $1"; }

lsn() { value "SELECT pg_current_wal_insert_lsn()"; }
wal_since() { value "SELECT pg_current_wal_insert_lsn() - '$1'::pg_lsn"; }
size_of() { value "SELECT pg_relation_size('$1')"; }

# Where an index is not: moved to and fro between two directories of the same disk.
other_side() {
  value "SELECT CASE t.spcname WHEN 'a' THEN 'b' ELSE 'a' END
           FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = '$1'::regclass"
}

# Have $1 megabytes of WAL segments ready for use again, as on a server that has
# been running for a while: creating one again costs as much as writing it, and it
# would be chance whom that hits.  (min_wal_size keeps them.)
warm_wal() {
  sql -c "SELECT count(pg_logical_emit_message(false, 'bench', repeat('x', 1048576))) FROM generate_series(1, $1)" -c CHECKPOINT > /dev/null
}

# Every measurement starts with nothing left to write.
settle() {
  sql -c CHECKPOINT
  sync -f "$WORK/data" 2> /dev/null
}

# Start the load: $CLIENTS clients run the script $1, as fast as they can;
# $2: further options of pgbench.
start_load() {
  local jobs=$((CLIENTS < 2 ? 1 : 2))
  rm -rf "$WORK/log"
  server_directory "$WORK/log"
  cd "$WORK/log" || exit 2
  # shellcheck disable=SC2086
  as_server "$BIN/pgbench" -n -c "$CLIENTS" -j "$jobs" -T 86400 -f "$1" -M prepared -l ${2-} \
    > "$WORK/pgbench.out" 2> "$WORK/pgbench.err" &
  LOAD_PID=$!
  cd /
}

# End the load, and set FAILED to the number of failed transactions.  pgbench
# writes the rest of its log when it loses its connections; it has no other end.
stop_load() {
  kill -0 "$LOAD_PID" 2> /dev/null || { cat "$WORK/pgbench.err" >&2; die "the load has ended early"; }
  FAILED=$(grep -cE 'error|ERROR|abort' "$WORK/pgbench.err")
  [ "$FAILED" -eq 0 ] || cat "$WORK/pgbench.err" >&2
  value "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgbench'" > /dev/null
  wait "$LOAD_PID" 2> /dev/null
  LOAD_PID=
}

# What the clients felt: "transactions per_second average p99 p99.9 longest"
# (ms) of the transactions that ran in the windows from-to [from-to ...].
felt() { "$HERE/bench/figures" window "$@" "$WORK"/log/pgbench_log.*; }

# Set FULL to the transactions a second that the clients do as fast as they can.
measure_full_rate() {
  local from to LOAD_OPTIONS=
  settle
  start_load "$WORK/update.sql"
  sleep "$SETTLE"
  from=$(now); sleep $((SETTLE * 2)); to=$(now)
  stop_load
  FULL=$(felt "$from-$to" | cut -d ' ' -f 2)
}

# Have the load ask for a third of that, of the median of three, each but the first
# with the index created again, as in the rounds: one alone has differed by a fifth from
# the others, and from what the clients did in the quiet windows.
ask_for_a_third() {
  local i rates=()
  for i in 1 2 3; do
    [ -z "$USED" ] || fresh_again
    measure_full_rate
    rates+=("$FULL") USED=1
  done
  FULL=$(printf '%s\n' "${rates[@]}" | sort -n | sed -n 2p)
  LOAD_OPTIONS=--rate=$(awk -v f="$FULL" 'BEGIN { printf "%d", f / 3 < 1 ? 1 : f / 3 }')
  note "${rates[*]} transactions a second; a third of $FULL is $LOAD_OPTIONS"
}

# What clients feel depends on how long one looks: so the quiet window, before
# the move, is as long as the move is expected to take, and it goes on afterwards
# if the move has taken longer.
#
# Start the load and watch it for $1 seconds.
begin_quiet() {
  start_load "$WORK/update.sql" "$LOAD_OPTIONS"
  sleep "$SETTLE"
  QUIET_FROM=$(now)
  sleep "$1"
  QUIET_TO=$(now)
}

# The move has taken from FROM to TO: set DURING and QUIET to what clients felt
# ("tps,average,p99,p99.9,longest"), and end the load.
end_quiet() {
  local seconds extra late_from late_to behind=0
  seconds=$(minus "$TO" "$FROM")
  extra=$(awk -v d="$seconds" -v q="$QUIET_FROM" -v r="$QUIET_TO" 'BEGIN { e = d - (r - q); print (e > 0 ? e : 0) }')
  # at up to half of full rate, what was held up is done after as long again
  case "$LOAD_OPTIONS" in *--rate*|*-R*) behind=$seconds ;; esac
  sleep 1 "$behind"
  late_from=$(now)
  sleep "$extra"
  late_to=$(now)
  stop_load
  DURING=$(felt "$FROM-$TO" | cut -d ' ' -f 2- | tr ' ' ,)
  # exactly as long as the move
  if [ "$extra" = 0 ]; then
    QUIET_FROM=$(awk -v t="$QUIET_TO" -v d="$seconds" 'BEGIN { printf "%.6f", t - d }')
    QUIET=$(felt "$QUIET_FROM-$QUIET_TO")
  else
    QUIET=$(felt "$QUIET_FROM-$QUIET_TO" "$late_from-$late_to")
  fi
  QUIET=$(cut -d ' ' -f 2- <<< "$QUIET" | tr ' ' ,)
}

# Find pg_repack, or, on Debian, unpack its package into the throw-away installation;
# nothing in the system is changed.  Sets REPACK if it is to be had, and REPACK_NOTE.
REPACK=
REPACK_NOTE=
find_repack() {
  local major file extensions
  major=$("$BIN/pg_config" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
  extensions=$("$BIN/pg_config" --sharedir)/extension
  if [ ! -x "$BIN/pg_repack" ] && [ -z "$INSTALLED" ] && command -v apt-get > /dev/null; then
    server_directory "$WORK/deb"
    if (cd "$WORK/deb" && as_server apt-get -q download "postgresql-$major-repack" > "$WORK/deb.log" 2>&1 &&
        as_server dpkg-deb -x ./*.deb .); then
      for file in "$WORK/deb/usr/lib/postgresql/$major"/bin/pg_repack; do cp "$file" "$BIN"; done
      for file in "$WORK/deb/usr/lib/postgresql/$major"/lib/*.so; do as_server cp "$file" "$("$BIN/pg_config" --pkglibdir)"; done
      for file in "$WORK/deb/usr/share/postgresql/$major"/extension/*; do as_server cp "$file" "$extensions"; done
    else
      note "no package postgresql-$major-repack: $(tail -n 1 "$WORK/deb.log")"
    fi
  fi
  if [ -x "$BIN/pg_repack" ] && [ -f "$extensions/pg_repack.control" ]; then
    REPACK=1 REPACK_NOTE="$("$BIN/pg_repack" --version)"
  else
    REPACK_NOTE="pg_repack was not to be had, and is left out"
  fi
  note "$REPACK_NOTE"
}

# The order of $1 ways in round $2, as numbers from 0: a row of a Williams
# square, so that over the rounds each way comes equally often after each other
# one, and in each place (an even number of ways needs as many rounds for that,
# an odd one twice as many, every other row backwards).
order_of() {
  local i number row=
  for ((i = 0; i < $1; i++)); do
    # 0, 1, n - 1, 2, n - 2 .., and each round one more
    number=$((((i % 2 ? (i + 1) / 2 : $1 - i / 2) + $2 - 1) % $1))
    if (($1 % 2 && $2 % 2 == 0)); then row="$number $row"; else row+="$number "; fi
  done
  echo "$row"
}

# What others were doing when the benchmark began; later on it is its own load.
LOAD_AT_START=$(cut -d ' ' -f 1 /proc/loadavg)

# Say in the results if the machine had something else to do.
remember_machine() {
  if awk -v l="$LOAD_AT_START" 'BEGIN { exit !(l > 1) }'; then
    BUSY="**The machine was not quiet**: load average $LOAD_AT_START at the start."
    note "the machine was not quiet (load average $LOAD_AT_START): take the times as rough"
  fi
}

# Which source was measured, if we have built it.
source_version() {
  if [ -n "$INSTALLED" ]; then
    echo "as installed $(date -u -r "$("$BIN/pg_config" --pkglibdir)/index_mover.so" '+%Y-%m-%d %H:%M')"
  else
    git -C "$HERE" describe --always --exclude='*' --dirty=' with changes' 2> /dev/null || echo 1.0
  fi
}

# The head of a Markdown result.
describe() {
  local model
  model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
  echo
  echo "$(date -u '+%Y-%m-%d %H:%M') UTC, index_mover $(source_version)," \
    "$("$BIN/postgres" --version), Linux $(uname -r | cut -d - -f 1), $(nproc) x ${model:-$(uname -m)}," \
    "$(awk '/^MemTotal/ { printf "%.0f GB", $2 / 1048576 }' /proc/meminfo) of memory," \
    "$(df --output=fstype "$WORK" | tail -n 1) on $(df --output=source "$WORK" | tail -n 1)." \
    "Settings: $(value "SELECT string_agg(name || ' = ' || current_setting(name), ', ' ORDER BY name) FROM pg_settings
       WHERE name IN ('shared_buffers', 'data_checksums', 'wal_level', 'full_page_writes', 'autovacuum', 'max_wal_size', 'min_wal_size',
                      'maintenance_work_mem', 'synchronous_commit', 'fsync')")."
  [ -z "$BUSY" ] || { echo; echo "$BUSY"; }
}

# Nine more indexes on pgbench_accounts, beside the primary key, in tablespace $1:
# three access methods, unique, covering, partial and on an expression.
ten_indexes() {
  sql << SQL
SET default_tablespace = $1;
CREATE INDEX accounts_bid ON pgbench_accounts (bid);
CREATE INDEX accounts_abalance ON pgbench_accounts (abalance);
CREATE INDEX accounts_bid_abalance ON pgbench_accounts (bid, abalance);
CREATE UNIQUE INDEX accounts_aid_covering ON pgbench_accounts (aid) INCLUDE (abalance);
CREATE INDEX accounts_aid_desc ON pgbench_accounts (aid DESC);
CREATE INDEX accounts_in_debt ON pgbench_accounts (aid) WHERE abalance < 0;
CREATE INDEX accounts_size ON pgbench_accounts (abs(abalance));
CREATE INDEX accounts_aid_hash ON pgbench_accounts USING hash (aid);
CREATE INDEX accounts_aid_brin ON pgbench_accounts USING brin (aid);
SQL
}
