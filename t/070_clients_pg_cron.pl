# The real pg_cron, over libpq and with background workers: the schedules of
# README.md and docs/guide.md as they stand there, what a failed run leaves
# in cron.job_run_details, two schedules that want the same table, and tier
# policies that run every second while the months go by.
#
# pg_cron is not part of PostgreSQL; without it there is nothing to test here.
# (t/090_docs_readme.pl runs the scheduled commands in any case.)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use IndexMover::Tiers;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $libdir = `pg_config --pkglibdir`);
plan skip_all => 'pg_cron is not installed (package postgresql-NN-cron)' unless -f "$libdir/pg_cron.so";

# 1.5 brought schedules of seconds; with minutes this would take half an hour
chomp(my $sharedir = `pg_config --sharedir`);
plan skip_all => 'needs pg_cron 1.5 or newer' unless -f "$sharedir/extension/pg_cron--1.4-1--1.5.sql";

my $top = "$FindBin::RealBin/..";
my $node = new_node('cron', start => 0, conf => <<CONF);
shared_preload_libraries = 'pg_cron'
max_worker_processes = 20
CONF
$node->append_conf('postgresql.conf', "cron.host = '" . $node->host . "'\n");
$node->start;
$node->safe_psql('postgres', "CREATE TABLESPACE $_ LOCATION ''") foreach 'slow_storage', 'fast_storage', 'regress_slow', 'regress_fast';
setup_database($node, 'postgres');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_cron');

my $never = '0 0 30 2 *';
my $soon = '1 seconds';

# Have a job run once, soon.  (A job that is removed or made inactive is cut
# off; so it is only put off, when its run has begun.)
sub start_run
{
	my ($jobid) = @_;
	$node->safe_psql('postgres', "SELECT cron.alter_job($jobid, schedule := '$soon')");
	poll_until($node, "SELECT count(*) > 0 FROM cron.job_run_details WHERE jobid = $jobid",
		't', 'start of a scheduled run');
	$node->safe_psql('postgres', "SELECT cron.alter_job($jobid, schedule := '$never')");
	return;
}

# Wait for the end of its first run; returns (status, message).
sub end_of_run
{
	my ($jobid) = @_;
	my $first = "FROM cron.job_run_details WHERE jobid = $jobid ORDER BY runid LIMIT 1";
	poll_until($node, "SELECT status IN ('succeeded', 'failed') $first", 't', 'end of a scheduled run');
	return map { $node->safe_psql('postgres', "SELECT $_ $first") } 'status', 'return_message';
}

sub schedule
{
	my ($name, $command) = @_;
	return $node->safe_psql('postgres', "SELECT cron.schedule('$name', '$never', \$cron\$$command\$cron\$)");
}

# The ```sql blocks of a page that schedule something.
sub cron_blocks
{
	my ($file) = @_;
	my $text = slurp_file($file);
	return grep { /cron\.schedule/ } $text =~ /^```sql\n(.*?)^```/msg;
}

