# Servers set up otherwise: tiny buffers and logged hint bits, sessions that preload
# the library, few locks, another default tablespace, languages and just-in-time
# compilation; logical replication whose identity is the index that moves; a standby
# that lags; slots without room.
#
# Fault (replication): checksums, logged hints, compressed WAL, full_page_writes off (BRIN is
#   skipped from 16 on: see [Restrictions](../docs/reference.md#restrictions)) (also 031, 099)
# Fault (replication): shared_buffers = 1MB; just-in-time compilation; the library preloaded by
#   each session
# Fault (replication): 500 partitions with few locks; each lock of a move, from the first to
#   the last, not available
# Fault (replication): a database in another default tablespace
# Fault (replication): slots: none free, no WAL kept, far behind; a standby that is late on
#   purpose (also 041)
# Fault (replication): logical replication by the index that moves: what is decoded later,
#   transactions open at the swap
# Fault (indexes): a hundred on one table
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_faults();

my $node = new_node('odd', streaming => 1, extra => [ '--data-checksums' ], conf => <<CONF);
wal_level = logical
shared_buffers = 1MB
wal_log_hints = on
wal_compression = on
wal_init_zero = off
wal_recycle = off
full_page_writes = on
max_replication_slots = 3
max_locks_per_transaction = 10
max_connections = 20
lc_messages = 'C'
jit = on
jit_above_cost = 0
session_preload_libraries = 'index_mover'
CONF
my $moves = 0;

# German messages: what the server and the C library need is made here, if it can be.
my $locales = "$PostgreSQL::Test::Utils::tmp_check/locales";
mkdir $locales;
my $german = eval { IPC::Run::run([ 'localedef', '-i', 'de_DE', '-f', 'UTF-8', "$locales/de_DE.UTF-8" ], '>&', \my $messages) };

sub moved_ok
{
	my ($what, $name, %options) = @_;
	my $arguments = $options{arguments} || '';
	my ($rc, $out, $err) = $node->psql($options{dbname} || 'postgres',
		"SELECT DISTINCT status, sqlstate FROM move_indexes('$what', '$options{to}'$arguments)");
	is($out, 'moved|', $name) or diag $err;
	$moves++;
	return;
}

# Count the moves up to here: to be called behind the checks of what they have done.
sub count_moves
{
	count_fault('moves in odd configurations', $moves);
	$moves = 0;
	return;
}

# ---- tiny buffers, checksums, logged hints, compressed WAL, JIT, preloaded by sessions ----
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_settings WHERE name = 'index_mover.max_workers'"),
	'1', 'session_preload_libraries: each session has the library, whatever it does');
make_zoo($node, 'zoo', 2000);
# which cannot be copied
$node->safe_psql('postgres', 'DROP INDEX zoo_bloom');
$node->safe_psql('postgres', "SELECT oracle.remember_keys('zoo'), oracle.remember_metadata('zoo')");
foreach my $method ('copy', 'rebuild')
{
	foreach my $to ('regress_fast', 'regress_slow')
	{
		moved_ok('zoo', "shared_buffers = 1MB, wal_log_hints, wal_compression, jit: $method to $to",
			to => $to, arguments => ", method => '$method', settings => '{\"verify\": \"on\"}'");
	}
}
all_right($node, 'zoo', 'odd settings', max_keys => 60);
count_moves();

