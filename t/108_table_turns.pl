# A copy that waits for its lock gives its turn to another relation of its job: beside a pause,
# a cancel, an idle worker, a default for partitions, and another worker of the job.  (049 has
# who gets the turns.)  And what a copy that has too much left to ask for its lock does to the
# others of its job; and that the copy of one worker is no leftover for another.
#
# Fault (processes): all workers of a job wait for locks; a job is paused, or canceled with and
#   without its files, while a relation has given its turn; another worker cancels the rest while
#   one is being put back; one of two that wait has too much left to ask for its lock; a
#   partition, or its parent, is in use; one copy fails beside another
# Fault (processes): partitions are copied, and swapped, together: one is in use for long, alone or beside queries of
#   all; others write much WAL; another worker has their indexes; an error in the copy of one, or
#   under the lock; DDL of two; a cancel of the job or its worker; the worker ends
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $node = new_node('turns', conf => "autovacuum = off\nmax_worker_processes = 20\nindex_mover.resumable_size = 1MB");
my $can_go_on = $node->pg_version >= 17;
if ($can_go_on)
{
	# (without the library it is not known whether a device has kept a file)
	$node->append_conf('postgresql.conf', "summarize_wal = on\nshared_preload_libraries = 'index_mover'");
	$node->restart;
}
my $s = IndexMover::Session->new($node);
$node->safe_psql("postgres", "CREATE TABLESPACE regress_near LOCATION ''");
$node->safe_psql("postgres", <<'SQL');
SET default_tablespace = regress_slow;
SELECT format('CREATE SCHEMA %I', s) FROM unnest('{paused, put_back, kept}'::name[]) s \gexec
SELECT format('CREATE TABLE %I.%I AS SELECT g, repeat(%L, 800) AS t FROM generate_series(1, %s) g', s, t, 'x', n)
  FROM unnest('{paused, put_back, kept}'::name[]) s, (VALUES ('a', 2000), ('b', 4000), ('c', 6000)) t (t, n)
 WHERE t <> 'c' OR s = 'put_back' \gexec
CREATE SCHEMA room;
SELECT format('CREATE TABLE room.%I AS SELECT g, repeat(%L, 800) AS t FROM generate_series(1, %s) g', t, 'x', n)
  FROM (VALUES ('a', 10), ('b', 20), ('c', 15000), ('d', 16000), ('e', 17000),
		('f', 17100), ('g', 17200), ('h', 17300)) t (t, n) \gexec
CREATE SCHEMA starve;
SELECT format('CREATE TABLE starve.%I TABLESPACE %I AS SELECT g, repeat(%L, 800) AS t FROM generate_series(1, %s) g', t, s, 'x', n)
  FROM (VALUES ('a', 'regress_near', 100), ('d', 'regress_slow', 200), ('e', 'regress_near', 400), ('q', 'regress_slow', 800))
       t (t, s, n) \gexec
CREATE SCHEMA defaults;
CREATE TABLE defaults.p (i int) PARTITION BY RANGE (i);
CREATE TABLE defaults.p1 PARTITION OF defaults.p DEFAULT;
INSERT INTO defaults.p SELECT generate_series(1, 1000);
CREATE SCHEMA beside;
CREATE TABLE beside.a AS SELECT 1 AS g;
CREATE TABLE beside.b AS SELECT g, repeat('x', 800) AS t FROM generate_series(1, 6000) g;
CREATE SCHEMA crowded;
CREATE TABLE crowded.a AS SELECT g, repeat('x', 800) AS t, 0 AS n FROM generate_series(1, 2000) g;
CREATE TABLE crowded.b AS SELECT g, repeat('x', 800) AS t FROM generate_series(1, 2000) g;
CHECKPOINT;
SQL

# Sessions that hold tables, without end.
sub hold
{
	my @sessions = map { IndexMover::Session->new($node) } @_;
	$sessions[$_]->run("BEGIN; LOCK TABLE $_[$_] IN ACCESS SHARE MODE") for 0 .. $#_;
	return @sessions;
}

