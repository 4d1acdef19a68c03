# A rebuild gives way to DDL that wants the table for itself.  The row says to whom,
# and the server log what that process runs; and what the interrupted rebuild has
# left is removed even where the DDL has made a valid index of it, rightly so for
# whoever has begun to use it: a REPEATABLE READ reader is there meanwhile.  Where the
# DDL drops the table, the row says so.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('altered', conf => "deadlock_timeout = 3s\n");

# An index whose build waits while a session holds advisory lock 42.
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION gate(i bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	PERFORM pg_advisory_lock_shared(42);
	PERFORM pg_advisory_unlock_shared(42);
	RETURN i;
END $$;
CREATE TABLE other (i int);
CREATE SCHEMA elsewhere;
SQL

my $indexes = "SELECT string_agg(c.relname || CASE WHEN i.indisvalid THEN '' ELSE '!' END, ' ' ORDER BY c.relname)"
  . " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = 'am'::regclass";
my $calls = 0;

sub new_table
{
	$node->safe_psql('postgres', <<'SQL');
DROP TABLE IF EXISTS am, elsewhere.am;
DROP TABLE IF EXISTS am2;
CREATE TABLE am (id int PRIMARY KEY, v int, w int);
INSERT INTO am SELECT g, g, g FROM generate_series(1, 100) g;
CREATE INDEX am_gate ON am (gate(v)) TABLESPACE regress_slow;
CREATE INDEX am_w ON am (w);
SQL
	return;
}

# Start to rebuild am_gate, and stop it when the new index is there and
# maintained, but not valid.  Returns the call and the session it waits for.
sub rebuild_up_to_snapshots
{
	my ($builder, $reader) = (IndexMover::Session->new($node), IndexMover::Session->new($node));
	$builder->run('SELECT pg_advisory_lock(42)');
	my $call = start_call($node, 'call' . ++$calls,
		"SELECT status, sqlstate, detail FROM move_indexes('am_gate', 'regress_fast', 'rebuild')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1', 'build');
	$reader->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM other');
	$builder->run('SELECT pg_advisory_unlock(42)');
	$builder->end;
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for old snapshots' AND "
		  . $reader->pid . ' = ANY (blocked_by)', '1', 'snapshots');
	return ($call, $reader);
}

sub wait_queued
{
	my ($session) = @_;
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $session->pid, 't', 'the DDL waits');
	return;
}

# ---------------------------------------------------------------------------
# Each kind of DDL, that comes while the rebuild waits for a reader's snapshot
# ---------------------------------------------------------------------------
# The row says who it gave way to; only the log since this position, what that process
# wants: its first command that waits.
sub gave_way_ok
{
	my ($row, $sql, $log, $name) = @_;
	my ($command) = split /;/, $sql;
	my $to = qr/gave way to process (\d+), which waits for a lock on the table or the index/;
	like($row, qr/^failed\|55006\|$to$/, "$name: the row");
	like(slurp_file($node->logfile, $log), qr/DETAIL:  $to: Process \1: \Q$command\E;$/m, "$name: the log has the command");
	return;
}

my @ddl = (
	[ 'TRUNCATE am' ],
	[ 'CLUSTER am USING am_pkey' ],
	[ 'VACUUM FULL am' ],
	[ 'REINDEX TABLE am' ],
	[ 'REINDEX INDEX am_gate' ],
	[ 'ALTER TABLE am ALTER w TYPE bigint' ],
	[ 'ALTER TABLE am SET UNLOGGED' ],
	[ 'ALTER TABLE am ALTER v TYPE bigint' ],
	[ 'ALTER INDEX am_gate SET TABLESPACE pg_default' ],
	[ 'ALTER INDEX am_gate SET (fillfactor = 60)' ],
	[ 'ALTER INDEX am_gate RENAME TO am_renamed', indexes => 'am_pkey am_renamed am_w', index => 'am_renamed' ],
	[ 'ALTER TABLE am SET SCHEMA elsewhere', undo => 'ALTER TABLE elsewhere.am SET SCHEMA public' ],
	[ 'ALTER TABLE am ADD x int' ],
	[ 'DROP INDEX am_gate', indexes => 'am_pkey am_w', index => '' ],
	[ 'DROP INDEX am_gate; CREATE INDEX am_gate ON other (i)', indexes => 'am_pkey am_w', index => '', undo => 'DROP INDEX am_gate' ],
	[ 'ALTER TABLE am RENAME TO am2; DROP TABLE am2', index => '', indexes => undef ],
);