# ---- logical replication by the index that moves -------------------------------------
# Its own cluster as the subscriber: another database, with the changes of two
# tables, one by REPLICA IDENTITY USING INDEX, the other by its primary key.
{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE ident (a int NOT NULL, b text NOT NULL, n int);
CREATE UNIQUE INDEX ident_ab ON ident (b, a) TABLESPACE regress_slow;
ALTER TABLE ident REPLICA IDENTITY USING INDEX ident_ab;
CREATE TABLE keyed (id int PRIMARY KEY USING INDEX TABLESPACE regress_slow, n int);
INSERT INTO ident SELECT g, 'b' || g, 0 FROM generate_series(1, 3000) g;
INSERT INTO keyed SELECT g, 0 FROM generate_series(1, 3000) g;
SELECT oracle.remember_keys(t), oracle.remember_metadata(t) FROM unnest('{ident, keyed}'::regclass[]) t;
CREATE PUBLICATION moved FOR TABLE ident, keyed;
CREATE DATABASE subscriber;
SELECT pg_create_logical_replication_slot('moved', 'pgoutput');
SQL
	$node->safe_psql('subscriber', <<SQL);
CREATE TABLE ident (a int NOT NULL, b text NOT NULL, n int);
CREATE UNIQUE INDEX ident_ab ON ident (b, a);
ALTER TABLE ident REPLICA IDENTITY USING INDEX ident_ab;
CREATE TABLE keyed (id int PRIMARY KEY, n int);
INSERT INTO ident SELECT g, 'b' || g, 0 FROM generate_series(1, 3000) g;
INSERT INTO keyed SELECT g, 0 FROM generate_series(1, 3000) g;
CREATE SUBSCRIPTION moved CONNECTION 'host=@{[ $node->host ]} port=@{[ $node->port ]} dbname=postgres' PUBLICATION moved
  WITH (create_slot = false, slot_name = 'moved', copy_data = false);
SQL
	my $s = IndexMover::Session->new($node);
	my $n = 0;
	foreach my $method ('copy', 'rebuild', 'copy')
	{
		foreach my $to ('regress_fast', 'regress_slow')
		{
			# Transactions that began before the swap, and are decoded after it: one that keeps
			# no lock on what moves, having written to another table, and to this one in
			# a subtransaction that is rolled back; and, of each method once, what no session
			# has read by the time of the swap.
			my $n0 = $n++;
			my $few = $n0 % 10;
			my $unread = $to eq 'regress_fast' && $n0 < 3;
			if ($unread)
			{
				$node->safe_psql('subscriber', 'ALTER SUBSCRIPTION moved DISABLE');
				poll_until($node, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'moved'", 't', 'no session decodes');
			}
			my $open = IndexMover::Session->new($node);
			$s->run("UPDATE ident SET n = n + 1 WHERE a % 10 = $few; DELETE FROM ident WHERE a = 100 + $n; UPDATE ident SET b = 'c' || a "
				. "WHERE a = 500 + $n; UPDATE keyed SET id = id + 100000, n = n + 1 WHERE id % 100 = $few");
			$open->run("BEGIN; INSERT INTO keyed VALUES (900000 + $n, 0); SAVEPOINT a; UPDATE ident SET n = -1 WHERE a = 700; ROLLBACK "
				. "TO a");
			moved_ok('ident', "replica identity, $method to $to: moved beside an open transaction", to => $to,
				arguments => ", method => '$method'");
			$open->run("INSERT INTO ident VALUES (10000 + $n, 'open', 1); UPDATE ident SET n = n + 1 WHERE a = 700");
			$s->run("UPDATE ident SET n = n + 1 WHERE a % 7 = $few AND a <> 700; UPDATE keyed SET n = n + 1 WHERE id % 7 = $few");
			$open->run("UPDATE ident SET b = 'opened' WHERE a = 10000 + $n; COMMIT");
			$open->end;
			$node->safe_psql('subscriber', 'ALTER SUBSCRIPTION moved ENABLE') if $unread;
			moved_ok('keyed', "primary key, $method to $to: moved", to => $to, arguments => ", method => '$method'");
			$s->run("DELETE FROM ident WHERE b = 'opened'; UPDATE keyed SET n = n - 1 WHERE id % 11 = $few");
		}
	}
	$s->end;
	$node->wait_for_catchup('moved');
	foreach my $table ('ident', 'keyed')
	{
		my $rows = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM $table t";
		is($node->safe_psql('subscriber', $rows), $node->safe_psql('postgres', $rows), "the subscriber has the same rows: $table");
	}
	is($node->safe_psql('postgres',
		"SELECT relreplident, indisreplident FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid WHERE c.relname = 'ident'"),
		'i|t', 'the index is still the replica identity');
	unlike(slurp_file($node->logfile), qr/unexpected duplicate for tablespace|could not find|logical replication target relation/,
		'nothing that decoding did not understand');
	all_right($node, $_, "logical replication, $_", max_keys => 200, within => 5) for 'ident', 'keyed';
	count_moves();
	$node->safe_psql('subscriber', 'DROP SUBSCRIPTION moved');
}

# ---- a standby that lags, with and without feedback, and one without a slot's room ------
$node->safe_psql('postgres', 'DROP PUBLICATION moved');
$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('lagging');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "recovery_min_apply_delay = '2s'\nhot_standby_feedback = on\nmax_standby_streaming_delay = 1s");
$standby->start;
foreach my $feedback ('on', 'off')
{
	# not by a query: replay may cancel any
	$standby->append_conf('postgresql.conf', "hot_standby_feedback = $feedback");
	$standby->reload;
	my $reader = IndexMover::Session->new($standby);
	$reader->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM zoo WHERE grp = 5');
	moved_ok('zoo_txt', "a standby that lags 2 s, hot_standby_feedback = $feedback", to => $feedback eq 'on' ? 'regress_fast'
		: 'regress_slow', arguments => ", method => 'copy'");
	$node->safe_psql('postgres', 'UPDATE zoo SET maybe = 7 WHERE id % 50 = 1');
	# replay may have ended the session, if it was idle at the wrong moment
	eval { $reader->send('SELECT count(*) FROM zoo WHERE grp = 5'); $reader->answer; 1 }
	  or note "the reader on the standby: $@";
	$reader->end;
}
$standby->append_conf('postgresql.conf', "recovery_min_apply_delay = 0\nmax_standby_streaming_delay = 60s");
$standby->reload;
standby_ok($node, $standby, [ 'zoo', 'ident' ], 'after the lag');
$standby->stop;

