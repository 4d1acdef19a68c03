# Who stands in the way of a move: index_mover.on_blocker, which sessions may be signaled
# and who never is, and what is said about it.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run ();
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_node('blockers', conf => "deadlock_timeout = 300ms\nautovacuum_naptime = 1");
$node->safe_psql('postgres', <<SQL);
CREATE ROLE regress_mover LOGIN;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_mover;
GRANT EXECUTE ON FUNCTION move_indexes TO regress_mover;
LOAD 'index_mover';
ALTER ROLE regress_mover SET index_mover.on_blocker = 'terminate';
CREATE TABLE bl (i int, s text);
ALTER TABLE bl OWNER TO regress_mover;
GRANT SELECT ON bl TO PUBLIC;
INSERT INTO bl SELECT g, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX bl_s ON bl (s) TABLESPACE regress_slow;
VACUUM ANALYZE bl;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The statements of a call that moves one index: its row, and, if that has nothing to
# tell, what the history tells.
sub told
{
	my ($call) = @_;
	return "SELECT job, status, coalesce(sqlstate, '') AS sqlstate, coalesce(detail, '') AS detail FROM $call \\gset\n"
	  . "SELECT :'status', :'sqlstate', CASE :'detail' WHEN '' THEN message ELSE :'detail' END FROM index_mover_history WHERE job = :job";
}

# Move the index; returns what psql printed, and its messages.
sub move
{
	my ($settings, %options) = @_;
	my $to = elsewhere($node, 'bl_s');
	my $call = start_call($node, 'mover',
		told("move_indexes('bl_s', '$to', method => '" . ($options{method} || 'copy') . "', settings => '{$settings}')"),
		user => $options{user});
	my ($rc, $out, $err) = finish_call($call);
	chomp $out;
	note "$out\n$err";
	return ($out, $err);
}

sub session
{
	my ($user) = @_;
	my $session = IndexMover::Session->new($node, user => $user);
	$session->run("BEGIN; SELECT count(*) FROM bl WHERE s = 'x'");
	return $session;
}

