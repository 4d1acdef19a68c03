# What users do to the extension's own tables while jobs write them: indexes and columns that
# they add, rows and tables that they lock for long.  No job hangs, none ends early, and what is
# not recorded is told.
#
# Fault (processes): an index with an expression, a predicate or an exclusion constraint on the history;
#   its columns
# Fault (processes): a transaction, or a prepared one, that keeps rows of a job, or the ledger, for long:
#   while the job records, is terminated, or cleans up
# Fault (processes): the clock is set while a copy waits
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Session;
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

needs_test_points();

my $clock = preload_library('clock');
my $node = new_node('own_tables');
sub sql { return $node->safe_psql('postgres', $_[0]); }
sql(<<'SQL');
CREATE TABLE t (i int);
INSERT INTO t SELECT generate_series(1, 1000);
CREATE INDEX t_1 ON t (i) TABLESPACE regress_slow;
CREATE INDEX t_2 ON t (i) TABLESPACE regress_slow;
SELECT oracle.remember_keys('t'), oracle.remember_metadata('t');
SQL

sub move
{
	my (%settings) = (max_workers => 1, @_);
	my $to = elsewhere($node, 't_1');
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	return "SELECT name, status, sqlstate, detail FROM move_indexes('t', '$to', 'copy', settings => '{$json}') ORDER BY 1";
}

# All is right again, and nothing is left of what was done.
sub well_ok
{
	my ($name) = @_;
	sql('ALTER INDEX t_2 SET TABLESPACE ' . tablespace_of_index($node, 't_1'));
	is((finish_call(start_call($node, 'well', move())))[1], "t_1|moved||\nt_2|moved||\n", "$name: then all moves");
	wait_for_no_worker($node);
	all_right($node, 't', $name, within => 5);
	return;
}

# ---- indexes and columns that a user has added ------------------------------------------------
my $kinds = 'There, no index can have an expression, a predicate, or an exclusion constraint.';
foreach my $case (
	[ 'an expression', 'CREATE INDEX added ON index_mover.move_log ((job + 1))' ],
	[ 'a predicate', 'CREATE INDEX added ON index_mover.move_log (job) WHERE item > 0' ],
	[ 'an exclusion constraint', 'ALTER TABLE index_mover.move_log ADD CONSTRAINT added '
		. 'EXCLUDE USING btree (job WITH =, item WITH =)' ])
{
	my ($name, $add) = @$case;
	my $detail = qq(cannot write table "index_mover.move_log" because of index "added": $kinds);
	sql($add);
	my (undef, $rows) = finish_call(start_call($node, 'mover', move()));
	is($rows, "t_1|failed|55000|$detail\nt_2|failed|55000|$detail\n", "an index with $name: nothing is moved, and why");
	my ($rc, undef, $errors) = $node->psql('postgres', move() =~ s/settings/wait => false, settings/r);
	like($errors,
		qr/ERROR:  cannot write table "index_mover\.move_log" because of index "added"\nDETAIL:  \Q$kinds\E\nHINT:  Drop the index\./,
		"an index with $name: its job is not queued");
	like(sql(q(SELECT severity, object, detail, command IS NULL FROM index_mover_check() WHERE kind = 'changed table')),
		joined(qr/^warning\|index_mover\.move_log\|index "added", which has an expression, a predicate or an exclusion constraint, /,
			qr/keeps jobs and their ends from being recorded\|/, $name =~ /exclusion/ ? qr/t$/ : qr/f$/),
				'the check tells of such an index');
	sql($name =~ /exclusion/ ? 'ALTER TABLE index_mover.move_log DROP CONSTRAINT added'
		: sql(q(SELECT command FROM index_mover_check() WHERE kind = 'changed table')));
	well_ok("an index with $name");
}

