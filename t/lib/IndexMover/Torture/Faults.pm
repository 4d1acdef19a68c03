# IndexMover::Torture::Faults
#   What the random test does to the server, to the moves and to their clients
#   while they run.  Each fault says whether it was done; it is counted under its
#   name, and again under "... in a move" when a move was on its way.
#
# In a round without crashes nothing is done after which nothing could clean up:
# nothing is killed, the server goes on, and no worker is stopped while it cleans up.
#
# A fault that changes a table has its way back in {undo}, which the check at the
# end of a round runs, so that the catalogs can be compared.
package IndexMover::Torture::Faults;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Processes;
use IndexMover::Test;
use IndexMover::Torture::Movers qw(quick_sql);
use PostgreSQL::Test::Utils qw(system_log);
use Time::HiRes qw(time usleep);

our @EXPORT_OK = qw(random_fault);

# $t is the state of the run: node, standby, connstr, counts, undo, movers and
# clients (pids of their processes).

# Each of the statements by itself: VACUUM cannot be in a transaction block.
sub one
{
	my ($t, @sql) = @_;
	my ($rc, $out) = quick_sql($t->{connstr}, [ "SET lock_timeout = '3s'", @sql ], 30);
	return undef if $rc;
	chomp $out;
	return $out;
}

# The pid of some process, by a condition on pg_stat_activity.
sub some_pid
{
	my ($t, $condition) = @_;
	my $pid = one($t, "SELECT pid FROM pg_stat_activity WHERE $condition ORDER BY random() LIMIT 1");
	return $pid && $pid =~ /^\d+$/ ? $pid : undef;
}

sub some_job
{
	my ($t) = @_;
	my $job = one($t, 'SELECT job FROM index_mover_progress ORDER BY random() LIMIT 1');
	return $job && $job =~ /^\d+$/ ? $job : undef;
}

my $worker = "backend_type = 'index_mover'";
my $mover = "pid IN (SELECT pid FROM index_mover_progress WHERE job > 0 AND phase <> 'cleaning up')";
my %is_crash = map { $_ => 1 } (
	'kill -9 worker', 'kill -9 backend of a client', 'kill -9 postmaster', 'immediate restart',
	'fast restart', 'kill -9 walwriter', 'kill -9 checkpointer');

# A signal to the process that the condition finds.
sub signal_some
{
	my ($t, $signal, $condition) = @_;
	my $pid = some_pid($t, $condition) or return 0;
	return kill $signal, $pid;
}

# Steering, for a job that runs now.
sub steer
{
	my ($t, $sql) = @_;
	my $job = some_job($t) or return 0;
	return defined one($t, sprintf($sql, $job)) ? 1 : 0;
}

sub restart_primary
{
	my ($t, $how) = @_;
	my $old = $t->{node}{_pid};
	if ($how eq 'kill9')
	{
		$t->{node}->kill9;
		start_again($t->{node}, $old);
	}
	else
	{
		$t->{node}->stop($how);
		$t->{node}->start;
	}
	return 1;
}