# All slots are taken, and one that can keep little WAL: moves need none.
$node->safe_psql('postgres', <<SQL);
SELECT pg_create_physical_replication_slot('full_' || g, true) FROM generate_series(1, 3) g;
ALTER SYSTEM SET max_slot_wal_keep_size = '1MB';
SELECT pg_reload_conf();
SQL
moved_ok('zoo', 'no replication slot is free, and none may keep WAL', to => 'regress_fast', arguments => ", method => 'copy'");
$node->safe_psql('postgres',
	"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots; ALTER SYSTEM RESET max_slot_wal_keep_size; SELECT "
		. "pg_reload_conf()");
all_right($node, 'zoo', 'standbys and slots', max_keys => 20, within => 5);
count_moves();

# ---- few locks, many partitions -----------------------------------------------------------
{
	$node->safe_psql('postgres', 'CREATE TABLE many (i int) PARTITION BY LIST (i)');
	my $made = 0;
	# each in a transaction of its own: all at once would not fit either
	$node->safe_psql('postgres', join '', map { "CREATE TABLE many_$_ PARTITION OF many FOR VALUES IN ($_);\n" } 1 .. 500);
	$node->safe_psql('postgres', 'SET default_tablespace = regress_slow;' . join '',
		map { "CREATE INDEX many_${_}_i ON many_$_ (i);\n" } 1 .. 500);
	my ($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT status, sqlstate, count(*) FROM move_indexes('many', 'regress_fast') GROUP BY 1, 2");
	# either it finds room for its locks, or it says that there is none
	ok($rc == 0 && $out =~ /^moved\|\|500$/m || $err =~ /ERROR:  53200:/ || $out =~ /failed\|53200/,
		"500 partitions with max_locks_per_transaction = 10: $out") or diag $err;
	unlike("$out $err", qr/XX000/, 'no internal error');
	leftovers_ok($node, 'few locks', within => 5);

	# Other sessions have taken all the room there is, but for so many locks: each that a move
	# needs is the one that is not there, from the first to the last.
	foreach my $method ('copy', 'rebuild')
	{
		my $to = $method eq 'copy' ? 'regress_slow' : 'regress_fast';
		my ($refused, $moved, @others) = (0, 0);
		for (my $free = 0; !$moved && $free < 50; $free++)
		{
			my $caller = IndexMover::Session->new($node);
			my $greedy = IndexMover::Session->new($node);
			$greedy->send('SELECT count(pg_advisory_lock(77, g)) FROM generate_series(1, 1000000) g');
			$greedy->answer;
			push @others, "not all are taken: " . $greedy->errors unless $greedy->errors =~ /ERROR:  53200:/;
			$greedy->send("SELECT count(pg_advisory_unlock(77, g)) FROM generate_series(1, $free) g");
			$greedy->answer;
			$caller->send("SELECT status, sqlstate FROM move_indexes('many_7_i', '$to', method => '$method')");
			$out = $caller->answer;
			$err = $caller->errors;
			note "$method, room for $free locks: $out $err";
			$greedy->end;
			$caller->end;
			# (if none is there for the removal of the old file or index, that comes later)
			if ($out =~ /^moved\|(?:53200)?$/) { $moved++ }
			# the session's, the worker's to connect, the move's
			elsif ("$out\n$err" =~ /ERROR:  53200:|ERROR:  55000:.*\nDETAIL:  out of shared memory|^failed\|53200$/m) { $refused++ }
			else { push @others, "room for $free locks: $out $err" }
			# what it could not lock it could not remove either
			poll_until($node, "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'", 't', 'room again');
			wait_for_no_worker($node);
			$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
			wait_for_no_worker($node);
			my $left = $node->safe_psql('postgres', 'SELECT * FROM oracle.leftovers()');
			push @others, "room for $free locks: $left" if $left ne '';
		}
		is(join("\n", @others), '', "$method, no room for locks: 53200, and nothing that cannot be removed");
		cmp_ok($refused, '>', 0, "$method, no room for locks: refused $refused times");
		is($moved, 1, "$method, room for some locks: moved");
		files_ok($node, "$method, room for few locks");
		count_fault("no room for a lock of a $method", $refused);
	}
	$node->append_conf('postgresql.conf', 'max_locks_per_transaction = 128');
	$node->restart;
	($rc, $out, $err) = $node->psql('postgres',
		"SELECT status, count(*) FROM move_indexes('many', 'regress_fast') WHERE status <> 'skipped' GROUP BY 1");
	is($rc, 0, '500 partitions with more locks') or diag $err;
	unlike($out, qr/failed|canceled/, "500 partitions with more locks: $out");
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_indexes WHERE tablename LIKE 'many\\_%' AND tablespace = 'regress_fast'"),
		'500', 'all 500 are where they belong');
	leftovers_ok($node, '500 partitions', within => 5);
	files_ok($node, '500 partitions');
}