{
	my $call = held_at($node, 'history-update', move());
	sql('CREATE INDEX added ON index_mover.move_log (job) WHERE item > 0');
	let_go($call);
	my (undef, $rows, $errors) = finish_call($call);
	is($rows, "t_1|moved||\nt_2|moved||\n", 'an index that comes in the middle of a job: all is moved');
	like($errors, qr/WARNING:  55000: could not record the move of index "public\.t_1"\nDETAIL:  cannot write table/,
		'an index that comes in the middle of a job: a WARNING');
	sql('DROP INDEX index_mover.added');
	well_ok('an index in the middle of a job');
}

sql('ALTER TABLE index_mover.move_log ADD remark text; CREATE INDEX added ON index_mover.move_log (remark, job)');
well_ok('a column, and an index of it');
sql('ALTER TABLE index_mover.move_log DROP remark, ADD remark int NOT NULL DEFAULT 1');
like((finish_call(start_call($node, 'mover', move())))[1],
	qr/^t_1\|failed\|23502\|null value in column "remark" of relation "move_log" violates not-null constraint$/m,
	'a column that is not NULL');
like(sql(q(SELECT object, detail FROM index_mover_check() WHERE kind = 'changed table')),
	qr/^index_mover\.move_log\|column "remark", which is added and NOT NULL, keeps jobs and their ends from being recorded$/,
	'a column that is not NULL: the check tells of it');
sql('ALTER TABLE index_mover.move_log DROP remark');
sql('ALTER TABLE index_mover.move_log ' . join ', ', map { "ADD remark$_ int" } 1 .. 40);
well_ok('many columns');
sql('ALTER TABLE index_mover.move_log ' . join ', ', map { "DROP remark$_" } 1 .. 40);
well_ok('no columns of others');

# ---- columns and rows that the script does not allow, which a superuser can make ---------------------
sql("INSERT INTO tier_policy (name, to_tablespace, idle_for) VALUES ('odd', 'regress_slow', '1 day'); SELECT take_index_sample(); "
	. "INSERT INTO index_mover.probe SELECT now(), oid, 1 FROM pg_tablespace; SELECT * FROM run_tier_policies()");
my $undo = 'undo_move((SELECT max(job) FROM index_mover.job_log), dry_run => true)';
foreach my $case (
	[ 'index_mover.job_log', 'settings', $undo ], [ 'index_mover.move_log', 'relation_name', $undo ],
	[ 'index_mover.move_log', 'status', $undo ], [ 'index_mover.sample', 'blks_read', 'take_index_sample()' ],
	[ 'index_mover.probe', 'random_read_ms', "recommend_moves('regress_fast')" ], [ 'index_mover.policy_run', 'result', 'tier_plan()' ],
	(map { [ 'tier_policy', $_, 'tier_plan()' ] } qw(to_tablespace parts min_stay)))
{
	my ($table, $column, $call) = @$case;
	my $bare = $table =~ s/.*\.//r;
	foreach my $change ("ALTER $column DROP NOT NULL; UPDATE $table SET $column = NULL", "ALTER $column TYPE int USING 1")
	{
		# views, triggers and policies that use it are in the way of another type
		next if $change =~ /TYPE/ && $bare !~ /^(sample|probe)$/;
		like(($node->psql('postgres', "BEGIN; ALTER TABLE $table $change; SELECT * FROM $call"))[2],
			qr/ERROR:  table "$bare" is of another version of extension "index_mover"/, "$table: $change");
	}
}
like(($node->psql('postgres', 'BEGIN; ALTER TABLE index_mover.sample ALTER index_name TYPE int USING 1; SELECT take_index_sample()'))[2],
	qr/ERROR:  table "sample" is of another version/, 'a number in place of a text');
if ($node->pg_version >= 18)
{
	like(($node->psql('postgres', 'BEGIN; ALTER TABLE index_mover.job_log ALTER settings DROP NOT NULL; '
		. 'UPDATE index_mover.job_log SET settings = NULL; ALTER TABLE index_mover.job_log ADD NOT NULL settings NOT VALID; '
		. "SELECT * FROM $undo"))[2],
		qr/ERROR:  table "job_log" is of another version/, 'NOT NULL that is not valid');
}
like(sql('BEGIN; ALTER TABLE tier_policy DROP CONSTRAINT "a budget needs from_tablespace, where the rest goes back to"; '
	. 'UPDATE tier_policy SET idle_for = NULL, budget = 1; SELECT reason FROM tier_plan(); SELECT count(*) FROM index_mover_check()'),
	qr/tablespace "" does not exist/, 'a budget from no tablespace');
