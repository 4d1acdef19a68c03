# Rebuilds that do not come to their end.
#
# Canceled in each of their phases, in each way there is: one wave for each way.  In a
# wave every phase has a database of its own, so that the rebuilds do not wait for each
# other; in each of them blockers hold a rebuild in its phase, which is looked at
# before it is hit.  The blockers stay for some seconds: the call must return within 5,
# no session may have to queue behind a leftover, and it must be gone within 5 seconds
# after the blockers.
#
# Then killed, terminated, canceled or failing at each pause point: all of them are
# before the swap, so the index is where it was, whole, and nothing is left behind;
# what the unfinished one has left goes without help, or after a kill with
# the next cleanup.  (With others in the way: t/011_rebuild_leftovers.pl.)  There, too,
# the server is shut down, and the postmaster killed.
#
# Fault (processes): worker canceled, in each phase, at each pause point, while it writes the
#   history, and while it removes what a failed copy has made (also 011, 021, 048)
# Fault (processes): worker terminated, in each phase, at each pause point, while it writes the
#   history, between two indexes, and while it removes what a failed copy has made (also 021,
#   048)
# Fault (processes): the waiting caller: Ctrl-C, timeout, cancel, termination, loss (also 026)
# Fault (transactions): long writers; no session queues behind us (also 023, 043)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Shutdown;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

needs_test_points();

my $HOLD = faults() ? 10 : 2;   # seconds that the blockers stay after the cancel
my $RETURN = 5;     # seconds a call may take to return
my $GONE = 5;       # seconds a leftover may stay after the last blocker

my $node = new_node('rebuild', conf => <<CONF);
max_connections = 150
max_worker_processes = 40
shared_buffers = 64MB
CONF