# ---- a database whose default is another tablespace --------------------------------------------
{
	$node->safe_psql('postgres', 'CREATE DATABASE elsewhere TABLESPACE regress_slow');
	setup_database($node, 'elsewhere');
	$node->safe_psql('elsewhere',
		'CREATE TABLE e (i int PRIMARY KEY); INSERT INTO e SELECT generate_series(1, 2000); SELECT oracle.remember_keys(\'e\')');
	my $dump = dump_schema($node, dbname => 'elsewhere');
	foreach my $to ('pg_default', 'regress_fast', 'regress_slow')
	{
		moved_ok('e', "database default regress_slow: to $to", to => $to, dbname => 'elsewhere');
		is($node->safe_psql('elsewhere', "SELECT reltablespace = 0 FROM pg_class WHERE relname = 'e_pkey'"), $to eq 'regress_slow' ? 't'
			: 'f',
			"database default regress_slow: to $to: recorded as core does");
		verdict_ok($node, 'e', "database default regress_slow: to $to", dbname => 'elsewhere', max_keys => 200);
	}
	dump_ok($node, $dump, 'database default regress_slow', dbname => 'elsewhere');
	leftovers_ok($node, 'database default regress_slow', dbname => 'elsewhere', within => 5);
	files_ok($node, 'database default regress_slow', dbname => 'elsewhere');
	count_moves();
	is($node->safe_psql('elsewhere', "SELECT status FROM move_indexes('e', 'regress_slow')"), 'skipped',
		'already there, by the name of the default');
}