sub begin
{
	my ($schema, $workers) = @_;
	return $s->run("SELECT max(job) FROM move_schema_tables('$schema', 'regress_fast', wait => false, "
		. "settings => '{\"max_workers\": $workers}')");
}

sub states
{
	my ($job) = @_;
	return $s->run("SELECT string_agg(split_part(name, '.', 2) || ' ' || status, ', ' ORDER BY name) FROM index_mover_history "
		. "WHERE job = $job AND kind = 'table'");
}

sub waits_ok
{
	my ($job, $name) = @_;
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND name = '$name' AND blocked_by <> '{}'", '1',
		"$name waits for its lock");
	return;
}

# ---- a pause is no wait ------------------------------------------------------------------
{
	my @holders = hold('paused.a');
	my $job = begin('paused', 1);
	waits_ok($job, 'paused.a');
	my $since = $s->run("SELECT blocked_since FROM index_mover_progress WHERE job = $job");
	$s->run("SELECT pause_move($job)");
	poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'pause_move()', 'the pause');
	my $paused = $s->run('SELECT clock_timestamp()');
	poll_until($node, "SELECT clock_timestamp() > '$paused'::timestamptz + interval '6 s'", 't', 'a pause of six seconds');
	my $resumed = $s->run('SELECT clock_timestamp()');
	$s->run("SELECT resume_move($job)");
	poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job AND name = 'paused.b'", 'moved', 'it gives its turn');
	cmp_ok($s->run("SELECT extract(epoch FROM '$paused'::timestamptz - '$since' + (started_at - '$resumed')) FROM index_mover_history "
		. "WHERE job = $job AND name = 'paused.b'"), '>=', 4, 'when it has waited for five seconds, not counting the pause');
	$_->end for @holders;
	wait_for_job_end($node, $job);
	is(states($job), 'a moved, b moved', 'both are moved');
}

# ---- those that wait make room ------------------------------------------------------------
# Both workers wait: two more work in their place, and no more than two.  When nothing waits any more, the
# two that are too many end, so that there are as many as before when others wait.
{
	my @holders = hold('room.a', 'room.b');
	my $log = -s $node->logfile;
	my $workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover'";
	set_tests($node, test_mutation => 'runners:4');
	# (the old and the new files share a file system, which has room for all of them)
	my $job = $s->run("SELECT max(job) FROM move_schema_tables('room', 'regress_fast', wait => false, "
		. q[settings => '{"max_workers": 2, "max_rate": "1MB"}')]);
	waits_ok($job, "room.$_") foreach 'a', 'b';
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND name ~ '[cd]\$'", '2',
		'two more workers have a relation each');
	is(states($job), 'a running, b running, c running, d running, e queued, f queued, g queued, h queued', 'the others are queued');
	is($s->run($workers), '4', 'for there is no fifth worker');
	$_->end for @holders;
	poll_until($node, "SELECT count(*) FROM index_mover_history WHERE job = $job AND name ~ '[ab]\$' AND status = 'moved'", '2',
		'both are moved when they are free');
	poll_until($node, $workers, '2', 'the two workers that are too many end');
	is(states($job), 'a moved, b moved, c running, d running, e queued, f queued, g queued, h queued', 'the others go on');
	@holders = hold('room.e', 'room.f');
	$s->run("SELECT alter_move($job, 'max_rate', '0')");
	waits_ok($job, "room.$_") foreach 'e', 'f';
	poll_until($node, "SELECT count(*) FROM index_mover_history WHERE job = $job AND name ~ '[cdgh]\$' AND status = 'moved'", '4',
		'what no session holds is moved while they wait');
	is(states($job), 'a moved, b moved, c moved, d moved, e running, f running, g moved, h moved', 'they keep their copies');
	$_->end for @holders;
	wait_for_job_end($node, $job);
	is(states($job), join(', ', map { "$_ moved" } 'a' .. 'h'), 'and they are moved, when they are free');
	unlike(slurp_file($node->logfile, $log), qr/puts off/, 'none was given up for the others');
	set_tests($node);
}