foreach my $mode ('libpq', 'background workers')
{
	$node->append_conf('postgresql.conf',
		'cron.use_background_workers = ' . ($mode eq 'libpq' ? 'off' : 'on') . "\n");
	$node->restart;

	# ---- the schedules of the documentation --------------------------------
	foreach my $page ('README.md', 'docs/guide.md')
	{
		my @blocks = cron_blocks("$top/$page");
		cmp_ok(scalar(@blocks), '>', 0, "$mode: $page has schedules");
		$node->safe_psql('postgres', <<'SQL');
DROP TABLE IF EXISTS accounts, index_reports;
DELETE FROM index_mover.sample;
-- what has failed on purpose before is none of the alert's
DELETE FROM index_mover.move_log;
DELETE FROM index_mover.job_log;
CREATE TABLE accounts (id int PRIMARY KEY USING INDEX TABLESPACE slow_storage, v int);
INSERT INTO accounts SELECT g, g FROM generate_series(1, 5000) g;
CREATE INDEX accounts_v ON accounts (v) TABLESPACE slow_storage;
SELECT cron.unschedule(jobid) FROM cron.job;
SQL
		$node->safe_psql('postgres', $_) foreach @blocks;
		my %command = map { split /\|/, $_, 2 } split /\n/,
		  $node->safe_psql('postgres', "SELECT jobid, regexp_replace(command, '\\s+', ' ', 'g') FROM cron.job");
		foreach my $jobid (sort { $a <=> $b } keys %command)
		{
			start_run($jobid);
			my ($status, $message) = end_of_run($jobid);
			is($status, 'succeeded', "$mode: $page: $command{$jobid}") or diag($message);
		}
		wait_for_no_worker($node);		# the schedules do not wait
		is(tablespace_of_index($node, 'accounts'), "accounts_pkey: fast_storage\naccounts_v: fast_storage",
			"$mode: $page: the indexes are moved");
		next if $page eq 'README.md';
		is($node->safe_psql('postgres',
				"SELECT count(DISTINCT index_name) FROM index_mover.sample WHERE table_oid = 'accounts'::regclass"),
			'2', "$mode: $page: a sample is taken");
		is($node->safe_psql('postgres', "SELECT string_agg(index, ' ' ORDER BY index) FROM index_reports WHERE table_name = 'accounts'"),
			'accounts_pkey accounts_v', "$mode: $page: a report is kept");
	}

	# ---- a failure, and why -------------------------------------------------
	$node->safe_psql('postgres', <<'SQL');
DROP TABLE IF EXISTS held;
CREATE TABLE held (i int);
INSERT INTO held SELECT generate_series(1, 1000);
CREATE INDEX held_i ON held (i);
SQL
	my $reader = IndexMover::Session->new($node);
	$reader->run('BEGIN; SELECT count(*) FROM held WHERE i = 5');
	my $jobid = schedule('fails',
		q{SELECT move_indexes('held', 'fast_storage', 'copy', settings => }
			. q{'{"lock_wait": "1s", "on_blocker": "fail", "on_failure": "error"}')});
	start_run($jobid);
	my ($status, $message) = end_of_run($jobid);
	is($status, 'failed', "$mode: a move that fails is a run that fails");
	like($message, qr/1 of 1 index was not moved/, "$mode: the message says so");
	like($message, qr/held_i.*could not get the exclusive lock/s, "$mode: and why");
	my $reader_pid = $reader->pid;
	like($message, qr/\b$reader_pid\b/, "$mode: and who was in the way");

	$jobid = schedule('fails quietly',
		q{SELECT move_indexes('held', 'fast_storage', 'copy', settings => '{"lock_wait": "1s", "on_blocker": "fail"}')});
	start_run($jobid);
	($status, $message) = end_of_run($jobid);
	is($status, 'succeeded', "$mode: without on_failure the run has succeeded");
	is($node->safe_psql('postgres', 'SELECT status FROM index_mover_history ORDER BY job DESC LIMIT 1'),
		'failed', "$mode: and the history knows better");

	# ---- two schedules for one table -----------------------------------------
	my $log_start = -s $node->logfile;
	my $move = q{SELECT move_indexes('held', 'fast_storage', 'copy', settings => '{"lock_wait": "10min", "on_failure": "error"}')};
	my $first = schedule('first', $move);
	my $second = schedule('second', $move);
	start_run($first);
	wait_for_phase($node, 'waiting for lock to swap');
	start_run($second);
	($status, $message) = end_of_run($second);
	is($status, 'failed', "$mode: the second of two schedules for a table fails");
	like($message, qr/is already being moved/, "$mode: and says why");
	like(slurp_file($node->logfile, $log_start), qr/ERROR:\s+55006: .*is already being moved/, "$mode: with SQLSTATE 55006");
	$reader->run('COMMIT');
	($status, $message) = end_of_run($first);
	is($status, 'succeeded', "$mode: the first is not disturbed") or diag($message);
	is(tablespace_of_index($node, 'held'), 'held_i: fast_storage', "$mode: and has moved the index");
	$reader->end;
	$node->safe_psql('postgres', 'SELECT cron.unschedule(jobid) FROM cron.job');

	# ---- tiers ----------------------------------------------------------------
	orders_by_month($node);
	$jobid = $node->safe_psql('postgres', "SELECT cron.schedule('tiers', '$soon', 'SELECT count(*) FROM run_tier_policies()')");
	my $runs = sub {
		my ($condition) = @_;
		return $node->safe_psql('postgres', "SELECT count(*) FROM cron.job_run_details WHERE jobid = $jobid AND $condition");
	};
	tiers_by_month_ok($node, "$mode: tiers", faults() && $mode eq 'libpq' ? 100 : 4, sub {
		my $last = $node->safe_psql('postgres', "SELECT coalesce(max(runid), 0) FROM cron.job_run_details WHERE jobid = $jobid");
		poll_until($node, "SELECT count(*) > 0 FROM cron.job_run_details WHERE jobid = $jobid AND runid > $last AND status IN "
			. "('succeeded', 'failed')",
			't', 'a run of the policies');
		wait_for_jobs($node);
	});
	is($runs->("status = 'failed'"), 0, "$mode: tiers: none of " . $runs->("status = 'succeeded'") . ' runs failed');
	$node->safe_psql('postgres', 'SELECT cron.unschedule(jobid) FROM cron.job; DROP TABLE orders');
	leftovers_ok($node, $mode, within => 5);
}

$node->stop;
done_testing();