# The template: an index whose build stops at row 1, and whose validation stops
# at row 2 (if that was not there when it was built), while a session holds the
# advisory lock of that number.
$node->safe_psql('postgres', <<'SQL');
SELECT pg_catalog.set_config('client_min_messages', 'warning', false);
CREATE FUNCTION wait_at(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF i IN (1, 2) THEN PERFORM pg_advisory_xact_lock_shared(i); END IF;
	RETURN i;
END $$;
CREATE TABLE t (i int, filler text);
INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(3, 1000) g UNION ALL SELECT 1, 'one';
CREATE INDEX t_wait ON t (wait_at(i)) TABLESPACE regress_slow;
ANALYZE t;
COMMENT ON INDEX t_wait IS 'stays';
SELECT oracle.remember_metadata('t');
SQL

# How to bring a rebuild into its phase: a list of steps, which are SQL for the
# blocker a, b or c, "call", or a phase to wait for.
my %phases = (
	'waiting for writers before build (maintenance)' => {
		steps => [ a => 'BEGIN; LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE', 'call' ],
		entry => 0 },
	'waiting for writers before build' => {
		steps => [ a => 'BEGIN; INSERT INTO t VALUES (3000)', 'call' ],
		entry => 0 },
	'waiting for old snapshots (before)' => {
		steps => [ a => 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_am', 'call' ],
		entry => 0 },
	'building index' => {
		steps => [ a => 'SELECT pg_advisory_lock(1)', 'call' ],
		entry => 1, free => 1 },
	'waiting for writers before validation' => {
		steps => [ a => 'SELECT pg_advisory_lock(1)', 'call', 'building index',
			b => 'BEGIN; INSERT INTO t VALUES (3000)', a => 'SELECT pg_advisory_unlock(1)' ],
		entry => 1 },
	'index validation' => {
		steps => [ a => 'SELECT pg_advisory_lock(1), pg_advisory_lock(2)', 'call', 'building index',
			a => 'INSERT INTO t VALUES (2)', a => 'SELECT pg_advisory_unlock(1)' ],
		entry => 1, free => 1 },
	'waiting for old snapshots' => {
		steps => [ a => 'SELECT pg_advisory_lock(1)', 'call', 'building index',
			b => 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_am',
			a => 'SELECT pg_advisory_unlock(1)' ],
		entry => 1, free => 1 },
	'waiting for readers before marking dead' => {
		steps => [ a => 'BEGIN; SELECT count(*) FROM t', 'call' ],
		entry => 1, swapped => 1 },
	'waiting for readers before dropping' => {
		steps => [ a => 'BEGIN; SELECT count(*) FROM t', 'call', 'waiting for readers before marking dead',
			b => 'BEGIN; SELECT count(*) FROM t', a => 'COMMIT' ],
		entry => 1, swapped => 1 },
);

# Ways to cancel: what is done, and the SQLSTATEs the caller may get.
my %ways = (
	'Ctrl-C' => { do => sub { $_[0]->{call}{harness}->signal('INT') }, caller => qr/^57014$/ },
	'statement_timeout' => { do => sub { }, timeout => 1, caller => qr/^57014$/ },
	'pg_cancel_backend(caller)' => { sql => 'SELECT pg_cancel_backend(%caller%)', caller => qr/^57014$/ },
	'pg_terminate_backend(caller)' => { sql => 'SELECT pg_terminate_backend(%caller%)', caller => qr/^57P01$/ },
	'loss of the client' => { do => sub { kill('KILL', $_[0]->{psql}) }, caller => qr/^$/, killed => 1 },
	'pg_cancel_backend(worker)' => { sql => 'SELECT pg_cancel_backend(%worker%)', row => 1 },
	'pg_terminate_backend(worker)' => { sql => 'SELECT pg_terminate_backend(%worker%)', row => 1 },
	'cancel_move()' => { sql => 'SELECT cancel_move(%job%)', answer => '1', row => 1 },
);

my @names = sort keys %phases;
my %db = map { ($names[$_] => "phase_$_") } 0 .. $#names;
$node->safe_psql('postgres', "CREATE DATABASE $db{$_} TEMPLATE postgres") for @names;

sub sql { my ($p, $query) = @_; return $node->safe_psql($p->{db}, $query); }

# Wait until the rebuild of $p is in a phase.
sub reach
{
	my ($p, $phase) = @_;
	(my $shown = $phase) =~ s/ \(.*\)//;
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase LIKE '$shown%'",
		'1', "phase \"$phase\" in $p->{db}", dbname => $p->{db}, timeout => 60);
	return;
}

my $wave = 0;
my $longest_setup = 0;		# seconds
for my $way (sort keys %ways)
{
	my $w = $ways{$way};
	my %state;
	my $setup_start = time;
	# a statement_timeout that runs out when all are in their phases: it is the
	# last of the waves, and knows how long that takes here
	my $statement_timeout = $w->{timeout} ? 3 + int(4 * $longest_setup) : 0;
	# three phases a wave meet each phase twice at least
	my %third = map { $names[ (3 * $wave + $_) % @names ] => 1 } 0 .. 2;
	my @these = picked { $third{$_} } 'phases of each way to cancel', @names;
	$wave++;

	# ---- bring all into their phases ----
	for my $phase (@these)
	{
		my $p = $state{$phase} = { db => $db{$phase}, blocker => {} };
		my @steps = @{ $phases{$phase}{steps} };
		$p->{target} = elsewhere($node, 't_wait', dbname => $p->{db});
		sql($p, "UPDATE t SET i = 4 WHERE i = 2; DELETE FROM t WHERE i >= 3000; VACUUM t");
		$p->{before} = sql($p, "SELECT 't_wait'::regclass::oid");
		while (@steps)
		{
			my $step = shift @steps;
			if ($step eq 'call')
			{
				$p->{call} = start_call($node, "caller_$db{$phase}",
					"SET statement_timeout = '${statement_timeout}s'; "
					  . "SELECT name, status, sqlstate FROM move_indexes('t_wait', '$p->{target}', method => 'rebuild', settings => "
					  	. "'{\"progress_interval\": 0}')",
					dbname => $p->{db});
				$p->{started} = time;
			}
			elsif ($step =~ /^[abc]$/)
			{
				$p->{blocker}{$step} ||= $node->background_psql($p->{db}, on_error_die => 1);
				$p->{blocker}{$step}->query_safe(shift @steps);
			}
			else
			{
				reach($p, $step);
			}
		}
	}
	for my $phase (@these)
	{
		my $p = $state{$phase};
		reach($p, $phase);
		($p->{worker}, $p->{job}) = split /\|/, sql($p, 'SELECT pid, job FROM index_mover_progress');
		$p->{caller} = sql($p,
			"SELECT pid FROM pg_stat_activity WHERE application_name = 'caller_$p->{db}'");
		# the client, as the server knows it only by its socket
		$p->{psql} = $p->{call}{harness}{KIDS}[0]{PID};
		my $entry = sql($p,
			"SELECT count(*) FROM pg_class WHERE relname ~ '_cc(new|old)'");
		is($entry, $phases{$phase}{entry}, "$way, $phase: the worker is in that phase");
	}

	$longest_setup = time - $setup_start if time - $setup_start > $longest_setup;

	# ---- hit them ----
	my $hit = time;
	for my $phase (@these)
	{
		my $p = $state{$phase};
		$p->{hit} = time;
		if ($w->{sql})
		{
			(my $query = $w->{sql}) =~ s/%(\w+)%/$p->{$1}/g;
			is($node->safe_psql($p->{db}, $query), $w->{answer} || 't', "$way, $phase: hit");
		}
		else
		{
			$w->{do}->($p);
		}
	}

	# ---- the call returns ----
	for my $phase (@these)
	{
		my $p = $state{$phase};
		my ($status, $out, $err) = eval { finish_call($p->{call}) };
		my $took = time - $p->{hit};
		soon_ok($took, $RETURN + $statement_timeout, "$way, $phase: the call returns in time");
		if ($w->{row})
		{
			like($out, $phases{$phase}{swapped} ? qr/^t_wait\|moved\|57\w+$/m : qr/^t_wait\|canceled\|57\w+$/m,
				"$way, $phase: the row says so")
			  or diag $err;
		}
		elsif (!$w->{killed})
		{
			like(sqlstate_of($err), $w->{caller}, "$way, $phase: SQLSTATE") or diag "$out $err";
		}
	}

	# ---- while the blockers stay ----
	for my $phase (@these)
	{
		my $p = $state{$phase};
		my $info = $phases{$phase};

		# Before the entry exists there is nothing to leave, and what no lock on
		# the table holds back is removed at once.
		# (The advisory locks are the blockers'.)
		if (!$info->{entry} || $info->{free})
		{
			poll_until($node,
				"SELECT count(*) FROM oracle.leftovers_now() WHERE kind <> 'lock'",
				'0', 'no leftovers', dbname => $p->{db}, timeout => $GONE);
			pass("$way, $phase, blockers still there: nothing left over");
		}

		# no session queues behind us
		my ($rc, $out, $err) = $node->psql($p->{db},
			"SET lock_timeout = '10s'; INSERT INTO t VALUES (3001); SELECT count(*) > 0 FROM t WHERE wait_at(i) = 3;");
		is($rc, 0, "$way, $phase: others read and write meanwhile") or diag $err;
	}
	sleep(0.1) while time - $hit < $HOLD;
	for my $phase (@these)
	{
		my $p = $state{$phase};
		next if !$phases{$phase}{entry} || $phases{$phase}{free};
		# The job says that it has yet to clean up, and because of whom.
		poll_until($node, "SELECT phase, cardinality(blocked_by) > 0 FROM index_mover_progress",
			'cleaning up|t', "$way, $phase: cleanup", dbname => $p->{db});
		pass("$way, $phase: the job cleans up, and names who is in its way");
		my ($rc, $out, $err) = $node->psql($p->{db},
			"SET lock_timeout = '10s'; INSERT INTO t VALUES (3002); SELECT count(*) > 0 FROM t WHERE wait_at(i) = 3;");
		is($rc, 0, "$way, $phase: others read and write after $HOLD s") or diag $err;
	}

	# ---- without them ----
	for my $phase (@these)
	{
		my $p = $state{$phase};
		$_->quit for values %{ $p->{blocker} };
	}
	for my $phase (@these)
	{
		my $p = $state{$phase};
		leftovers_ok($node, "$way, $phase", dbname => $p->{db},
			within => $GONE);
		is(sql($p, "SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass AND indisvalid AND indisready"),
			'1', "$way, $phase: the index is there, old or new");
		my ($history, $sqlstate) = split /\|/,
		  sql($p, "SELECT status, sqlstate FROM index_mover_history WHERE job = $p->{job}");
		is($history, $phases{$phase}{swapped} ? 'moved' : 'canceled', "$way, $phase: history");
		# The next call succeeds.
		my ($rc, $out, $err) = $node->psql($p->{db},
			"SELECT status FROM move_indexes('t_wait', '$p->{target}', method => 'rebuild')");
		like($out, qr/^(moved|skipped)$/, "$way, $phase: the next call succeeds") or diag $err;
		is(tablespace_of_index($node, 't', dbname => $p->{db}), "t_wait: $p->{target}", "$way, $phase: and the index is where it belongs");
		verdict_ok($node, 't', "$way, $phase", dbname => $p->{db});
		metadata_ok($node, 't', "$way, $phase", dbname => $p->{db}, restarted => 1);
		files_ok($node, "$way, $phase", dbname => $p->{db});
	}
}

# ---- at the pause points ------------------------------------------------------------
$node->safe_psql('postgres', "DROP DATABASE $_") foreach values %db;
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE rc (i int PRIMARY KEY, s text) WITH (fillfactor = 80);
INSERT INTO rc SELECT g, md5(g::text) FROM generate_series(1, 3000) g;
CREATE INDEX rc_s ON rc (s) TABLESPACE regress_slow;
COMMENT ON INDEX rc_s IS 'stays';
SELECT oracle.remember_keys('rc'), oracle.remember_metadata('rc');
SQL

# Behind a commit nothing may fail any more: there, an error would be PostgreSQL's
# PANIC, and a cancel waits for the next moment at which it can be obeyed.
my %committing = map { $_ => 1 } qw(rebuild-entry-committed rebuild-step-committed);
my @points = (qw(rebuild-begins rebuild-named rebuild-entry-made caller-hidden), sort keys %committing);

my %class = map { $_ => 1 } qw(rebuild-begins rebuild-entry-made rebuild-step-committed);
foreach my $action (qw(kill error terminate cancel))
{
	foreach my $point (picked { $action eq 'kill' || $class{$_} } 'points, but for kills', @points)
	{
		next if $action eq 'error' && $committing{$point};
		my $name = "$action at $point";
		my $from = tablespace_of_index($node, 'rc_s');
		my $to = other_place($from);
		my $move = "FROM move_indexes('rc_s', '$to', method => 'rebuild')";
		$node->safe_psql('postgres', 'UPDATE rc SET s = md5(s) WHERE i % 50 = 7');
		my ($rc, $out, $err);
		if ($action eq 'kill' || $action eq 'error')
		{
			set_test_point($node, "$point:$action");
			my $log = -s $node->logfile;
			my $call = start_call($node, 'mover', "SELECT status, sqlstate $move");
			(undef, $out, $err) = finish_call($call);
			wait_until_up($node) if $action eq 'kill';
			ok($node->log_contains($action eq 'kill' ? qr/was terminated by signal 9/ : qr/test point "$point"/, $log), "$name: it was so");
			set_test_point($node, '');
		}
		else
		{
			my $call = held_at($node, $point, "SELECT status, sqlstate $move");
			is($node->safe_psql('postgres', "SELECT pg_${action}_backend($call->{worker})"), 't', "$name: it was so");
			let_go($call);
			(undef, $out, $err) = finish_call($call);
		}
		chomp $out;
		my %row = (error => 'failed|XX000', terminate => 'canceled|57P01', cancel => 'canceled|57014');
		is($out, $row{$action}, "$name: the row") or diag $err if $row{$action};
		is(tablespace_of_index($node, 'rc_s'), $from, "$name: the index is where it was");
		if ($action eq 'kill')
		{
			wait_for_no_worker($node);
			# before the commit of its entry there is nothing to remove
			my $left = $committing{$point} || $point eq 'caller-hidden' ? 1 : 0;
			is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()'), $left,
				"$name: what index_mover_cleanup() removes");
			# core's own empty file, see "What is not met" in docs/reliability.md
			my ($problem, $path, $size) = split /\|/, $node->safe_psql('postgres', 'SELECT * FROM oracle.files()');
			unlink $node->data_dir . "/$path" if $point eq 'rebuild-entry-made' && defined $size && "$problem $size" eq 'orphan 0';
			files_ok($node, $name);
			leftovers_ok($node, $name, within => 5);
			metadata_ok($node, 'rc', $name, restarted => 1);
			verdict_ok($node, 'rc', $name, max_keys => 200);
			is($node->safe_psql('postgres', "SELECT status $move"), 'moved', "$name: the next call works");
		}
		else
		{
			survived_ok($node, 'rc', $name, "SELECT status $move", max_keys => 200, restarted => 1);
		}
		count_fault("rebuild, worker: $action");
	}
}