# ---- an idle worker that may not claim anything -------------------------------------------
# a and e count as at work, since their old and new files share a file system, in which eight
# such moves do not fit.  So the worker of d, which is idle when d is moved, leaves q to one of
# these.
{
	my @holders = hold('starve.a', 'starve.e');
	my ($d) = hold('starve.d');
	# (it stays idle where a session waits for the job, and ends elsewhere)
	my $caller = IndexMover::Session->new($node);
	$caller->run("LOAD 'index_mover'; SET index_mover.test_file_systems = 'regress_fast:1:4000000:4000000,"
		. "regress_near:1:4000000:4000000'");
	# so that on a slow machine, too, d is moved before one of the others gives its turn
	set_tests($node, test_mutation => 'patience:10000');
	$caller->send(q[SELECT count(*) FROM move_schema_tables('starve', 'regress_fast',
		settings => '{"max_workers": 2, "min_free_space": "1MB"}')]);
	poll_until($node, 'SELECT count(DISTINCT job) FROM index_mover_progress', '1', 'the job');
	my $job = $s->run('SELECT max(job) FROM index_mover_progress');
	waits_ok($job, "starve.$_") foreach 'a', 'd', 'e';
	$d->end;
	poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job AND name = 'starve.d'", 'moved', 'd is moved');
	note states($job);
	poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job AND name = 'starve.q'", 'moved',
		'q, which no session holds, is moved while two are held');
	$_->end foreach @holders;
	wait_for_job_end($node, $job);
	set_tests($node);
	is(states($job), 'a moved, d moved, e moved, q moved', 'all are moved');
	$caller->answer;
	$caller->end;
}

# ---- the default for new partitions ---------------------------------------------------------
# It gives its turn, too: else it would keep the worker as long as the parent is in use.
{
	my ($p1) = hold('defaults.p1');
	my $p = IndexMover::Session->new($node);
	$p->run('BEGIN; LOCK TABLE ONLY defaults.p IN ACCESS SHARE MODE');
	set_tests($node, test_mutation => 'patience:100');
	my $job = $s->run("SELECT max(job) FROM move_table('defaults.p', 'regress_fast', wait => false, "
		. q[settings => '{"max_workers": 1}')]);
	my $status = "SELECT status FROM index_mover_history WHERE job = $job AND name =";
	waits_ok($job, 'defaults.p');
	is($s->run("$status 'defaults.p1'"), 'queued', 'the partition has given its turn');
	$p1->end;
	poll_until($node, "$status 'defaults.p1'", 'moved', 'and is moved when it is free, while its parent is in use');
	isnt($s->run("$status 'defaults.p'"), 'moved', 'whose default waits');
	$p->end;
	wait_for_job_end($node, $job);
	set_tests($node);
	is($s->run("$status 'defaults.p'"), 'moved', 'and is set, too');
}