for my $kind (@ddl)
{
	my ($sql, %expect) = @$kind;
	my $log = -s $node->logfile;
	new_table();
	my ($call, $reader) = rebuild_up_to_snapshots();
	my $ddl = IndexMover::Session->new($node);
	$ddl->send($sql =~ /;/ ? "BEGIN; $sql; COMMIT" : $sql);
	wait_queued($ddl);
	$reader->run('COMMIT');
	my ($status, $out, $err) = finish_call($call);
	chomp $out;
	gave_way_ok($out, $sql, $log, $sql);
	$ddl->answer;
	is($ddl->errors, '', "$sql: it is done");
	$node->safe_psql('postgres', $expect{undo}) if $expect{undo};
	my $names = exists $expect{indexes} ? $expect{indexes} : 'am_gate am_pkey am_w';
	poll_until($node, $indexes, $names, "$sql: leftovers", timeout => 10) if defined $names;
	wait_for_no_worker($node);
	leftovers_ok($node, $sql, within => 5);
	files_ok($node, $sql);
	my $index = exists $expect{index} ? $expect{index} : 'am_gate';
	if ($index)
	{
		is($node->safe_psql('postgres', "SELECT status FROM move_indexes('$index', 'regress_fast', 'rebuild')"),
			'moved', "$sql: the next call moves it");
		verdict_ok($node, 'am', $sql) unless $sql =~ /TRUNCATE/;
	}
	$_->end foreach $ddl, $reader;
}

# ---------------------------------------------------------------------------
# The table's owner, whom pg_stat_activity does not show the command of another role's session
# ---------------------------------------------------------------------------
{
	my $name = 'another role than the owner';
	my $sql = "ALTER TABLE am ADD s text DEFAULT 'secret-of-dba'";
	my $log = -s $node->logfile;
	new_table();
	$node->safe_psql('postgres', 'CREATE ROLE regress_alice; ALTER TABLE am OWNER TO regress_alice; '
		. 'GRANT EXECUTE ON FUNCTION gate TO regress_alice');
	my ($call, $reader) = rebuild_up_to_snapshots();
	my $ddl = IndexMover::Session->new($node);
	$ddl->send($sql);
	wait_queued($ddl);
	my $alice = 'SET ROLE regress_alice; ';
	is($node->safe_psql('postgres', $alice . 'SELECT query FROM pg_stat_activity WHERE pid = ' . $ddl->pid),
		'<insufficient privilege>', "$name: the command is not for her");
	$reader->run('COMMIT');
	my ($status, $out, $err) = finish_call($call);
	chomp $out;
	gave_way_ok($out, $sql, $log, $name);
	unlike($err, qr/secret-of-dba/, "$name: nor does the caller get it");
	my $rows = $node->safe_psql('postgres', $alice . 'SELECT h FROM index_mover_history h ORDER BY job DESC LIMIT 1');
	like($rows, qr/gave way to process/, "$name: she sees the row");
	unlike($rows, qr/secret-of-dba/, "$name: without the command");
	$ddl->answer;
	$_->end foreach $ddl, $reader;
	wait_for_no_worker($node);
	$node->safe_psql('postgres', 'DROP TABLE am; DROP OWNED BY regress_alice; DROP ROLE regress_alice');
}