sql("INSERT INTO index_mover.sample SELECT '-infinity', o, NULL, 0 FROM (VALUES (0::oid), ('t'::regclass)) v(o); "
	. "UPDATE tier_policy SET idle_for = NULL, budget = 1e9, from_tablespace = 'regress_fast'");
cmp_ok(sql("SELECT count(*) FROM relation_heat WHERE reads_per_second >= 0"), '>', 0, 'samples of no moment');
sql("SELECT * FROM tier_plan(); SELECT take_index_sample()");
is(sql("SELECT count(*) FROM index_mover.sample WHERE NOT isfinite(taken_at)"), 0, 'samples of no moment are deleted');
sql("DELETE FROM index_mover.policy_run; INSERT INTO index_mover.policy_run SELECT name, owner_oid, now(), 0, 0, 'failed', "
	. 'NULL, NULL, NULL, true FROM tier_policy');
is(sql("SELECT detail FROM index_mover_check() WHERE object = 'odd'"), 'failed', 'a failure without a message');
sql('DELETE FROM tier_policy; DELETE FROM index_mover.probe');
well_ok('odd rows');

# ---- rows that a transaction keeps --------------------------------------------------------------
set_tests($node, test_mutation => 'record-wait:1000');
sub hold_at
{
	my ($point, $sql, %options) = @_;
	my $call = held_at($node, $point, move(), then => $options{then});
	my $session = IndexMover::Session->new($node);
	$session->run("BEGIN; $sql");
	return ($call, $session);
}
my $rows_of_job = 'DELETE FROM index_mover.move_log WHERE job = (SELECT max(job) FROM index_mover.job_log)';
{
	my ($call, $session) = hold_at('history-update', $rows_of_job);
	let_go($call);
	my (undef, $rows, $errors, $seconds) = finish_call($call);
	is($rows, "t_1|moved||\nt_2|moved||\n", 'rows of a job that a transaction is deleting: the job ends');
	like($errors, joined(qr/WARNING:  55P03: could not record the move of index "public\.t_1"\n/,
			qr/DETAIL:  could not obtain lock on row in relation "move_log"/), 'rows that a transaction is deleting: a WARNING, and why');
	soon_ok($seconds, 5, 'rows that a transaction is deleting: no wait for each of them');
	$session->run('ROLLBACK');
	$session->end;
	well_ok('rows that a transaction keeps');
}
{
	my ($call, $session) = hold_at('history-update', 'SELECT FROM index_mover.job_log FOR UPDATE');
	let_go($call);
	my (undef, $rows, $errors) = finish_call($call);
	is($rows, "t_1|moved||\nt_2|moved||\n", 'the row of a job that a transaction has locked: the job ends');
	is(sql('SELECT status, moved, total FROM index_mover_jobs ORDER BY job DESC LIMIT 1'), 'moved|2|2',
		'a locked row of a job: its end is known all the same');
	$session->run('ROLLBACK');
	$session->end;
	well_ok('the row of a job');
}
{
	my $session = IndexMover::Session->new($node);
	$session->run(<<'SQL');
CREATE TEMP TABLE next AS SELECT * FROM index_mover.move_log WHERE job = (SELECT max(job) FROM index_mover.job_log);
UPDATE next SET job = (SELECT last_value + 1 FROM index_mover.job_seq);
BEGIN;
INSERT INTO index_mover.move_log SELECT * FROM next
SQL
	like((finish_call(start_call($node, 'mover', move())))[1],
		joined(qr/^t_1\|failed\|23505\|duplicate key value violates unique constraint /,
			qr/"move_log_pkey"$/m), 'rows of a job that a transaction has inserted before: it does not begin');
	$session->run('ROLLBACK');
	$session->end;
	well_ok('rows that were inserted before');
}