# A pause before its wait is no work, for which it would wait as long again.  (It is paused when
# it has been claimed: its record is the third, after two of the partition.)
{
	my ($p1) = hold('defaults.p1');
	my ($p, $gate) = map { IndexMover::Session->new($node) } 1 .. 2;
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	set_tests($node, test_point => 'history-update:3:wait', test_mutation => 'patience:100');
	my $job = $s->run("SELECT max(job) FROM move_table('defaults.p', 'regress_slow', wait => false, "
		. q[settings => '{"max_workers": 1}')]);
	$node->wait_for_log(qr/test point "history-update": waiting/, $log);
	$s->run("SELECT pause_move($job)");
	$p->run('BEGIN; LOCK TABLE ONLY defaults.p IN ACCESS SHARE MODE');
	$gate->end;
	poll_until($node, "SELECT name, throttled_by FROM index_mover_progress WHERE job = $job", 'defaults.p|pause_move()', 'it is paused');
	my $paused = $s->run('SELECT clock_timestamp()');
	poll_until($node, "SELECT clock_timestamp() > '$paused'::timestamptz + interval '8 s'", 't', 'a pause of eight seconds');
	$p1->end;
	$s->run("SELECT resume_move($job)");
	my $resumed = $s->run('SELECT clock_timestamp()');
	poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job AND name = 'defaults.p1'", 'moved',
		'it gives its turn to the partition');
	cmp_ok($s->run("SELECT extract(epoch FROM started_at - '$resumed') FROM index_mover_history WHERE job = $job AND name = 'defaults.p1'"),
		'<', 6, 'and the pause has not made it wait longer');
	$p->end;
	wait_for_job_end($node, $job);
	set_tests($node);
}