# ---------------------------------------------------------------------------
# A reader that has begun to use what the DDL has made valid
# ---------------------------------------------------------------------------
# He comes to the table in the moment of the DDL's commit, so before anything can
# be removed.  A killed worker in the middle of that is a case of its own.
for my $sql ('TRUNCATE am; INSERT INTO am SELECT g, g, g FROM generate_series(1, 50) g', 'CLUSTER am USING am_pkey',
	'REINDEX TABLE am', 'ALTER TABLE am ALTER w TYPE bigint', 'ALTER TABLE am ALTER v TYPE bigint')
{
	for my $kill (picked { $_ ? $sql =~ /TRUNCATE/ : $sql =~ /ALTER v/ } "ends at $sql", 0, 1)
	{
		my $name = $sql . ($kill ? ', kill -9' : '');
		my $log = -s $node->logfile;
		new_table();
		my ($call, $snapshot) = rebuild_up_to_snapshots();
		my ($ddl, $reader) = (IndexMover::Session->new($node), IndexMover::Session->new($node));
		$ddl->send("BEGIN; $sql");
		wait_queued($ddl);
		$snapshot->run('COMMIT');
		my ($status, $out, $err) = finish_call($call);
		chomp $out;
		gave_way_ok($out, $sql, $log, $name);
		$ddl->answer;
		$reader->run('SET enable_seqscan = off; BEGIN ISOLATION LEVEL REPEATABLE READ');
		$reader->send('SELECT count(*) FROM am WHERE gate(v) BETWEEN 1 AND 40');
		wait_queued($reader);
		$ddl->run('COMMIT');
		my $by_index = $reader->answer;
		poll_until($node, $indexes, 'am_gate am_gate_ccnew! am_pkey am_w', "$name: the duplicate is out of use");
		my $flags = "SELECT indisvalid, indisready, indislive FROM pg_index WHERE indexrelid = 'am_gate_ccnew'::regclass";
		poll_until($node, 'SELECT count(*) FROM index_mover_progress WHERE ' . $reader->pid . ' = ANY (blocked_by)', '1',
			"$name: waits for the reader");
		is($node->safe_psql('postgres', $flags), 't|t|t' =~ s/^t/f/r, "$name: writers maintain it as long as the reader is there");
		my $check = 'SET LOCAL enable_seqscan = %s; SET LOCAL enable_indexscan = %s; SET LOCAL enable_bitmapscan = %2$s; SELECT count(*) '
			. 'FROM am WHERE gate(v) BETWEEN 1 AND 40';
		$node->safe_psql('postgres', 'INSERT INTO am VALUES (1001, 1001, 1)');
		is($reader->run(sprintf($check, 'off', 'on')), $reader->run(sprintf($check, 'on', 'off')), "$name: the reader's answers");
		is($reader->run(sprintf($check, 'on', 'off')), $by_index, "$name: the same as the first time");
		if ($kill)
		{
			kill 'KILL', worker_pid($node);
			$_->end foreach $ddl, $reader, $snapshot;
			wait_until_up($node);
			is($node->safe_psql('postgres', 'SELECT kind, action, object FROM index_mover_cleanup(true)'),
				'duplicate index|remove|public.am_gate_ccnew', "$name: what index_mover_cleanup() would remove");
			$reader = IndexMover::Session->new($node);
			$reader->run('BEGIN; SELECT count(*) FROM am');
			my $cleanup = IndexMover::Session->new($node);
			$cleanup->run("SET index_mover.progress_interval = '100ms'");
			$cleanup->send('SELECT action FROM index_mover_cleanup()');
			poll_until($node, 'SELECT count(*) FROM index_mover_progress WHERE ' . $reader->pid . ' = ANY (blocked_by)', '1',
				"$name: cleaning up");
			is($node->safe_psql('postgres', $flags), 'f|t|t', "$name: a cleanup waits for readers again before it goes on");
			my $says = qr/index "am_gate_ccnew": cleaning up, waits for process ${\$reader->pid}$/m;
			for (1 .. 200)
			{
				last if $cleanup->has_answered || $cleanup->errors =~ $says;
				usleep(50_000);
			}
			like($cleanup->errors, $says, "$name: and says so");
			$reader->run('COMMIT');
			is($cleanup->answer, 'removed', "$name: and then removes it");
			$_->end foreach $cleanup, $reader;
		}
		else
		{
			$reader->run('COMMIT');
			poll_until($node, $indexes, 'am_gate am_pkey am_w', "$name: leftovers", timeout => 10);
			$_->end foreach $ddl, $reader, $snapshot;
		}
		is($node->safe_psql('postgres', $indexes), 'am_gate am_pkey am_w', "$name: nothing is left");
		wait_for_no_worker($node);
		leftovers_ok($node, $name, within => 5);
		files_ok($node, $name);
		verdict_ok($node, 'am', $name);
	}
}