# A server without ICU has no collation that ignores case, nor has a database in
# SQL_ASCII, which initdb makes where the environment names no locale.
my $icu = $node->safe_psql('postgres', 'SELECT getdatabaseencoding()') eq 'UTF8'
  && $node->psql('postgres', "CREATE COLLATION with_icu (provider = icu, locale = 'und')") == 0;
my $nocase = $icu ? "provider = icu, locale = 'und-u-ks-level2', deterministic = false" : "provider = libc, locale = 'C'";

# ---- kinds that no other test has ----------------------------------------------------------------
$node->safe_psql('postgres', "CREATE COLLATION nocase ($nocase)");
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE odd (id int, s text COLLATE nocase, big text, t tsvector);
CREATE INDEX odd_nocase ON odd (s) TABLESPACE regress_slow;
CREATE UNIQUE INDEX odd_nulls ON odd (id) NULLS NOT DISTINCT TABLESPACE regress_slow;
CREATE INDEX odd_big ON odd (md5(big)) TABLESPACE regress_slow;
CREATE INDEX odd_part ON odd (id) TABLESPACE regress_slow WHERE s = 'ABC';
INSERT INTO odd VALUES (NULL, 'null', 'x');
INSERT INTO odd SELECT g, CASE g % 3 WHEN 0 THEN 'abc' WHEN 1 THEN 'ABC' ELSE 'other ' || g END, repeat(md5(g::text), 300)
  FROM generate_series(1, 300) g;
-- a function that is not what it says, and one that reads its own table
CREATE TABLE self (i int);
CREATE FUNCTION self_count(i int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT count(*)::int % 3 + $1 FROM public.self WHERE false';
CREATE INDEX self_i ON self (self_count(i)) TABLESPACE regress_slow;
INSERT INTO self SELECT generate_series(1, 200);
CREATE TABLE bound (id int PRIMARY KEY USING INDEX TABLESPACE regress_slow, d int NOT NULL, e text,
	CONSTRAINT bound_d UNIQUE (d) INCLUDE (e) USING INDEX TABLESPACE regress_slow DEFERRABLE INITIALLY DEFERRED);
CREATE UNIQUE INDEX bound_ident ON bound (id, d) TABLESPACE regress_slow;
ALTER TABLE bound REPLICA IDENTITY USING INDEX bound_ident;
ALTER TABLE bound CLUSTER ON bound_pkey;
INSERT INTO bound SELECT g, 100000 - g, 'e' || g FROM generate_series(1, 500) g;
CREATE TABLE hundred (id int, v int);
INSERT INTO hundred SELECT g, g % 7 FROM generate_series(1, 500) g;
DO $$ BEGIN
	FOR i IN 1 .. 100 LOOP
		EXECUTE format('CREATE INDEX hundred_%s ON hundred (id, (v + %s)) TABLESPACE regress_slow', i, i);
	END LOOP;
END $$;
SQL
my @odd = qw(odd self bound hundred);
$node->safe_psql('postgres', "SELECT oracle.remember_keys('$_'), oracle.remember_metadata('$_')") for @odd;
append_to_file($node->basedir . '/odd.sql', <<'SQL');
\set i random(1, 300)
\set j random(1, 2000000000)
UPDATE odd SET s = CASE :j % 4 WHEN 0 THEN 'Abc' WHEN 1 THEN 'ABC' ELSE 'other ' || :j END, big = repeat(md5(:j::text), 300) WHERE id = :i;
UPDATE self SET i = i + 1 WHERE i = :i;
BEGIN;
UPDATE bound SET d = (SELECT d FROM bound WHERE id = 301 - :i) WHERE id = :i;
UPDATE bound SET d = :j + 200000 WHERE id = 301 - :i;
COMMIT;
UPDATE hundred SET v = v + 1 WHERE id = :i;
DELETE FROM hundred WHERE id = 600;
INSERT INTO hundred VALUES (600, :j % 1000);
SQL
foreach my $method ('copy', 'rebuild')
{
	my $to = $method eq 'copy' ? 'regress_fast' : 'regress_slow';
	my $written = '';
	my $load = IPC::Run::start([ 'pgbench', '-n', '-c', '1', '-T', '900', '-f', $node->basedir . '/odd.sql', $node->connstr('postgres') ],
		'>&', \$written, IPC::Run::timer($IndexMover::Test::TIMEOUT * 2));
	# (whether a rebuild moves a deferrable constraint's depends on the minor version)
	moved_ok($_, "$_ by $method, under writes", to => $to, arguments => ", method => '$method'") for qw(odd self hundred),
		$method eq 'copy' ? 'bound' : ();
	$load->signal('TERM');
	eval { $load->finish };
	# what PostgreSQL itself says to one who writes meanwhile, but not a thing more
	unlike($written, qr/ERROR|FATAL|PANIC/, "$method: no writer had an error");
	is($node->safe_psql('postgres',
		"SET enable_seqscan = off; SELECT count(*) = (SELECT count(*) FROM odd WHERE lower(s COLLATE \"C\") = 'abc') FROM odd WHERE s = "
			. "'aBc'"), $icu ? 't' : 'f', "$method: a collation that ignores case");
	my ($rc, $out, $err) = $node->psql('postgres', 'INSERT INTO odd VALUES (NULL)');
	like($err, qr/duplicate key/, "$method: NULLS NOT DISTINCT is still enforced");
	leftovers_ok($node, "odd kinds, $method", within => 5);
	files_ok($node, "odd kinds, $method");
	foreach my $table (@odd)
	{
		metadata_ok($node, $table, "$table by $method");
		# a hundred are looked up once
		verdict_ok($node, $table, "$table by $method", max_keys => 20) unless $table eq 'hundred' && $method eq 'copy';
	}
	count_moves();
}
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_indexes WHERE tablename = 'hundred' AND tablespace = 'regress_slow'"), '100',
	'a hundred indexes of one table');