# ---- partitions that are moved together ------------------------------------------------------
# The copy of the first one waits; so the next ones, up to 16 rows with TOAST, are swapped at once.
{
	my $moved = sub { return "SELECT count(*) FROM index_mover_history WHERE job = $_[0] AND kind = 'table' AND status = 'moved'" };
	my $running = sub { my ($job) = @_; return $moved->($job) =~ s/moved'$/running'/r };
	our $query = 'BEGIN; SELECT count(*) FROM together.p';
	our $move = "move_table('together.p', '%s', wait => false";
	# (so that a slow machine is not taken for one that can only swap a few)
	our $settings = '"max_workers": 1, "max_lock_time": "1min"';

	# Have a worker wait with all that it takes together, while a session holds them.  Returns job and session.
	my $take = sub {
		my ($to, $holds, $point) = @_;
		my ($first, $holder, $gate) = map { IndexMover::Session->new($node) } 1 .. 3;
		$gate->run('SELECT pg_advisory_lock(0, 5959)');
		$first->run($query);
		set_tests($node, test_point => join(',', 'next-item:2:wait', $point // ()));
		my $log = -s $node->logfile;
		my $job = $s->run('SELECT max(job) FROM ' . sprintf($move, $to) . ", settings => '{$settings}')");
		poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND blocked_by <> '{}'", '1', 'the first one waits');
		$first->end;
		$node->wait_for_log(qr/test point "next-item": waiting/, $log);
		$holder->run($holds);
		$gate->end;
		return ($job, $holder, $log);
	};
	# Use a table all the time, by two sessions, each of which begins before the other ends.  Returns what ends it.
	my $busy = sub {
		my ($table) = @_;
		my @short = map { IndexMover::Session->new($node) } 1 .. 2;
		$_->send("DO 'BEGIN LOOP PERFORM count(*) FROM $table; PERFORM pg_sleep(0.1); COMMIT; END LOOP; END'") foreach @short;
		return sub { $s->run('SELECT pg_terminate_backend(' . $_->pid . ')') foreach @short };
	};
	my $all_ok = sub {
		my ($job, $name, $to) = @_;
		wait_for_job_end($node, $job);
		is($s->run("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"), 'moved', "$name: all are moved");
		is($s->run("SELECT count(*) FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE relnamespace = "
			. "'together'::regnamespace AND spcname = '$to'"), '13', "$name: there");
		is($s->run('SELECT count(*), sum(i) FROM together.p'), '12000|72006000', "$name: the same rows");
		leftovers_ok($node, $name, within => 5);
	};
	$s->run('CREATE SCHEMA together; CREATE TABLE together.p (i int) PARTITION BY RANGE (i) TABLESPACE regress_slow');
	$s->run(sprintf 'CREATE TABLE together.p%02d PARTITION OF together.p FOR VALUES FROM (%d) TO (%d)', $_, ($_ - 1) * 1000 + 1,
		$_ * 1000 + 1) foreach 1 .. 12;
	$s->run('INSERT INTO together.p SELECT generate_series(1, 12000)');

	my ($job, $holder, $log) = $take->('regress_fast', $query);
	poll_until($node, $running->($job), '11', 'together: all others are copied by the only worker');
	waits_ok($job, 'together.p02');
	is($s->run($moved->($job)), '1', 'together: one is moved');
	$holder->end;
	$all_ok->($job, 'together', 'regress_fast');
	is($s->run("SELECT count(DISTINCT (finished_at, lock_time, lock_attempts)) FROM index_mover_history "
		. "WHERE job = $job AND name ~ 'p(0[2-9]|1.)\$'"), '1', 'together: by one transaction');
	unlike(slurp_file($node->logfile, $log), qr/one after the other, and not together/, 'together: they were not parted');

	# tables with TOAST, of which five have 15 rows of the job; and indexes, two of each table
	$s->run('CREATE TABLE together.t (i int, big text) PARTITION BY RANGE (i) TABLESPACE regress_slow');
	$s->run("CREATE TABLE together.t$_ PARTITION OF together.t FOR VALUES FROM ($_) TO ($_ + 1)") foreach 1 .. 6;
	$s->run(q{INSERT INTO together.t SELECT g % 6 + 1, (SELECT string_agg(md5((g + h)::text), '') FROM generate_series(1, 150) h) }
		. 'FROM generate_series(1, 600) g; CREATE INDEX ON together.t (i) TABLESPACE regress_slow; '
		. 'CREATE INDEX ON together.t (left(big, 9)) TABLESPACE regress_slow');
	my $rows = $s->run('SELECT count(*), sum(hashtextextended(t::text, 0)) FROM together.t t');
	foreach my $case ([ 'table', 'move_table', 5 ], [ 'index', 'move_indexes', 11 ])
	{
		my ($kind, $function, $count) = @$case;
		local $move = "$function('together.t', '%s'" . ($kind eq 'index' ? ", 'copy'" : '') . ', wait => false';
		local $query = 'BEGIN; SELECT count(*) FROM together.t';
		my ($job, $holder) = $take->('regress_fast', $query);
		poll_until($node, "SELECT count(*) FROM index_mover_history WHERE job = $job AND kind = '$kind' AND status = 'running'", $count,
			"$kind: $count together");
		$holder->end;
		wait_for_job_end($node, $job);
		is($s->run("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"), 'moved', "$kind: all are moved");
		is($s->run("SELECT count(DISTINCT finished_at) FROM index_mover_history WHERE job = $job AND kind ~ '$kind'"), '2',
			"$kind: by two transactions");
		is($s->run(q{SELECT count(*), count(*) FILTER (WHERE spcname = 'regress_fast') FROM index_mover_history h }
			. 'JOIN pg_class c ON c.oid = h.name::regclass LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace '
			. "WHERE job = $job"), $kind eq 'index' ? '14|14' : '19|19', "$kind: there");
		is($s->run('SELECT count(*), sum(hashtextextended(t::text, 0)) FROM together.t t'), $rows, "$kind: the same rows");
		leftovers_ok($node, $kind, within => 5);
	}
	# two workers, and tables with their indexes: no index is copied whose table is in such a copy, nor the other way round
	{
		my $release = $busy->('together.t');
		my $log = -s $node->logfile;
		my $job = $s->run("SELECT max(job) FROM move_table('together.t', 'regress_slow', indexes => true, wait => false, "
			. q[settings => '{"max_workers": 2, "max_lock_time": "1min"}')]);
		wait_for_job_end($node, $job);
		$release->();
		is($s->run("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"), 'moved',
			'two workers: all are moved');
		cmp_ok($s->run("SELECT count(*) - count(DISTINCT finished_at) FROM index_mover_history WHERE job = $job "
			. "AND kind IN ('table', 'index')"), '>', 2, 'two workers: some are swapped together');
		unlike(slurp_file($node->logfile, $log), qr/one after the other, and not together/, 'two workers: they were not parted');
	}
	$s->run('DROP TABLE together.t');

	# one of them is in use for long
	($job, $holder, $log) = $take->('regress_slow', 'BEGIN; SELECT count(*) FROM together.p05');
	poll_until($node, $moved->($job), '11', 'one in use: the others do not wait for it');
	like(slurp_file($node->logfile, $log), qr/moves 11 relations one after the other, and not together/, 'one in use: they are parted');
	is(states($job) =~ /p05 (\w+)/ ? $1 : '', 'running', 'one in use: that one waits');
	$holder->end;
	$all_ok->($job, 'one in use', 'regress_slow');

	# a row of one of them is being changed for long, so that none queues for it, while short queries use them all;
	# with this lock_timeout, that is for long when each has waited as long as it has patience
	my $release;
	{
		local $settings = qq($settings, "lock_timeout": "500ms");
		my $name = 'one in use, beside queries of all';
		($job, $holder, $log) = $take->('regress_fast', 'BEGIN; GRANT SELECT ON together.p05 TO public');
		$release = $busy->('together.p');
		poll_until($node, $moved->($job), '11', "$name: the others do not wait for it", timeout => 30);
		like(slurp_file($node->logfile, $log), qr/one after the other, and not together/, "$name: they are parted");
		$release->();
		$holder->end;
		$all_ok->($job, $name, 'regress_fast');
	}
	$s->run("SELECT max(job) FROM move_table('together.p', 'regress_slow')");

	# WAL of others, which each of the copies has to read when it has its lock, after the wait for that
	($job, $holder, $log) = $take->('regress_fast', $query);
	poll_until($node, $running->($job), '11', 'WAL of others: eleven together');
	$s->run("SELECT alter_move($job, 'max_lock_time', '10ms')");
	my $writer = IndexMover::Session->new($node);
	$writer->send(q[DO $$ BEGIN LOOP PERFORM pg_logical_emit_message(false, 'x', repeat('x', 100000)); COMMIT; ]
		. 'PERFORM pg_sleep(0.005); END LOOP; END $$');
	$release = $busy->('together.p');
	$holder->end;
	$all_ok->($job, 'WAL of others', 'regress_fast');
	$s->run('SELECT pg_terminate_backend(' . $writer->pid . ')');
	$release->();
	$s->run("SELECT max(job) FROM move_table('together.p', 'regress_slow')");

	# an error in the copy of one, and under the lock
	foreach my $point ('copy-half:5:error', 'swap-file-set:3:error')
	{
		($job, $holder, $log) = $take->('regress_fast', $query, $point);
		$holder->end;
		$all_ok->($job, $point, 'regress_fast');
		set_tests($node);
		like(slurp_file($node->logfile, $log), qr/one after the other, and not together/, "$point: they are parted");
		$job = $s->run("SELECT max(job) FROM move_table('together.p', 'regress_slow', wait => false)");
		$all_ok->($job, "$point: back", 'regress_slow');
	}

	# a cancel, and the end of the worker
	foreach my $case ([ 'canceled', 'SELECT cancel_move(%s)', 'canceled 57014' ],
		[ 'the worker is canceled', q{SELECT pg_cancel_backend(pid) FROM index_mover_progress WHERE job = %s}, 'canceled 57014' ],
		[ 'terminated', q{SELECT pg_terminate_backend(pid) FROM index_mover_progress WHERE job = %s}, 'canceled 57P01' ])
	{
		my ($name, $end, $status) = @$case;
		($job, $holder, $log) = $take->('regress_fast', $query);
		poll_until($node, $running->($job), '11', "$name: eleven together");
		waits_ok($job, 'together.p02');
		$s->run(sprintf $end, $job);
		wait_for_job_end($node, $job);
		wait_for_no_worker($node);
		is($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate), ', ') FROM index_mover_history "
			. "WHERE job = $job AND status <> 'moved'"), $status, "$name: the rows say so");
		$holder->end;
		is($s->run('SELECT count(*), sum(i) FROM together.p'), '12000|72006000', "$name: the same rows");
		leftovers_ok($node, $name, within => 5);
		$job = $s->run("SELECT max(job) FROM move_table('together.p', 'regress_slow', wait => false)");
		$all_ok->($job, "$name: back", 'regress_slow');
	}
	# DDL of one that is copied, and of one that is not yet, passes while another is copied
	my @ddl = map { IndexMover::Session->new($node) } 1 .. 3;
	$ddl[0]->run('SELECT pg_advisory_lock(0, 5960)');
	($job, $holder, $log) = $take->('regress_fast', 'BEGIN', 'copy-half:5:wait2');
	$node->wait_for_log(qr/test point "copy-half": waiting/, $log);
	$ddl[1]->send('VACUUM FULL together.p03');
	$ddl[2]->send('ALTER TABLE together.p10 ADD CHECK (i > 0)');
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'", '2', 'DDL of two waits');
	$ddl[0]->end;
	$_->answer foreach @ddl[ 1, 2 ];
	is(join('', map { $_->errors } @ddl[ 1, 2 ]), '', 'DDL of two passes');
	$_->end foreach @ddl[ 1, 2 ], $holder;
	$all_ok->($job, 'DDL', 'regress_fast');
	like(slurp_file($node->logfile, $log), qr/The copy of one of them has ended, because its file was replaced/, 'DDL: they are parted');
	set_tests($node);
	$s->run('DROP SCHEMA together CASCADE');
}

