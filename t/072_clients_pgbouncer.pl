# Behind PgBouncer, in session and in transaction mode: a call and its notices,
# settings, a job in a transaction block, a cancel, a client that goes away.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($pgbouncer) = grep { -x $_ } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/bin';
plan skip_all => 'pgbouncer is not installed' unless $pgbouncer;

my $node = new_node('pgbouncer');
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (v int);
INSERT INTO t SELECT generate_series(1, 100000);
CREATE INDEX t_v ON t (v) TABLESPACE regress_slow;
SQL

my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $user = $node->safe_psql('postgres', 'SELECT current_user');
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $server = 'host=' . $node->host . ' port=' . $node->port . ' dbname=postgres';
append_to_file("$dir/users", "\"$user\" \"\"\n");
append_to_file("$dir/pgbouncer.ini", <<INI);
[databases]
session = $server pool_mode=session
transaction = $server pool_mode=transaction
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
auth_type = trust
auth_file = $dir/users
logfile = $dir/pgbouncer.log
INI
my $bouncer = IPC::Run::start([ $pgbouncer, '-q', "$dir/pgbouncer.ini" ], '<', \'', '>', "$dir/out", '2>&1');
END { $bouncer->kill_kill if $bouncer; }

sub connstr { return "host=$dir port=$port dbname=$_[0] user=$user application_name=client_$_[0]"; }

# psql through the pool; returns (status, output, errors and notices)
sub call
{
	my ($mode, @sql) = @_;
	my ($out, $err);
	my @command = ('psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', connstr($mode), map { ('-c', $_) } @sql);
	IPC::Run::run(\@command, '<', \'', '>', \$out, '2>', \$err, IPC::Run::timeout(180));
	my $status = $?;
	chomp $out;
	return ($status, $out, $err);
}

# Start psql with a copy that takes its time; returns when it is under way.
sub start_slow
{
	my ($mode, $to) = @_;
	my $run = { out => '', err => '' };
	$run->{harness} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', connstr($mode), '-c',
			"SELECT status FROM move_indexes('t', '$to', 'copy', settings => '{\"max_rate\": \"64kB\"}')" ],
		'<', \'', '>', \$run->{out}, '2>', \$run->{err}, IPC::Run::timeout(180));
	poll_until($node, 'SELECT count(*) FROM index_mover_progress WHERE blocks_done > 0', '1', 'a copy under way');
	return $run;
}

foreach (1 .. 600)
{
	last if -S "$dir/.s.PGSQL.$port";
	Time::HiRes::usleep(100_000);
}

my ($here, $there) = ('regress_slow', 'regress_fast');
foreach my $mode ('session', 'transaction')
{
	my ($status, $out, $err) = call($mode,
		"SELECT name, status FROM move_indexes('t', '$there', 'copy', settings => "
			. "'{\"progress_interval\": \"500ms\", \"max_rate\": \"2MB\"}')");
	is($out, 't_v|moved', "$mode: a call that waits") or diag($err, slurp_file("$dir/pgbouncer.log"));
	like($err, qr/NOTICE: .*t_v/, "$mode: with notices");
	($here, $there) = ($there, $here);

	# Without waiting: in a transaction block, then waited for.
	($status, $out, $err) = call($mode, "BEGIN", "SELECT status FROM move_indexes('t', '$there', 'copy', wait => false)", "COMMIT");
	is($out, 'queued', "$mode: a job in a transaction block") or diag($err);
	my $job = $node->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history');
	($status, $out, $err) = call($mode, "CALL wait_for_move($job)");
	is($status, 0, "$mode: CALL wait_for_move()") or diag($err);
	is(tablespace_of_index($node, 't'), "t_v: $there", "$mode: and the index is moved");
	($here, $there) = ($there, $here);

	# Ctrl-C: psql's cancel request goes through the pool, too.
	my $run = start_slow($mode, $there);
	$run->{harness}->signal('INT');
	$run->{harness}->finish;
	is(sqlstate_of($run->{err}), '57014', "$mode: Ctrl-C ends the call");
	wait_for_no_worker($node);
	is(tablespace_of_index($node, 't'), "t_v: $here", "$mode: and the move");

	# A client that is gone.
	$run = start_slow($mode, $there);
	$run->{harness}->kill_kill(grace => 1);
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', 'SELECT status FROM index_mover_history ORDER BY job DESC LIMIT 1'), 'canceled',
		"$mode: a client that goes away ends the move");
	leftovers_ok($node, $mode, within => 5);
}

$bouncer->signal('INT');
$bouncer->kill_kill(grace => 5);
undef $bouncer;
$node->stop;
done_testing();
