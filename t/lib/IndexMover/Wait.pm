# IndexMover::Wait
#   Waiting for a state instead of sleeping, and how long something may take.
package IndexMover::Wait;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Query;
use List::Util ();
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(poll_until wait_until wait_until_up wait_for_phase wait_for_no_worker wait_for_job_end worker_pid soon_ok);

our $TIMEOUT = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;

# The seconds in the tests are what is promised on a machine that has nothing
# else to do.  A busy one makes pauses of seconds, so that a test fails only if
# something takes this many times as long; where something is wrong it has
# no end, or ends when a session lets go that does not before.  With
# INDEX_MOVER_SLACK=1 the promise itself is tested.
our $SLACK = $ENV{INDEX_MOVER_SLACK} || 10;

# Poll until the query gives the expected answer ('t'); dies with the last
# answer when it does not.  Returns the seconds it took.  Option timeout: in
# seconds of a machine that has nothing else to do.
sub poll_until
{
	my ($node, $query, $expected, $what, %options) = @_;
	$expected = 't' unless defined $expected;
	my $limit = $options{timeout} ? List::Util::min($options{timeout} * $SLACK, $TIMEOUT) : $TIMEOUT;
	my $start = time;
	my ($session, $out, $err);
	while (1)
	{
		($out, $err) = IndexMover::Query::ask_again(\$session, $node, $options{dbname} || 'postgres', $query);
		last if defined $out && $out eq $expected || time - $start > $limit;
		usleep(30_000);
	}
	my $took = time - $start;
	$session->end if $session;
	return $took if defined $out && $out eq $expected;
	my $state = $node->safe_psql('postgres',
		"SELECT pid, backend_type, state, wait_event_type, wait_event, backend_xmin, left(query, 100) FROM pg_stat_activity WHERE "
			. "datname IS NOT NULL");
	die 'gave up waiting for ' . ($what || $query)
	  . "\nlast answer: " . (defined $out ? $out : '(none)') . " $err\nsessions:\n$state\n";
}

# Wait until a function returns true: for what no query tells.
sub wait_until
{
	my ($what, $is_so) = @_;
	my $start = time;
	until ($is_so->())
	{
		die "in vain: $what" if time - $start > $TIMEOUT;
		usleep(50_000);
	}
	return;
}

# Wait until the server takes connections (again).  Not at once: the postmaster may not
# have noticed yet that a process was killed.
sub wait_until_up
{
	my ($node) = @_;
	my $start = time;
	my $session;
	usleep(200_000);
	until ($session = eval { IndexMover::Query::connect($node, 'postgres') })
	{
		die "server does not come up: $@" if time - $start > $TIMEOUT;
		usleep(30_000);
	}
	$session->end;
	return;
}

# Wait until a move is in a phase (pattern of LIKE); returns the worker's pid.
sub wait_for_phase
{
	my ($node, $phase, %options) = @_;
	poll_until($node,
		"SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE '$phase'",
		't', "phase \"$phase\"", %options);
	return worker_pid($node, %options);
}

# The pid of the process that moves (one of them).
sub worker_pid
{
	my ($node, %options) = @_;
	return $node->safe_psql($options{dbname} || 'postgres',
		'SELECT pid FROM index_mover_progress WHERE pid IS NOT NULL ORDER BY started_at DESC LIMIT 1');
}

# Wait until no process of ours works in this database any more, and none is yet to
# start for a job that was submitted.
sub wait_for_no_worker
{
	my ($node, %options) = @_;
	return poll_until($node, <<'SQL', 't', 'end of all workers', %options);
SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type LIKE 'index\_mover%' AND backend_type NOT LIKE '%launcher%'
  AND datname = current_database())
   AND CASE WHEN to_regclass('index_mover.job_log') IS NULL THEN true
       ELSE NOT EXISTS (SELECT FROM ts_stat('SELECT array_to_tsvector(ARRAY[job::text]) FROM index_mover.job_log
											 WHERE job IN (SELECT alive.job FROM index_mover.alive())')) END
SQL
}

# Wait until a job has ended and its last worker has said so.  Not by the view of
# the running moves: there, a job whose worker is still starting is not yet seen.
sub wait_for_job_end
{
	my ($node, $job, %options) = @_;
	return poll_until($node, "SELECT $job NOT IN (SELECT alive.job FROM index_mover.alive())", 't', "the end of job $job", %options);
}

# Something has taken so many seconds, and had to be done within these.
sub soon_ok
{
	my ($seconds, $limit, $name) = @_;
	note sprintf('%s: %.2f s, on an idle machine less than %s s', $name, $seconds, $limit);
	return cmp_ok($seconds, '<', $limit * $SLACK, $name);
}

1;