# psql processes of a mover or a client: children of ours' children.
sub kill_psql
{
	my ($t, $parents) = @_;
	my $parent = $parents->[ int(rand(@$parents)) ];
	open(my $fh, '<', "/proc/$parent/task/$parent/children") or return 0;
	my @children = split ' ', (<$fh> // '');
	return @children ? kill 'KILL', $children[0] : 0;
}

# DDL with a way back.
sub ddl
{
	my ($t, $do, $undo) = @_;
	return 0 unless defined one($t, $do);
	push @{ $t->{undo} }, $undo if $undo;
	return 1;
}

my $serial = 0;

# name => [ weight, what to do ]
my %faults = (
	'cancel worker' => [ 8, sub { signal_some($_[0], 'INT', $_[1] ? $mover : $worker) } ],
	'terminate worker' => [ 6, sub { signal_some($_[0], 'TERM', $_[1] ? $mover : $worker) } ],
	'kill -9 worker' => [ 6, sub { signal_some($_[0], 'KILL', $worker) } ],
	'kill -9 backend of a client' => [ 1,
		sub { signal_some($_[0], 'KILL', "backend_type = 'client backend' AND pid <> pg_backend_pid()") } ],
	'kill -9 postmaster' => [ 3, sub { restart_primary($_[0], 'kill9') } ],
	'immediate restart' => [ 2, sub { restart_primary($_[0], 'immediate') } ],
	'fast restart' => [ 2, sub { restart_primary($_[0], 'fast') } ],
	'kill -9 walwriter' => [ 1, sub { signal_some($_[0], 'KILL', "backend_type = 'walwriter'") } ],
	'kill -9 checkpointer' => [ 1, sub { signal_some($_[0], 'KILL', "backend_type = 'checkpointer'") } ],
	'kill -9 client of a move' => [ 5, sub { kill_psql($_[0], $_[0]{movers}) } ],
	'kill -9 client of the load' => [ 3, sub { kill_psql($_[0], $_[0]{clients}) } ],
	'terminate backend of a client' => [ 3,
		sub { signal_some($_[0], 'TERM', "backend_type = 'client backend' AND pid <> pg_backend_pid()") } ],
	'cancel waiting call' => [ 4,
		sub { signal_some($_[0], 'INT', "backend_type = 'client backend' AND query LIKE '%move%' AND pid <> pg_backend_pid()") } ],
	'cancel_move' => [ 4, sub { steer($_[0], 'SELECT cancel_move(%d)') } ],
	'pause and resume' => [ 6, sub {
			my ($t) = @_;
			my $job = some_job($t) or return 0;
			return 0 unless defined one($t, "SELECT pause_move($job)");
			usleep(int(rand(1_500_000)));
			one($t, "SELECT resume_move($job)");
			return 1;
		} ],
	'alter_move' => [ 4, sub {
			my $rate = ('500kB', '8MB', '0')[ int(rand(3)) ];
			steer($_[0], "SELECT alter_move(%d, 'max_rate', '$rate')");
		} ],
	'undo_move' => [ 2, sub {
			my $job = one($_[0], "SELECT job FROM index_mover_history WHERE status = 'moved' ORDER BY random() LIMIT 1");
			$job && defined one($_[0], "SELECT count(*) FROM undo_move($job, wait => false)");
		} ],
	'index_mover_cleanup' => [ 3, sub { defined one($_[0], 'SELECT count(*) FROM index_mover_cleanup()') } ],
	'checkpoint' => [ 6, sub { defined one($_[0], 'CHECKPOINT') } ],
	'switch of the WAL file' => [ 3, sub { defined one($_[0], 'SELECT pg_switch_wal()') } ],
	'vacuum' => [ 8, sub { defined one($_[0],
		'VACUUM ' . ('zoo', 'parts', 'wide', 'side', '(FREEZE) zoo', '(FREEZE) wide')[ int(rand(6)) ]) } ],
	'add column' => [ 3, sub { my $n = 'c' . ++$serial;
		ddl($_[0], "ALTER TABLE zoo ADD COLUMN $n int DEFAULT 7", "ALTER TABLE zoo DROP COLUMN $n") } ],
	'rename index' => [ 4, sub {
			my $from = ('zoo_multi', 'zoo_trgm', 'parts_0_txt_idx')[ int(rand(3)) ];
			my $n = $from . ++$serial;
			ddl($_[0], "ALTER INDEX $from RENAME TO $n", "ALTER INDEX IF EXISTS $n RENAME TO $from");
		} ],
	'create index' => [ 3,
		sub { my $n = 'extra' . ++$serial;
			ddl($_[0], "CREATE INDEX $n ON zoo (txt, id) TABLESPACE regress_slow", "DROP INDEX IF EXISTS $n") } ],
	'drop index' => [ 3, sub {
			my ($t) = @_;
			my ($undo) = grep { /^DROP INDEX/ } @{ $t->{undo} };
			$undo && defined one($t, $undo);
		} ],
	'alter index set' => [ 3, sub { defined one($_[0], 'ALTER INDEX zoo_expr ALTER COLUMN 1 SET STATISTICS 77') } ],
	'reindex concurrently' => [ 4, sub {
			my ($t) = @_;
			defined one($t, "SET statement_timeout = '8s'", 'REINDEX INDEX CONCURRENTLY zoo_other');
		} ],
	'reindex' => [ 2, sub { defined one($_[0], 'REINDEX INDEX ' . ('zoo_arr', 'parts_1_pkey', 'side_txt')[ int(rand(3)) ]) } ],
	'alter index set tablespace' => [ 2,
		sub { defined one($_[0], 'ALTER INDEX zoo_sp SET TABLESPACE ' . (rand() < 0.5 ? 'regress_fast' : 'regress_slow')) } ],
	'alter table set tablespace' => [ 2,
		sub { defined one($_[0], 'ALTER TABLE ' . ('side', 'wide', 'parts_0')[ int(rand(3)) ] . ' SET TABLESPACE '
			. (rand() < 0.5 ? 'regress_fast' : 'regress_slow')) } ],
	'open grant' => [ 3, sub { defined one($_[0], 'BEGIN; GRANT SELECT ON ' . ('zoo', 'wide', 'parts_1')[ int(rand(3)) ]
		. ' TO pg_monitor; SELECT pg_sleep(0.5); ' . (rand() < 0.5 ? 'COMMIT' : 'ROLLBACK')) } ],
	'cluster' => [ 2, sub { defined one($_[0], 'CLUSTER side USING side_pkey') } ],
	'truncate' => [ 2, sub { defined one($_[0],
		'TRUNCATE side; INSERT INTO side SELECT g, md5(g::text) FROM generate_series(1, 3000) g') } ],
	'vacuum full' => [ 1, sub { defined one($_[0], 'VACUUM FULL side') } ],
	'old snapshot' => [ 3,
		sub { defined one($_[0], 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM zoo; SELECT pg_sleep(1.5); COMMIT') } ],
	'lock on the table' => [ 3, sub { defined one($_[0], 'BEGIN; LOCK TABLE zoo IN SHARE MODE; SELECT pg_sleep(0.3); COMMIT') } ],
	'dead standby' => [ 2, sub {
			my ($t) = @_;
			my $standby = $t->{standby} or return 0;
			$standby->stop(rand() < 0.5 ? 'fast' : 'immediate');
			usleep(int(rand(1_000_000)));
			$standby->start;
			return 1;
		} ],
	'query on the standby' => [ 3, sub {
			my $standby = $_[0]{standby} or return 0;
			quick_sql($standby->connstr('postgres'), 'BEGIN; SELECT count(*) FROM zoo WHERE grp = 5; SELECT pg_sleep(1); COMMIT', 30);
			return 1;
		} ],
);

my @wheel = map { ($_) x $faults{$_}[0] } sort keys %faults;

# Do one of them, or, if nothing may crash, one of the others; returns its name,
# undef if there was nothing to do it to.  What was tried may have been done in part.
sub random_fault
{
	my ($t, $no_crash) = @_;
	my $name = $wheel[ int(rand(@wheel)) ];
	return undef if $no_crash && $is_crash{$name};
	my $moves = one($t, 'SELECT count(*) FROM index_mover_progress WHERE pid IS NOT NULL');
	$t->{tried}{$name} = 1;
	my $done = $faults{$name}[1]->($t, $no_crash);
	wait_until_up($t->{node});
	return undef unless $done;
	$t->{counts}{"fault: $name"}++;
	$t->{counts}{"in a move: $name"}++ if $moves;
	return $name;
}

1;