# ---------------------------------------------------------------------------
# A killed worker's leftover, made valid before it was looked for; beside it a
# stranger's, of core, which is made valid by the same command
# ---------------------------------------------------------------------------
for my $sql ('VACUUM FULL am', 'ALTER TABLE am ALTER v TYPE bigint')
{
	new_table();
	my ($gate, $stranger) = (IndexMover::Session->new($node), IndexMover::Session->new($node));
	$gate->run('SELECT pg_advisory_lock(42)');
	$stranger->send('REINDEX INDEX CONCURRENTLY am_gate');
	poll_until($node, "SELECT count(*) FROM pg_stat_progress_create_index WHERE phase LIKE 'building index%'", '1');
	$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $stranger->pid . ')');
	$stranger->answer;
	$gate->run('SELECT pg_advisory_unlock(42)');
	$_->end foreach $gate, $stranger;

	my ($call, $reader) = rebuild_up_to_snapshots();
	kill 'KILL', worker_pid($node);
	finish_call($call);
	$reader->end;
	wait_until_up($node);
	is($node->safe_psql('postgres', $indexes), 'am_gate am_gate_ccnew! am_gate_ccnew1! am_pkey am_w', "killed, then $sql: two leftovers");
	$node->safe_psql('postgres', $sql);
	is($node->safe_psql('postgres', $indexes), 'am_gate am_gate_ccnew am_gate_ccnew1 am_pkey am_w', "killed, then $sql: both valid");
	is($node->safe_psql('postgres', 'SELECT kind, action, object FROM index_mover_cleanup(true)'),
		'duplicate index|remove|public.am_gate_ccnew1', "killed, then $sql: only ours would be removed");
	is($node->safe_psql('postgres',
		"SELECT string_agg(name, ' ') FROM move_indexes('am', 'regress_fast', 'rebuild', dry_run => true) WHERE detail LIKE '%rebuild "
			. "that is running, or was interrupted%'"),
		'am_gate_ccnew1', "killed, then $sql: the plan knows it");
	is($node->safe_psql('postgres', "SELECT name, status FROM move_indexes('am_gate', 'regress_fast', 'rebuild')"),
		'am_gate|moved', "killed, then $sql: the next call moves");
	is($node->safe_psql('postgres', $indexes), 'am_gate am_gate_ccnew am_pkey am_w',
		"killed, then $sql: and removes ours, not the stranger's");
	$node->safe_psql('postgres', 'DROP INDEX am_gate_ccnew');
	leftovers_ok($node, "killed, then $sql", within => 5);
	files_ok($node, "killed, then $sql");
	verdict_ok($node, 'am', "killed, then $sql");
}