# ---- another worker cancels the rest meanwhile -------------------------------------------
{
	my @holders = hold('put_back.a', 'put_back.b', 'put_back.c');
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	set_tests($node, test_point => 'put-back:hold', test_mutation => 'patience:100,runners:2');
	my $job = begin('put_back', 2);
	$node->wait_for_log(qr/test point "put-back": waiting/, $log);
	my ($put_back) = slurp_file($node->logfile, $log) =~ /puts off table "(put_back\.[ab])"/;
	$s->run("SELECT cancel_move($job)");
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover'", '1', 'the other worker ends');
	is($s->run("SELECT status FROM index_mover_history WHERE job = $job AND name = '$put_back'"), 'running',
		'which leaves the one that is being put back to its worker');
	like(states($job), qr/c canceled/, 'and cancels the others');
	set_tests($node);
	$gate->end;
	wait_for_no_worker($node);
	is(states($job), 'a canceled, b canceled, c canceled', 'all are canceled, and on record so');
	$_->end for @holders;
	leftovers_ok($node, 'canceled while one is put back', within => 5);
}

# ---- its file, after a cancel -------------------------------------------------------------
foreach my $keep ($can_go_on ? ('false', 'true') : ())
{
	my @holders = hold('kept.a', 'kept.b');
	my $kept = q(SELECT count(*) FROM index_mover.ledger WHERE kind = 'n' AND relation = 'kept.a'::regclass::oid AND copied_blocks > 0);
	set_tests($node, test_mutation => 'patience:100');
	my $job = begin('kept', 1);
	waits_ok($job, 'kept.b');
	is($s->run($kept), '1', 'the file of the one that has given its turn is kept');
	$s->run("SELECT cancel_move($job, keep => $keep)");
	wait_for_no_worker($node);
	set_tests($node);
	is(states($job), 'a canceled, b canceled', "canceled, keep => $keep");
	is($s->run($kept), $keep eq 'true' ? '1' : '0', "keep => $keep: and its file " . ($keep eq 'true' ? 'stays' : 'is removed'));
	$_->end for @holders;
	if ($keep eq 'false')
	{
		leftovers_ok($node, 'canceled without its files', within => 5);
		next;
	}
	my $next = begin('kept', 1);
	wait_for_job_end($node, $next);
	like($s->run("SELECT status || ' ' || message FROM index_mover_history WHERE job = $next AND name = 'kept.a'"),
		qr/^moved .*went on where job $job had ended/, 'the next call goes on from it');
}