sub is_alive { return sql('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $_[0]->pid); }

# an idle transaction is terminated
my $blocker = session('postgres');
my $start = time;
my ($out, $err) = move('"on_blocker": "terminate", "lock_wait": "500ms"');
like($out, qr/^moved\|\|.*It has terminated process ${\$blocker->pid} of role "postgres"\.$/,
	'terminate: the index is moved, and the history says who had to go');
like($err, qr/WARNING:  01000: terminated process ${\$blocker->pid}, which was in the way of moving index "bl_s"/, 'a WARNING for each');
soon_ok(time - $start, 5, 'without delay');
is(is_alive($blocker), '0', 'the session is gone');

# cancel ends a running statement, and so its transaction's locks
$blocker = session('postgres');
$blocker->send('SELECT pg_sleep(60)');
($out, $err) = move('"on_blocker": "cancel", "lock_wait": "500ms"');
like($out, qr/^moved\|\|.*It has canceled process ${\$blocker->pid} of role/, 'cancel: a running statement');
$blocker->answer;
like($blocker->errors, qr/canceling statement due to user request/, 'the statement got 57014');
is(is_alive($blocker), '1', 'the session lives on');
$blocker->run('ROLLBACK');
$blocker->end;

# who is idle has nothing to be canceled
$blocker = session('postgres');
($out, $err) = move('"on_blocker": "cancel", "lock_wait": "500ms"');
like($out, qr/^failed\|.*It has canceled process/, 'cancel: in vain where nothing runs');
is(is_alive($blocker), '1', 'an idle session lives on');

# fail
($out, $err) = move('"on_blocker": "fail", "lock_wait": "500ms"');
like($out, qr/^failed\|55P03\|could not get the exclusive lock on index "bl_s" within/, 'fail: the index is given up');
unlike($out, qr/It has/, 'and none is signaled');
my $asked = sql("SELECT action FROM index_mover_blockers('bl', '0 s') WHERE pid = " . $blocker->pid);
like($out, qr/The lock was held by: process ${\$blocker->pid} \(\Q$asked\E\)\.$/, 'the row says what index_mover_blockers() says');

my $running = session('postgres');
$running->send('SELECT pg_sleep(600)');
poll_until($node, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $running->pid, 'PgSleep', 'a statement that runs');
($out, $err) = move('"on_blocker": "fail", "lock_wait": "500ms"');
$asked = sql("SELECT action FROM index_mover_blockers('bl', '0 s') WHERE pid = " . $running->pid);
like($asked, qr/^wait for its end/, 'of a session that is at work, index_mover_blockers() says something else');
like($out, qr/process ${\$running->pid} \(\Q$asked\E\)/, 'and so does the row');
sql('SELECT pg_terminate_backend(' . $running->pid . ', 60000)');

# a role's job signals what the role could: not a superuser's session
($out, $err) = move('"lock_wait": "500ms"', user => 'regress_mover');
like($out, qr/^failed\|55P03/, 'another role: a superuser\'s session is not signaled');
like($out, qr/The lock was held by: process ${\$blocker->pid}\.$/, 'of a session that it may not look at the role is told the number');
is(is_alive($blocker), '1', 'it lives on');
$blocker->run('COMMIT');
$blocker->end;
$blocker = session('regress_mover');
($out, $err) = move('"lock_wait": "500ms"', user => 'regress_mover');
like($out, qr/^moved\|\|.*It has terminated process ${\$blocker->pid} of role "regress_mover"\.$/, 'its own is');

# and only a superuser may say so
my ($rc, $o, $e) = $node->psql('postgres',
	"SET SESSION AUTHORIZATION regress_mover; SELECT * FROM move_indexes('bl_s', 'regress_fast', settings => "
		. "'{\"on_blocker\": \"cancel\"}')",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
is(sqlstate_of($e), '42501', 'on_blocker is a superuser\'s setting');

# a prepared transaction has no process
sql("BEGIN; SELECT count(*) FROM bl WHERE s = 'x'; SELECT txid_current(); PREPARE TRANSACTION 'p'");
($out, $err) = move('"on_blocker": "terminate", "lock_wait": "500ms"');
like($out, qr/^failed\|55P03\|.*The lock was held by: prepared transaction "p" \(COMMIT PREPARED 'p'; or ROLLBACK PREPARED 'p';\)\.$/,
	'a prepared transaction is left alone, named, and what can be done about it');

sql("ROLLBACK PREPARED 'p'");

# a copy that waits says for whom all the time, also while it stands in the queue
{
	$blocker = session('postgres');
	my $waits = start_call($node, 'mover', "SELECT status FROM move_indexes('bl_s', '" . elsewhere($node, 'bl_s')
		. q[', method => 'copy', settings => '{"lock_timeout": "1min"}')]);
	my $in_queue = "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'bl_s'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted";
	foreach my $look (1 .. 3)
	{
		poll_until($node, $in_queue, 't', "a copy that stands in the queue, look $look");
		is(sql('SELECT blocked_by FROM index_mover_progress'), '{' . $blocker->pid . '}', "blocked_by then, look $look");
	}
	$blocker->run('COMMIT');
	$blocker->end;
	is((finish_call($waits))[1], "moved\n", 'it is moved when the transaction has ended');
}

# no session has the index, but what the swap needs besides it cannot be locked
my $catalog = IndexMover::Session->new($node);
$catalog->run('BEGIN; LOCK TABLE pg_class IN SHARE MODE');
($out, $err) = move('"on_blocker": "fail", "lock_wait": "500ms"');
like($out, joined(
	qr/^failed\|55P03\|could not get the exclusive lock on index "bl_s" within .* seconds: No transaction held it: .* /,
	qr/or a system catalog is locked\.$/),
	'a locked catalog: no session is named');
my $call = start_call($node, 'mover', "SELECT status FROM move_indexes('bl_s', '" . elsewhere($node, 'bl_s') . "', method => 'copy')");
poll_until($node, 'SELECT lock_attempts > 1 FROM index_mover_progress', 't', 'attempts that are counted');
$catalog->run('COMMIT');
$catalog->end;
($rc, $out, $err) = finish_call($call);
like($out, qr/^moved$/m, 'a locked catalog: in time, it is moved') or diag $err;

# nor is there an attempt while pg_class cannot even be read: lock_wait ends that, too
$blocker = session('postgres');
$catalog = IndexMover::Session->new($node);
my $log_start = -s $node->logfile;
$call = start_call($node, 'mover',
	told("move_indexes('bl_s', '" . elsewhere($node, 'bl_s') . "', method => 'copy', "
		. q{settings => '{"on_blocker": "fail", "lock_wait": "8s"}')}));
poll_until($node, 'SELECT lock_attempts > 0 FROM index_mover_progress', 't', 'a copy that waits for its lock');
$catalog->run('BEGIN; LOCK TABLE pg_class IN ACCESS EXCLUSIVE MODE');
$blocker->run('COMMIT');
my $given_up = 0;
for ($start = time; !$given_up && time - $start < 60; usleep(100_000))
{
	$given_up = slurp_file($node->logfile, $log_start) =~ /did not move index "public\.bl_s" \(failed, SQLSTATE 55P03\)/;
}
ok($given_up, 'a catalog that cannot be read: given up while it is locked');
$catalog->run('COMMIT');
$_->end foreach $catalog, $blocker;
($rc, $out, $err) = finish_call($call);
like($out, qr/^failed\|55P03\|could not get .* within 8 seconds: No transaction held it: /m, 'and no session is named') or diag $err;

# whom a rebuild waits for
$blocker = IndexMover::Session->new($node);
$blocker->run("BEGIN; INSERT INTO bl VALUES (0, 'x')");
($out, $err) = move('"lock_wait": "500ms"', method => 'rebuild');
like($out, joined(
	qr/^failed\|55P03\|gave up waiting for transactions that use the table: Waited [\d.]+ seconds for process /,
	qr/${\$blocker->pid} \(end its transaction in the client, or SELECT /,
	qr/pg_catalog\.pg_terminate_backend\(${\$blocker->pid}\);\)\./),
	'rebuild: a writer that stays is named, and what can be done about it');
$blocker->run('PREPARE TRANSACTION \'q\'');
$blocker->end;
($out, $err) = move('"lock_wait": "500ms"', method => 'rebuild');
like($out, qr/^failed\|55P03\|gave up waiting for .* for prepared transaction "q" \(COMMIT PREPARED 'q'; or ROLLBACK PREPARED 'q';\)/,
	'rebuild: a prepared transaction');
sql("ROLLBACK PREPARED 'q'");
$blocker = IndexMover::Session->new($node);
$blocker->run("BEGIN; INSERT INTO bl VALUES (0, 'x')");
($out, $err) = move('"on_blocker": "terminate", "lock_wait": "500ms"', method => 'rebuild');
like($out, qr/^moved\|\|It has terminated process ${\$blocker->pid} of role "postgres"\.$/, 'rebuild: a writer that stays');
is(is_alive($blocker), '0', 'is terminated');

# DDL that holds the table when the copy begins
$blocker = IndexMover::Session->new($node);
$blocker->run('BEGIN; ALTER INDEX bl_s SET (fillfactor = 90)');
($out, $err) = move('"on_blocker": "fail", "lock_wait": "500ms"');
like($out, joined(
	qr/^failed\|55P03\|could not lock relation "bl_s" within 0\.5 seconds: The lock was held by: /,
	qr/process ${\$blocker->pid} \(.*\)\.$/),
	'DDL in an idle transaction, before the copy begins: given up, and the holder is named');
is(is_alive($blocker), '1', 'and none is signaled');
($out, $err) = move('"on_blocker": "terminate", "lock_wait": "500ms"');
like($out, qr/^moved\|\|.*It has terminated process ${\$blocker->pid} of role/, 'DDL in an idle transaction, before the copy begins');

# The default: a copy is not thrown away because a session stays for longer than
# lock_wait, and VACUUM keeps its lock on an index to its end.  Nor one that cannot
# begin yet.
sub move_and_wait
{
	my ($who, $what, $end) = @_;
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover', "SELECT status, sqlstate, detail FROM move_indexes('bl_s', '" . elsewhere($node, 'bl_s')
		. "', method => 'copy', settings => '{\"lock_wait\": \"500ms\"}')");
	my $asked = sql("SELECT action FROM index_mover_blockers('bl', '0 s') WHERE pid = " . $who->pid);
	my $told = joined(
		qr/WARNING:  55P03: the copy of index "bl_s" has waited for a lock for 0\.5 seconds, and goes on /s,
		qr/waiting\n.*?DETAIL:  The lock is held by: process ${\$who->pid} \(\Q$asked\E\)\.\n/s);
	$node->wait_for_log($told, $log);
	ok(call_is_running($call), "$what: still waiting");
	poll_until($node, 'SELECT count(*) FROM index_mover_call.index_mover_blockers WHERE pid = ' . $who->pid, '1',
		"$what: the query that the WARNING has names that session, too");
	my $phase = "phase = 'waiting for lock to swap'";
	is(sql("SELECT bool_and(blocks_total > 0 AND blocks_done = blocks_total) FROM index_mover_progress WHERE $phase") || 't', 't',
		"$what: while it waits for its swap, all blocks are done");
	is(sql(q(SELECT string_agg(pid || ', ' || (holds_back ~ 'snapshot'), '; ') FROM index_mover_blockers('bl', '0 s'))),
		$who->pid . ', false',
		"$what: index_mover_blockers() names that session only, for its locks");
	$end->();
	my ($rc, $out, $err) = finish_call($call);
	like($out, qr/^moved\|\|$/, "$what: moved in the end, nothing to tell");
	like($err, qr/$told/, "$what: a WARNING has said who was in the way");
	is(scalar(() = slurp_file($node->logfile, $log) =~ /\] $told/g), 1, "$what: the log, too, and once");
	return;
}
my $vacuum = IndexMover::Session->new($node);
sql('DELETE FROM bl WHERE i % 10 = 1');
$vacuum->run('SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1; SET vacuum_cost_page_dirty = 10000');
$vacuum->send('VACUUM bl');
poll_until($node, "SELECT count(*) FROM pg_locks WHERE relation = 'bl_s'::regclass AND mode = 'RowExclusiveLock' AND pid = " . $vacuum->pid,
	'1', 'a VACUUM that takes long');
move_and_wait($vacuum, 'VACUUM', sub { sql('SELECT pg_cancel_backend(' . $vacuum->pid . ')'); $vacuum->answer; });
$vacuum->run('BEGIN; ALTER INDEX bl_s SET (fillfactor = 90)');
move_and_wait($vacuum, 'DDL before the copy begins', sub { $vacuum->run('ROLLBACK') });
$vacuum->end;

# a partitioned index has no file, but a place for the indexes of new partitions
$node->safe_psql('postgres', 'CREATE TABLE parts (i int) PARTITION BY RANGE (i); CREATE INDEX parts_i ON parts (i)');
$blocker = IndexMover::Session->new($node);
$blocker->run('BEGIN; SELECT count(*) FROM parts WHERE i = 1');
my $move_parts = told("move_indexes('parts', 'regress_fast', settings => '{\"lock_wait\": \"500ms\", \"on_blocker\": \"%s\"}')");
like(sql(sprintf($move_parts, 'fail')),
	qr/^failed\|55P03\|could not lock relation "parts_i" within [\d.]+ seconds: The lock was held by: process ${\$blocker->pid} \(.*\)\.$/,
	'a partitioned index in use: given up, and the holder is named');
is(is_alive($blocker), '1', 'and none is signaled');
like(sql("SET client_min_messages = error;\n" . sprintf($move_parts, 'terminate')),
	qr/^moved\|\|.*It has terminated process ${\$blocker->pid} of role "postgres"\.$/, 'terminate: it is moved');
# a GRANT has no lock, and we wait for it without one
$blocker = IndexMover::Session->new($node);
$blocker->run('BEGIN; GRANT SELECT ON parts TO PUBLIC');
like(sql(told("move_table('parts', 'regress_fast', settings => '{\"lock_wait\": \"500ms\", \"on_blocker\": \"fail\"}')")),
	qr/^failed\|55P03\|could not lock relation "parts" within [\d.]+ seconds: The lock was held by: process ${\$blocker->pid} \(.*\)\.$/,
	'a partitioned table whose pg_class row is being changed');
$blocker->end;
sql('DROP TABLE parts');

# Whom core waits for inside of REINDEX CONCURRENTLY: the build is held by an
# index expression until they are there.
$node->safe_psql('postgres', <<SQL);
CREATE FUNCTION gate(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM pg_advisory_lock_shared(42);
	PERFORM pg_advisory_unlock_shared(42);
	RETURN i;
END \$\$;
CREATE TABLE lt (v int);
ALTER TABLE lt OWNER TO regress_mover;
INSERT INTO lt SELECT generate_series(1, 20);
CREATE INDEX lt_gate ON lt (gate(v)) TABLESPACE regress_slow;
GRANT ALL ON lt TO PUBLIC;
SQL

sub rebuild_with
{
	my ($name, $settings, $hold, %options) = @_;
	my $to = elsewhere($node, 'lt_gate');
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	wait_for_no_worker($node);		# the one before may still be cleaning up
	my $call = start_call($node, 'rebuilder',
		told("move_indexes('lt', '$to', 'rebuild', settings => '{$settings}')"), user => $options{user});
	poll_until($node, "SELECT phase FROM index_mover_progress", 'building index', "$name: the build");
	$blocker = IndexMover::Session->new($node, user => $options{blocker});
	$hold->();
	# not before they are there: the build itself must not wait in vain
	sql("SELECT alter_move(job, 'lock_wait', '500ms') FROM index_mover_progress");
	$gate->run('SELECT pg_advisory_unlock(42)');
	$gate->end;
	my ($status, $output, $errors) = finish_call($call);
	chomp $output;
	note "$name: $output\n$errors";
	return ($output, $errors);
}

($out, $err) = rebuild_with('writer', '"on_blocker": "terminate"', sub { $blocker->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE') });
like($out, qr/^moved\|\|It has terminated process ${\$blocker->pid} of role "postgres"\.$/,
	'inside of the rebuild, a writer that stays: terminated');
like($err, qr/WARNING:  01000: terminated process ${\$blocker->pid}, which was in the way of moving index "lt_gate"/, 'with a WARNING');
is(is_alive($blocker), '0', 'it is gone');

($out, $err) = rebuild_with('reader', '"on_blocker": "terminate"', sub { $blocker->run('BEGIN; SELECT count(*) FROM lt') });
like($out, qr/^moved\|\|It has terminated process ${\$blocker->pid} of role "postgres"\.$/,
	'a reader that stays, before the old index is dropped');

($out, $err) = rebuild_with('running', '"on_blocker": "cancel"', sub { $blocker->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE');
	$blocker->send('SELECT pg_sleep(100)') });
like($out, qr/^moved\|\|It has canceled process ${\$blocker->pid} of role/, 'a running statement is canceled');
$blocker->answer;
like($blocker->errors, qr/canceling statement due to user request/, 'it got 57014');
is(is_alive($blocker), '1', 'the session lives on');
$blocker->end;

($out, $err) = rebuild_with('fail', '', sub { $blocker->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE') });
like($out, joined(
	qr/^failed\|55P03\|canceling statement due to lock timeout: It waited for process ${\$blocker->pid} \(end its /,
	qr/transaction in the client, or SELECT pg_catalog\.pg_terminate_backend\(${\$blocker->pid}\);\)\.$/), 'fail: the rebuild is given up');
is(is_alive($blocker), '1', 'and none is signaled');
$blocker->run('COMMIT');
$blocker->end;

sql('CREATE ROLE regress_client LOGIN; GRANT pg_signal_backend TO regress_mover');
($out, $err) = rebuild_with('superuser', '', sub { $blocker->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE') }, user => 'regress_mover');
like($out, qr/^failed\|55P03\|canceling statement due to lock timeout: It waited for process ${\$blocker->pid}\.$/,
	'another role: not a superuser\'s session, even with pg_signal_backend');
is(is_alive($blocker), '1', 'it lives on');
$blocker->run('COMMIT');
$blocker->end;

($out, $err) = rebuild_with('pg_signal_backend', '', sub { $blocker->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE') },
	user => 'regress_mover', blocker => 'regress_client');
like($out, qr/^moved\|\|It has terminated process ${\$blocker->pid} of role "regress_client"\.$/,
	'with pg_signal_backend, an ordinary role\'s');
sql('REVOKE pg_signal_backend FROM regress_mover');
($out, $err) = rebuild_with('no pg_signal_backend', '', sub { $blocker->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE') },
	user => 'regress_mover', blocker => 'regress_client');
like($out, qr/^failed\|55P03\|canceling statement due to lock timeout: It waited for process ${\$blocker->pid}\.$/, 'but not without');
is(is_alive($blocker), '1', 'it lives on, too');
$blocker->run('COMMIT');
$blocker->end;

($out, $err) = rebuild_with('prepared', '"on_blocker": "terminate"',
	sub { $blocker->run("BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'p'") });
like($out, joined(
	qr/^failed\|55P03\|canceling statement due to lock timeout: It waited for prepared transaction "p" \(COMMIT /,
	qr/PREPARED 'p'; or ROLLBACK PREPARED 'p';\)\.$/), 'a prepared transaction is left alone');
is(is_alive($blocker), '1', 'and so is the session that has prepared it');
sql("ROLLBACK PREPARED 'p'");
$blocker->end;
# core knows a prepared transaction by its session, and names none if that is gone
($out, $err) = rebuild_with('prepared, ended', '"on_blocker": "terminate"',
	sub { $blocker->run("BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'p'"); $blocker->end });
like($out, joined(
	qr/^failed\|55P03\|canceling statement due to lock timeout: It waited for prepared transaction "p" \(COMMIT /,
	qr/PREPARED 'p'; or ROLLBACK PREPARED 'p';\)\.$/), 'nor is one whose session has ended unnamed');
sql("ROLLBACK PREPARED 'p'");
leftovers_ok($node, 'after rebuilds that failed', within => 5);
verdict_ok($node, 'lt', 'after rebuilds that failed');

# who is in the way of removing what a canceled rebuild has made
{
	my $to = elsewhere($node, 'lt_gate');
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	my $job = sql("SELECT max(job) FROM move_indexes('lt', '$to', 'rebuild', wait => false, settings => "
		. "'{\"on_blocker\": \"terminate\"}')");
	poll_until($node, "SELECT phase FROM index_mover_progress", 'building index', 'a rebuild to be canceled');
	$blocker = IndexMover::Session->new($node);
	$blocker->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE');
	my $log = -s $node->logfile;
	sql("SELECT alter_move($job, 'lock_wait', '500ms'), cancel_move($job)");
	$node->wait_for_log(qr/terminated process ${\$blocker->pid}, which was in the way of moving index "lt_gate"/, $log);
	wait_for_no_worker($node);
	is(is_alive($blocker), '0', 'who is in the way of removing a canceled rebuild\'s index is terminated');
	is(sql("SELECT status || ' ' || sqlstate FROM index_mover_history WHERE job = $job"), 'canceled 57014',
		'the rebuild is canceled all the same');
	$gate->end;
	leftovers_ok($node, 'after a canceled rebuild', within => 5);
}

# The worker can be signaled by whoever could signal a session of the job's
# role: the role itself, its members, and pg_signal_backend.
sql('GRANT EXECUTE ON FUNCTION pause_move TO regress_mover; GRANT pg_signal_backend TO regress_client; CREATE ROLE regress_outsider LOGIN');
foreach my $case (
	[ 'regress_client', 'pg_cancel_backend', 'canceled 57014' ],
	[ 'regress_client', 'pg_terminate_backend', 'canceled 57P01' ],
	[ 'regress_mover', 'pg_cancel_backend', 'canceled 57014' ],
	[ 'regress_mover', 'pg_terminate_backend', 'canceled 57P01' ])
{
	my ($role, $function, $end) = @$case;
	my $to = elsewhere($node, 'bl_s');
	my $job = $node->safe_psql('postgres',
		"SELECT max(job) FROM move_indexes('bl_s', '$to', method => 'copy', wait => false, settings => '{\"swap_after\": \"infinity\"}')",
		extra_params => [ '-U', 'regress_mover' ]);
	poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $job", 'waiting for time to swap', 'a job');
	my $worker = sql("SELECT pid FROM index_mover_progress WHERE job = $job");
	my ($r, $o2, $e2) = $node->psql('postgres', "SELECT $function($worker)",
		extra_params => [ '-U', 'regress_outsider', '-v', 'VERBOSITY=verbose' ]);
	is(sqlstate_of($e2), '42501', "$function of a worker: not for others");
	is($node->safe_psql('postgres', "SELECT $function($worker)", extra_params => [ '-U', $role ]), 't', "$function of a worker by $role");
	poll_until($node, "SELECT status || ' ' || sqlstate FROM index_mover_history WHERE job = $job", $end, 'the end of the job');
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job", '0', 'the end of the worker');
}
leftovers_ok($node, 'signaled workers', within => 5);

# The time of a pause is no part of lock_wait, and no session is signaled for it.
{
	my $to = elsewhere($node, 'bl_s');
	$blocker = IndexMover::Session->new($node);
	$blocker->run('BEGIN; LOCK TABLE bl IN ROW EXCLUSIVE MODE');
	my $job = sql("SELECT max(job) FROM move_indexes('bl_s', '$to', 'rebuild', wait => false, settings => "
		. "'{\"on_blocker\": \"terminate\", \"lock_wait\": \"3s\"}')");
	poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $job", 'waiting for writers before build',
		'a rebuild that waits');
	sql("SELECT pause_move($job)");
	poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'pause_move()', 'the pause');
	my $paused = sql('SELECT clock_timestamp()');
	poll_until($node, "SELECT clock_timestamp() > timestamptz '$paused' + interval '3 s'", 't', 'as long as lock_wait');
	my $resumed = sql('SELECT clock_timestamp()');
	sql("SELECT resume_move($job)");
	poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job", 'moved', 'the end of the rebuild');
	is(is_alive($blocker), '0', 'after a pause: who stays is terminated');
	cmp_ok(sql("SELECT extract(epoch FROM finished_at - started_at - (timestamptz '$resumed' - '$paused')) FROM index_mover_history "
		. "WHERE job = $job"),
		'>', 3, 'but not before lock_wait is over, without the time of the pause');
}

# an autovacuum that is in the way is canceled, as for others that queue; but not for nothing,
# again and again, while another session stays
sql("ALTER TABLE bl SET (autovacuum_enabled = on, autovacuum_vacuum_threshold = 1, autovacuum_vacuum_scale_factor = 0, "
	. "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)");
sql("DELETE FROM bl WHERE i % 10 = 0");
sql("ALTER SYSTEM SET autovacuum = on");
sql("SELECT pg_reload_conf()");
poll_until($node, "SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.relation = 'bl_s'::regclass AND "
	. "a.backend_type = 'autovacuum worker'", 't', 'an autovacuum of the table');
my $log = -s $node->logfile;
sql('ALTER SYSTEM SET log_min_messages = debug1');
sql("SELECT pg_reload_conf()");
poll_until($node, 'SHOW log_min_messages', 'debug1', 'the new setting');
$blocker = session('postgres');
my $vacuum = sql("SELECT pid FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.relation = 'bl_s'::regclass AND "
	. "a.backend_type = 'autovacuum worker'");
my $waits = sql("SELECT job FROM move_indexes('bl_s', '" . elsewhere($node, 'bl_s') . "', method => 'copy', wait => false)");
poll_until($node, "SELECT blocked_by @> ARRAY[$vacuum, ${\$blocker->pid}] FROM index_mover_progress", 't', 'both are in the way');
usleep(2_000_000);
is(sql("SELECT backend_type FROM pg_stat_activity WHERE pid = $vacuum"), 'autovacuum worker', 'the autovacuum goes on');
$blocker->run('COMMIT');
$start = time;
poll_until($node, "SELECT status FROM index_mover_history WHERE job = $waits", 'moved', 'an autovacuum gives way');
ok($node->log_contains(
	qr/DEBUG:  00000: sending cancel to blocking autovacuum PID \d+\n(?:.*CONTEXT:  job .*\n)?.*LOCATION:  blockers_cancel_autovacuum/,
		$log), 'it was canceled');
sql('ALTER SYSTEM RESET log_min_messages');
soon_ok(time - $start, 10, 'an autovacuum gives way soon');
sql("ALTER SYSTEM SET autovacuum = off");
sql("SELECT pg_reload_conf()");
verdict_ok($node, 'bl', 'at the end', max_keys => 200);

# Transactions that follow each other without a gap, longer than the rests between two looks:
# in the table, in its partition by its parent, in a partition that only a plan has locked, and
# by a plan that was made before, which locks no index that it does not use, as pg_dump.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE busy (k int, i int) PARTITION BY LIST (k);
CREATE TABLE busy_1 PARTITION OF busy FOR VALUES IN (1);
CREATE TABLE busy_2 PARTITION OF busy FOR VALUES IN (2);
INSERT INTO busy SELECT g % 2 + 1, g FROM generate_series(1, 2000) g;
CREATE INDEX busy_i ON busy (i);
CREATE FUNCTION second() RETURNS int STABLE LANGUAGE sql AS 'SELECT 2';
VACUUM ANALYZE busy;
SQL
my $script = PostgreSQL::Test::Utils::tempdir() . '/busy.sql';
foreach my $case (
	picked { $_->[0] =~ /^(?:the index|the table, by a plan|the parent)/ } 'places of transactions without a gap',
	[ 'the index', "SELECT pg_sleep(0.4) FROM busy_1 WHERE i = 1 OR true LIMIT 1", 'simple', "move_indexes('busy_1_i_idx', '%s')" ],
	[ 'the table', 'SELECT pg_sleep(0.4) FROM busy_1 LIMIT 1', 'simple', "move_table('busy_1', '%s')" ],
	[ 'the table, by its parent', 'SELECT count(k), pg_sleep(0.4) FROM busy', 'simple', "move_table('busy_1', '%s')" ],
	[ 'the table, in a plan only', 'SELECT count(*), pg_sleep(0.4) FROM busy WHERE k = second()', 'simple', "move_table('busy_1', '%s')" ],
	[ 'the table, by a plan that was made before', 'SELECT count(k), pg_sleep(0.4) FROM busy', 'prepared', "move_table('busy_1', '%s')" ],
	[ 'the parent, which has no file', 'SELECT count(k), pg_sleep(0.4) FROM busy', 'simple', "move_table('busy', '%s')" ])
{
	my ($name, $query, $mode, $call) = @$case;
	my $said = '';
	unlink $script;
	append_to_file($script, "$query;\n");
	my $busy = IPC::Run::start([ 'pgbench', '-n', '-M', $mode, '-c', '1', '-T', '3600', '-f', $script, $node->connstr('postgres') ],
		'>&', \$said);
	poll_until($node, q{SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(0.4)%' AND wait_event = 'PgSleep'}, 't',
		"$name: a client");
	foreach my $to ('regress_fast', 'regress_slow')
	{
		my $job = sql('SELECT max(job) FROM ' . sprintf($call, $to) =~ s/\)$/, wait => false)/r);
		wait_for_job_end($node, $job);
		is(sql("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"), 'moved',
			"$name: transactions without a gap are not waited for in vain");
	}
	$busy->kill_kill(grace => 1);
}

# Sessions that exclude each other wait in the queue one after the other, so a move never stands first in it
# within lock_timeout: neither to swap, nor to begin.  (A bid stands in line for half of deadlock_timeout.)
$node->adjust_conf('postgresql.conf', 'deadlock_timeout', '1s');
$node->reload;
foreach my $case (
	[ 'to swap', 2, 'EXCLUSIVE', 0.15, 'moved', '' ],
	[ 'to begin', 6, 'ACCESS EXCLUSIVE', 0.06, 'moved', '' ],
	[ 'too many of them', 8, 'EXCLUSIVE', 0.3, 'failed', 'Others queue for the lock, or have held it only for moments.' ])
{
	my ($name, $clients, $mode, $seconds, $status, $detail) = @$case;
	my $said = '';
	unlink $script;
	append_to_file($script, "BEGIN; LOCK TABLE busy_1 IN $mode MODE; SELECT pg_sleep($seconds); COMMIT;\n");
	my $busy = IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-T', '3600', '-f', $script, $node->connstr('postgres') ], '>&', \$said);
	poll_until($node, q{SELECT count(*) FROM pg_locks WHERE relation = 'busy_1'::regclass AND mode LIKE '%ExclusiveLock'}, $clients,
		"sessions that exclude each other, $name: all are there");
	my $to = sql(q{SELECT CASE reltablespace WHEN (SELECT oid FROM pg_tablespace WHERE spcname = 'regress_fast') THEN 'regress_slow' }
		. q{ELSE 'regress_fast' END FROM pg_class WHERE oid = 'busy_1'::regclass});
	my $lock_wait = $status eq 'moved' ? '2min' : '3s';
	my $job = sql("SELECT max(job) FROM move_table('busy_1', '$to', wait => false, "
		. qq[settings => '{"on_blocker": "fail", "lock_wait": "$lock_wait"}') WHERE name = 'busy_1']);
	wait_for_job_end($node, $job);
	is(sql("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"), $status,
		"sessions that exclude each other, $name: $status");
	my $row = "FROM index_mover_history WHERE job = $job AND name = 'busy_1'";
	cmp_ok(sql("SELECT lock_attempts $row"), '<=', 20, "sessions that exclude each other, $name: a few attempts") if $status eq 'moved';
	like(sql("SELECT message $row"), qr/: \Q$detail\E$/, "sessions that exclude each other, $name: no session of a moment is named")
	  if $status eq 'failed';
	$busy->kill_kill(grace => 1);
}

# No session is signaled for a short transaction, which has ended when the signal comes; and
# whoever is named has not ended.
{
	my $said = '';
	unlink $script;
	append_to_file($script, "SELECT count(k), pg_sleep(0.7) FROM busy;\n");
	my $busy = IPC::Run::start([ 'pgbench', '-n', '-c', '8', '-T', '3600', '-f', $script, $node->connstr('postgres') ], '>&', \$said);
	poll_until($node, q{SELECT count(*) > 7 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(0.7)%'}, 't', 'eight clients');
	my $log = -s $node->logfile;
	my $job = sql(q{SELECT job FROM move_indexes('busy_1_i_idx', 'regress_fast', 'copy', wait => false, }
		. q{settings => '{"on_blocker": "cancel", "lock_wait": "3s"}')});
	my ($named, $ended) = (0, 0);
	until ($node->log_contains(qr/did not move index .*busy_1_i_idx|moved index .*busy_1_i_idx/, $log))
	{
		my ($n, $gone) = split /\|/, sql(<<SQL);
SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = b AND l.relation = 'busy_1_i_idx'::regclass))
  FROM index_mover_progress, unnest(blocked_by) b
SQL
		$named += $n;
		$ended += $gone;
	}
	cmp_ok($named, '>', 0, "$named processes were named");
	# (one may end between the two reads of this query)
	cmp_ok($ended, '<=', $named / 10, "of these, $ended held nothing");
	wait_for_job_end($node, $job);
	unlike(slurp_file($node->logfile, $log), qr/canceled process|canceling statement due to user request/,
		'no short transaction was canceled');
	$busy->kill_kill(grace => 1);
	sql('DROP TABLE busy; DROP FUNCTION second()');
}

# who is in the way of removing what a move that was killed has left, before the
# next one of that table
leave_behind($node, 'postgres');
my $left = "SELECT count(*) FROM pg_class WHERE relname = 'behind_rebuild_i_ccnew'";
$blocker = IndexMover::Session->new($node);
$blocker->run('BEGIN; LOCK TABLE behind_rebuild IN ROW EXCLUSIVE MODE');
is(sql("SELECT status FROM move_indexes('behind_rebuild_i', 'regress_fast', 'copy', settings => '{\"lock_wait\": \"500ms\"}')"), 'moved',
	'fail: a leftover that cannot be removed does not stop a copy');
is(sql($left), '1', 'it stays');
is(is_alive($blocker), '1', 'and none is signaled');
($rc, $o, $e) = $node->psql('postgres',
	told("move_indexes('behind_rebuild_i', 'regress_slow', 'copy', settings => "
		. "'{\"on_blocker\": \"terminate\", \"lock_wait\": \"500ms\"}')"),
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($o, qr/^moved\|\|.*It has terminated process ${\$blocker->pid} of role "postgres"\.$/,
	'terminate: the history says who had to go for a leftover');
like($e, qr/WARNING:  01000: terminated process ${\$blocker->pid}, which was in the way of moving index "behind_rebuild_i"/,
	'with a WARNING');
is(sql($left), '0', 'and the leftover is removed');
leftovers_ok($node, 'after a leftover was removed', within => 5);

done_testing();