# ---------------------------------------------------------------------------
# A call that finds all in place cleans up, and nothing else goes on record
# ---------------------------------------------------------------------------
{
	new_table();
	my ($call, $reader) = rebuild_up_to_snapshots();
	kill 'KILL', worker_pid($node);
	finish_call($call);
	$reader->end;
	wait_until_up($node);
	$node->safe_psql('postgres', 'REINDEX TABLE am');
	my $before = $node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_history');
	is($node->safe_psql('postgres', "SELECT status FROM move_indexes('am_gate', 'regress_slow', 'rebuild', wait => false)"),
		'skipped', 'all in place: nothing to be moved');
	poll_until($node, $indexes, 'am_gate am_pkey am_w', 'all in place: the duplicate is removed', timeout => 20);
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_history'), $before, 'all in place: no move on record');
	leftovers_ok($node, 'all in place', within => 5);
	files_ok($node, 'all in place');
}

# ---------------------------------------------------------------------------
# What another object relies on is not ours any more
# ---------------------------------------------------------------------------
for my $sql ('ALTER INDEX am_gate_ccnew RENAME TO "Am mine"', 'ALTER TABLE am CLUSTER ON am_gate_ccnew',
	'ALTER INDEX am_gate_ccnew SET (fillfactor = 50)', 'DROP INDEX am_gate')
{
	new_table();
	my ($call, $reader) = rebuild_up_to_snapshots();
	kill 'KILL', worker_pid($node);
	finish_call($call);
	$reader->end;
	wait_until_up($node);
	$node->safe_psql('postgres', "REINDEX TABLE am; $sql");
	my $before = $node->safe_psql('postgres', $indexes);
	my $from = -s $node->logfile;
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup(true)'), '0', "$sql: nothing to be removed");
	is($node->safe_psql('postgres', "SELECT status FROM move_indexes('am_w', 'regress_fast', 'rebuild')"), 'moved',
		"$sql: a move of another index");
	is($node->safe_psql('postgres', $indexes), $before, "$sql: nothing is removed");
	my $log = slurp_file($node->logfile, $from);
	my $warned = $log =~ /WARNING: .*index "public\.(\w+|Am mine)" has been left by an interrupted move, but was changed since/ ? 1 : 0;
	is($warned, 1, "$sql: a warning says so");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '0', "$sql: and it is forgotten");
}

# ... as the replica identity, of an index that a row of the ledger names
{
	new_table();
	$node->safe_psql('postgres', <<'SQL');
CREATE UNIQUE INDEX am_u ON am (id);
CREATE UNIQUE INDEX am_u_ccnew ON am (id);
INSERT INTO index_mover.ledger
SELECT 1000000, system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()), 'i', 0, 0,
       'am'::regclass, 'am_u'::regclass, 'am_u_ccnew'::regclass, 1000000, 0, now(), 'am_u_ccnew'
  FROM pg_control_system();
SQL
	my $listed = 'SELECT string_agg(kind, $$,$$) FROM index_mover_cleanup(true)';
	is($node->safe_psql('postgres', $listed), 'duplicate index', 'a duplicate that nothing relies on would be removed');
	$node->safe_psql('postgres', 'ALTER TABLE am REPLICA IDENTITY USING INDEX am_u_ccnew');
	is($node->safe_psql('postgres', $listed), '', 'one that is the replica identity would not');
	$node->safe_psql('postgres', 'DELETE FROM index_mover.ledger');
}

# ---------------------------------------------------------------------------
# What cannot be dropped is a WARNING, and stays on record
# ---------------------------------------------------------------------------
{
	my $name = 'made part of a partitioned index';
	new_table();
	my ($call, $reader) = rebuild_up_to_snapshots();
	kill 'KILL', worker_pid($node);
	finish_call($call);
	$reader->end;
	wait_until_up($node);
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE am_all (id int NOT NULL, v int, w int) PARTITION BY RANGE (id);
ALTER TABLE am_all ATTACH PARTITION am DEFAULT;
CREATE INDEX am_all_gate ON ONLY am_all (gate(v));
ALTER INDEX am_all_gate ATTACH PARTITION am_gate_ccnew;
SQL
	my $from = -s $node->logfile;
	my ($rc, $out, $err) = $node->psql('postgres', 'SELECT kind, object FROM index_mover_cleanup()');
	ok($node->log_contains(
		joined(
			qr/WARNING:  2BP01: could not remove index with OID .*, left by an interrupted move\n.*DETAIL:  cannot drop index /,
			qr/\S*am_gate_ccnew because /), $from),
		"$name: a warning says why it is not removed");
	is($node->safe_psql('postgres', $indexes), 'am_gate am_gate_ccnew! am_pkey am_w', "$name: it is still there") or diag $err;
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '1', "$name: and on record");
	$node->safe_psql('postgres', 'ALTER TABLE am_all DETACH PARTITION am; DROP TABLE am_all');
	$node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()');
	is($node->safe_psql('postgres', $indexes), 'am_gate am_pkey am_w', "$name: detached, it is removed");
	leftovers_ok($node, $name, within => 5);
	files_ok($node, $name);
}