# ---- one that fails, beside the copy of another worker -----------------------------------
# What that one is copying is no leftover: no cleanup follows the job.
{
	my @holders = hold('beside.a');
	$node->safe_psql('postgres', 'ALTER SYSTEM SET log_min_messages = debug1; SELECT pg_reload_conf()');
	my $log = -s $node->logfile;
	my $job = $s->run("SELECT max(job) FROM move_schema_tables('beside', 'regress_fast', wait => false, "
		. q[settings => '{"max_workers": 2, "lock_wait": "1s", "on_blocker": "fail", "max_rate": "1MB"}')]);
	wait_for_job_end($node, $job);
	wait_for_no_worker($node);
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET log_min_messages; SELECT pg_reload_conf()');
	is(states($job), 'a failed, b moved', 'one of two fails');
	is($s->run("SELECT max(finished_at) FILTER (WHERE name = 'beside.a') < max(finished_at) FILTER (WHERE name = 'beside.b') "
		. "FROM index_mover_history WHERE job = $job"), 't', 'while the other is copied');
	$log = slurp_file($node->logfile, $log);
	like($log, qr/registering background worker "index_mover job $job"/, 'the log has each worker that begins');
	unlike($log, qr/registering background worker "index_mover cleanup"/, 'no cleanup follows the job');
	$_->end for @holders;
}