# ---- the postmaster is killed ------------------------------------------------------
# Its worker may come to the end of the command, or to a wait, where it ends: the
# index is in one place or the other.
foreach my $point (picked { $_ eq 'rebuild-entry-committed' } 'points where the postmaster is killed', @points)
{
	my $name = "postmaster killed at $point";
	my $to = elsewhere($node, 'rc_s');
	$node->safe_psql('postgres', 'UPDATE rc SET s = md5(s) WHERE i % 50 = 7');
	set_test_point($node, "$point:doze");
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover', "SELECT status, sqlstate FROM move_indexes('rc_s', '$to', method => 'rebuild')");
	$node->wait_for_log(qr/test point "$point": dozing/, $log);
	$call->{worker} = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover'");
	kill_postmaster($node, $call, $name);
	set_test_point($node, '');
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	my $next = elsewhere($node, 'rc_s');
	survived_ok($node, 'rc', $name, "SELECT status FROM move_indexes('rc_s', '$next', method => 'rebuild')",
		max_keys => 50, restarted => 1, count => 'postmaster killed in mid-rebuild');
	wait_for_no_worker($node);
}

# ---- the server is shut down ---------------------------------------------------------
foreach my $case (
	picked { $_->[1] =~ /begins|entry-committed|hidden/ } 'shutdowns',
	[ 'fast', 'rebuild-begins' ],
	[ 'smart', 'rebuild-named' ],
	[ 'fast', 'rebuild-entry-made' ],
	[ 'immediate', 'rebuild-entry-committed' ],
	[ 'immediate', 'rebuild-step-committed' ],
	[ 'smart', 'caller-hidden' ])
{
	my ($mode, $point) = @$case;
	my $name = "$mode shutdown at $point";
	my $from = tablespace_of_index($node, 'rc_s');
	my $to = other_place($from);
	my $call = held_at($node, $point, "SELECT count(*) FROM move_indexes('rc_s', '$to', method => 'rebuild', wait => false)",
		prepared => 1);
	finish_call($call);
	soon_ok(shut_down($node, $mode), 10, "$name: it ends");
	ok(process_is_gone($call->{worker}), "$name: no worker is left");
	$node->start;
	$node->safe_psql('postgres', "ROLLBACK PREPARED 'holder'");
	is(tablespace_of_index($node, 'rc_s'), $from, "$name: the index is where it was");
	is($node->safe_psql('postgres', 'SELECT status FROM index_mover_history ORDER BY job DESC LIMIT 1'),
		$mode eq 'immediate' ? 'interrupted' : 'canceled', "$name: the history");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	survived_ok($node, 'rc', $name, "SELECT status FROM move_indexes('rc_s', '$to', method => 'rebuild')",
		max_keys => 50, restarted => 1, count => 'server shut down in mid-rebuild');
	wait_for_no_worker($node);
}

$node->stop;
done_testing();