# ---------------------------------------------------------------------------
# A table that is dropped meanwhile: the row says what has happened, not what the
# move has stumbled over.  And a table whose last job is still cleaning up
# ---------------------------------------------------------------------------
{
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE d (i int);
INSERT INTO d SELECT generate_series(1, 1000);
CREATE INDEX d_1 ON d (i);
CREATE TABLE kept (i int);
INSERT INTO kept SELECT generate_series(1, 100);
CREATE INDEX kept_1 ON kept (i);
SELECT oracle.remember_keys('kept'), oracle.remember_metadata('kept');
SQL

	# hold the rebuild up until the DROP stands behind it
	my $writer = IndexMover::Session->new($node);
	$writer->run('BEGIN; INSERT INTO d VALUES (0)');
	my $job = $node->safe_psql('postgres', "SELECT DISTINCT job FROM move_indexes('d', 'regress_fast', 'rebuild', wait => false)");
	poll_until($node, "SELECT count(*) = 1 FROM index_mover_progress WHERE job = $job AND phase = 'waiting for writers before build'", 't',
		'the rebuild');
	my $drop = start_call($node, 'dropper', 'DROP TABLE d');
	poll_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'd'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted",
		't', 'the DROP');
	$writer->run('COMMIT');
	my ($status, $out, $err) = finish_call($drop);
	is($err, '', 'the table is dropped');
	wait_for_no_worker($node);
	like($node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job"),
		qr/^skipped\|42704\|.*dropped/, 'the row says so in plain words');
	survived_ok($node, 'kept', 'dropped meanwhile', "SELECT status FROM move_indexes('kept', 'regress_fast', 'rebuild')");

	# A job that was canceled while it built, and cannot remove yet what it has made,
	# because a session reads the table: it is not free for another.
	$node->safe_psql('postgres', <<'SQL');
CREATE INDEX kept_gate ON kept (gate(i));
SELECT oracle.remember_keys('kept'), oracle.remember_metadata('kept');
SQL
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	$job = $node->safe_psql('postgres', "SELECT DISTINCT job FROM move_indexes('kept_gate', 'regress_fast', 'rebuild', wait => false)");
	poll_until($node, "SELECT count(*) = 1 FROM index_mover_progress WHERE job = $job AND phase = 'building index'", 't', 'the build');
	$writer->run('BEGIN; SELECT count(*) FROM kept');
	$node->safe_psql('postgres', "SELECT cancel_move($job); CALL wait_for_move($job, raise => false)");
	($status, $out, $err) = $node->psql('postgres', "SELECT * FROM move_indexes('kept_gate', 'regress_fast', 'rebuild', wait => false)",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($err, qr/55006: relation "kept" is already being moved\n.*Job $job \(process \d+\) has ended and is still cleaning up\./,
		'a job that is cleaning up');
	$writer->run('COMMIT');
	$gate->run('SELECT pg_advisory_unlock(42)');
	survived_ok($node, 'kept', 'canceled, then it is free', "SELECT status FROM move_indexes('kept_gate', 'regress_fast', 'rebuild')");
}
$node->stop;
done_testing();