# ---- messages in another language ------------------------------------------------------------------
SKIP:
{
	skip 'cannot make a German locale', 1 unless $german;
	$node->append_conf('postgresql.conf', "lc_messages = 'de_DE.UTF-8'");
	{
		local $ENV{LOCPATH} = $locales;
		$node->restart;
	}
	my ($rc, $out, $err) = $node->psql('postgres', 'SELECT * FROM nosuch');
	skip 'the server has no German messages', 1 if $err !~ /existiert nicht/;
	foreach my $method ('copy', 'rebuild')
	{
		# one that waits for a session and gives up, one that is canceled while it waits
		my $holder = IndexMover::Session->new($node);
		$holder->run('BEGIN; UPDATE odd SET big = big WHERE id = 7');
		($rc, $out, $err) = $node->psql('postgres',
			"SELECT status, sqlstate FROM move_indexes('odd_big', 'regress_fast', method => '$method', settings => "
				. "'{\"lock_wait\": \"500ms\", \"on_blocker\": \"fail\"}') WHERE name = 'odd_big'");
		like($out, qr/^(?:failed|skipped)\|55P03$/, "lc_messages, $method: gives up waiting") or diag $err;
		my $call = start_call($node, 'german', "SELECT status, sqlstate FROM move_indexes('odd_big', 'regress_fast', method => '$method')");
		my $worker = wait_for_phase($node, 'waiting%');
		# one that comes as lock_timeout fires is lost: core tells both by SIGINT
		for (my $left = 20; $left > 0 && call_is_running($call); $left--)
		{
			$node->safe_psql('postgres', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $worker");
			sleep 1;
		}
		($rc, $out, $err) = finish_call($call);
		is($out, "canceled|57014\n", "lc_messages, $method: canceled") or diag $err;
		$holder->run('COMMIT');
		$holder->end;
		moved_ok('odd_big', "lc_messages, $method: moved", to => 'regress_fast', arguments => ", method => '$method'");
		moved_ok('odd_big', "lc_messages, $method: moved back", to => 'regress_slow', arguments => ", method => 'copy'");
	}
	# what an index depends on is said in German here
	all_right($node, 'odd', 'lc_messages', max_keys => 20, within => 5, restarted => 1, no_metadata => 1);
	count_moves();
}
leftovers_ok($node, 'at the end', within => 5);

$node->stop;
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'checksums on disk are valid');
done_testing();