# ---- of two copies that wait, one often has too much left to ask for its lock -------------
# (Each block is taken for so slow that not even one can be copied under the lock.)  It comes
# back to its bid again and again, and the other one joins it once.
{
	my @holders = map { IndexMover::Session->new($node) } 1 .. 2;
	$holders[0]->run('BEGIN; SELECT count(*) FROM crowded.a');
	$holders[1]->run('BEGIN; SELECT count(*) FROM crowded.b');
	my $writer = IndexMover::Session->new($node);
	$writer->send('DO $$ BEGIN LOOP UPDATE crowded.a SET n = n + 1 WHERE g = (SELECT 1 + floor(random() * 2000)); COMMIT; '
		. 'END LOOP; END $$');
	set_tests($node, test_mutation => 'slow-blocks:50000,hopeless:1000000,hopeless-ms:1000000');
	my $job = $s->run("SELECT max(job) FROM move_schema_tables('crowded', 'regress_fast', wait => false, "
		. q[settings => '{"max_workers": 2, "max_lock_time": "1ms"}')]);
	waits_ok($job, "crowded.$_") foreach 'a', 'b';
	my ($attempts, $began) = split /\|/,
		$s->run("SELECT lock_attempts, clock_timestamp() FROM index_mover_progress WHERE job = $job AND name = 'crowded.b'");
	poll_until($node, "SELECT clock_timestamp() > '$began'::timestamptz + interval '8 s'", 't', 'eight seconds');
	note 'attempts of the first one: ' .
		$s->run("SELECT lock_attempts FROM index_mover_progress WHERE job = $job AND name = 'crowded.a'");
	$attempts = $s->run("SELECT lock_attempts - $attempts FROM index_mover_progress WHERE job = $job AND name = 'crowded.b'");
	cmp_ok($attempts, '<=', 16, "the other one has stood in the queue no more often than by its own rests: $attempts times in 8 s");
	set_tests($node);
	$s->run("SELECT cancel_move($job)");
	wait_for_job_end($node, $job);
	$s->run('SELECT pg_terminate_backend(' . $writer->pid . ')');
	$_->end for @holders;
}

files_ok($node, 'turns');
$s->end;
done_testing();