# ---- terminated meanwhile -------------------------------------------------------------------------
foreach my $how ('is open', 'is prepared, and the server is shut down')
{
	my ($call, $session) = hold_at('copy-half',
		"$rows_of_job; DELETE FROM index_mover.job_log WHERE job = (SELECT max(job) FROM index_mover.job_log)");
	my $name = "a worker is terminated while a transaction that deletes its rows $how";
	my $start = time;
	if ($how eq 'is open')
	{
		sql("SELECT pg_terminate_backend($call->{worker})");
		poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $call->{worker}", 0, $name);
	}
	else
	{
		$session->run("PREPARE TRANSACTION 'rows'");
		$session->end;
		$node->stop('fast');
		$node->start;
	}
	soon_ok(time - $start, 5, $name);
	if ($how eq 'is open')
	{
		$session->run('ROLLBACK');
		$session->end;
	}
	else
	{
		sql("ROLLBACK PREPARED 'rows'");
	}
	let_go($call);
	finish_call($call);
	wait_for_no_worker($node);
	sql('SELECT * FROM index_mover_cleanup()');
	well_ok($name);
}

# ---- the ledger is locked while relations fail -------------------------------------------------------
{
	my ($call, $session) = hold_at('copy-half', 'LOCK TABLE index_mover.ledger', then => 'copy-synced:1:error');
	let_go($call);
	wait_until('the second relation, or the end of the job', sub {
		return !call_is_running($call)
		  || sql("SELECT count(*) FROM pg_locks WHERE relation = 'index_mover.ledger'::regclass AND NOT granted") > 0;
	});
	set_test_point($node, '');
	$session->run('COMMIT');
	$session->end;
	my (undef, $rows, $errors) = finish_call($call);
	like($rows, qr/^t_1\|failed\|XX000\|.*\nt_2\|moved\|\|\n\z/, 'a relation fails while the ledger is locked: the job goes on');
	wait_for_no_worker($node);
	sql('SELECT * FROM index_mover_cleanup()');
	well_ok('a failure beside a locked ledger');
}
{
	my $to = elsewhere($node, 't_1');
	my $call = held_at($node, 'rebuild-step-committed', "SELECT name, status, sqlstate FROM move_indexes('t_1', '$to', 'rebuild', "
		. q[settings => '{"lock_wait": "1s"}')]);
	my $session = IndexMover::Session->new($node);
	$session->run('BEGIN; LOCK TABLE index_mover.ledger');
	sql('SELECT cancel_move()');
	let_go($call);
	my $start = time;
	is((finish_call($call))[1], "t_1|canceled|57014\n", 'a rebuild is canceled while the ledger is locked');
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $call->{worker}", 0, 'the end of its worker');
	soon_ok(time - $start, 5, 'a rebuild that is canceled: its worker does not wait for the ledger');
	$session->run('COMMIT');
	$session->end;
	wait_for_no_worker($node);
	sql('SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	all_right($node, 't', 'a rebuild beside a locked ledger', within => 5);
}

# ---- the clock is set --------------------------------------------------------------------------------
{
	append_to_file($ENV{CLOCK}, '');
	{
		local $ENV{LD_PRELOAD} = $clock;
		$node->restart;
	}
	sql('ALTER INDEX t_2 SET TABLESPACE ' . tablespace_of_index($node, 't_1'));
	my $session = IndexMover::Session->new($node);
	$session->run('BEGIN; SELECT count(*) FROM t');
	my $call = start_call($node, 'mover', move());
	poll_until($node, 'SELECT phase FROM index_mover_progress', 'waiting for lock to swap', 'a copy that waits');
	unlink $ENV{CLOCK};
	$session->run('COMMIT');
	$session->end;
	is((finish_call($call))[1], "t_1|moved||\nt_2|moved||\n", 'a clock that is set while a copy waits: it moves');
	cmp_ok(sql('SELECT max(idle) FROM index_mover.move_log WHERE job = (SELECT max(job) FROM index_mover.job_log)'), '<', 1000000,
		'a clock that is set while a copy waits: the hour is no wait');
}
$node->stop;
done_testing();
