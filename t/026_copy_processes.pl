# What can happen to the processes of a copy: its caller is canceled, timed out,
# terminated or lost; the server is shut down in each mode; memory, file
# descriptors or time are taken from the worker; the library is replaced.
#
# Fault (processes): out of memory
# Fault (processes): worker stopped (SIGSTOP) in mid-copy and under the exclusive lock
# Fault (processes): no file descriptor more than are open already (the worker's RLIMIT_NOFILE)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Shutdown;
use IndexMover::Test;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

needs_test_points();

my $node = new_node('processes');
$node->safe_psql('postgres', <<SQL);
CREATE TABLE p (i int, s text) WITH (fillfactor = 80);
INSERT INTO p SELECT g, md5(g::text) FROM generate_series(1, 40000) g;
CREATE INDEX p_s ON p (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('p'), oracle.remember_metadata('p');
SQL

sub move
{
	my $index = $_[0] || 'p_s';
	return sprintf "SELECT status, sqlstate FROM move_indexes('%s', '%s', method => 'copy')", $index, elsewhere($node, $index);
}

# Nothing left, everything right, and the next call works.
sub survived
{
	my ($name) = @_;
	survived_ok($node, 'p', $name, move(), max_keys => 200, large => 1, restarted => 1, count => 'processes of a copy');
	return;
}

# ---- the caller of a copy ---------------------------------------------------
my %ways = (
	'Ctrl-C' => [ sub { $_[0]{harness}->signal('INT') }, '57014' ],
	'statement_timeout' => [ sub { }, '57014' ],
	'pg_cancel_backend(caller)' => [ 'SELECT pg_cancel_backend(%d)', '57014' ],
	'pg_terminate_backend(caller)' => [ 'SELECT pg_terminate_backend(%d)', '57P01' ],
	'loss of the client' => [ sub { kill 'KILL', $_[0]{harness}{KIDS}[0]{PID} }, '' ],
	# where nothing is sent that could fail
	'loss of a client that is told nothing' => [ sub { kill 'KILL', $_[0]{harness}{KIDS}[0]{PID} }, '',
		'SET client_min_messages = error;' ]);
# a busy machine must have come to the point before the timeout strikes
my $longest_setup = 0;
my $turn = 0;
foreach my $way (sort keys %ways)
{
	$turn = !$turn;
	foreach my $point (picked { $turn == ($_ eq 'copy-half') } 'points of each way to end the caller', 'copy-half', 'swap-locked')
	{
		my ($do, $sqlstate, $before) = @{ $ways{$way} };
		$before //= $way eq 'statement_timeout' ? sprintf("SET statement_timeout = '%ds';", 10 + 3 * $longest_setup) : '';
		my $name = "$way at $point";
		my $from = tablespace_of_index($node, 'p_s');
		my $setup = time;
		my $call = held_at($node, $point, $before . move());
		$setup = time - $setup;
		$longest_setup = $setup if $setup > $longest_setup;
		if (ref $do) { $do->($call) }
		else { $node->safe_psql('postgres', sprintf($do, caller_pid($call))) }
		my ($rc, $out, $err) = finish_call($call);
		is(sqlstate_of($err), $sqlstate, "$name: what the caller gets") if $way !~ /^loss/;
		# a caller that is lost is noticed by its own session
		poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mover'", '0', "$name: end of the session",
			timeout => 5);
		let_go($call);
		wait_for_no_worker($node);
		is(tablespace_of_index($node, 'p_s'), $from, "$name: the index has stayed");
		is($node->safe_psql('postgres', 'SELECT status, sqlstate FROM index_mover_history ORDER BY job DESC LIMIT 1'),
			'canceled|57014', "$name: the history");
		survived($name);
	}
}

# ---- the server is shut down in mid-copy -------------------------------------
# Mode, point, and what has become of the move.  After a crash there may be no worker
# left to say so.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE d (i int, s text);
INSERT INTO d SELECT g, md5(g::text) FROM generate_series(1, 2000) g;
CREATE INDEX d_s ON d (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('d'), oracle.remember_metadata('d');
SQL
foreach my $case (
	picked { "@$_[0, 1]" =~ /^(?:immediate copy-half|fast swap.*|smart old.*)$/ } 'shutdowns',
	[ 'immediate', 'copy-half', qr/^interrupted$/ ],
	[ 'fast', 'copy-half', qr/^canceled$/ ],
	[ 'smart', 'copy-half', qr/^canceled$/ ],
	[ 'smart', 'copy-created', qr/^canceled$/ ],
	[ 'fast', 'swap-locked', qr/^canceled$/ ],
	[ 'immediate', 'swap-before-commit', qr/^interrupted$/ ],
	[ 'fast', 'swapped', qr/^moved$/ ],
	[ 'smart', 'old-file-drop', qr/^moved$/ ],
	[ 'immediate', 'old-file-drop', qr/^(?:interrupted|moved)$/ ])
{
	my ($mode, $point, $status) = @$case;
	my $name = "$mode shutdown at $point";
	my $swapped = $point =~ /^(?:swapped|old-file)/;
	my ($from, $to) = (tablespace_of_index($node, 'd_s'), elsewhere($node, 'd_s'));
	my $call = held_at($node, $point, "SELECT count(*) FROM move_indexes('d_s', '$to', method => 'copy', wait => false)", prepared => 1);
	finish_call($call);
	soon_ok(shut_down($node, $mode), 10, "$name: it ends");
	ok(process_is_gone($call->{worker}), "$name: no worker is left");
	$node->start;
	$node->safe_psql('postgres', "ROLLBACK PREPARED 'holder'");
	is(tablespace_of_index($node, 'd_s'), $swapped ? $to : $from, "$name: where the index is");
	like($node->safe_psql('postgres', 'SELECT status FROM index_mover_history ORDER BY job DESC LIMIT 1'), $status, "$name: the history");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	survived_ok($node, 'd', $name, move('d_s'), max_keys => 50, restarted => 1, count => 'server shut down in mid-copy');
	wait_for_no_worker($node);
}

# ---- a worker that is stopped, and goes on -----------------------------------
{
	my $call = held_at($node, 'copy-half', move());
	kill 'STOP', $call->{worker};
	let_go($call);
	# no session waits behind it, for it holds no lock that keeps others out
	my ($rc, $out, $err) = $node->psql('postgres',
		"SET lock_timeout = '5s'; UPDATE p SET s = md5(s) WHERE i < 50; SELECT count(*) FROM p WHERE s = 'x'; VACUUM p");
	is($rc, 0, 'SIGSTOP in mid-copy: others read, write and vacuum') or diag $err;
	kill 'CONT', $call->{worker};
	($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", 'SIGSTOP and SIGCONT: moved') or diag $err;
	survived('SIGSTOP in mid-copy');

	# Under the exclusive lock it holds up the table's queries for as long as it
	# stands still; what they can do is to give up.  Then it goes on.
	$call = held_at($node, 'swap-locked', move());
	kill 'STOP', $call->{worker};
	let_go($call);
	($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSET lock_timeout = '500ms'; SELECT count(*) FROM p WHERE s = 'x'");
	like($err, qr/55P03/, 'SIGSTOP under the exclusive lock: queries time out') or diag $err;
	kill 'CONT', $call->{worker};
	($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", 'and it goes on to its end') or diag $err;
	survived('SIGSTOP under the exclusive lock');
}

# ---- the library is replaced, ALTER EXTENSION UPDATE ----------------------------
SKIP:
{
	chomp(my $dir = `pg_config --pkglibdir`);
	skip "cannot write to $dir", 1 unless -w $dir;
	my $call = held_at($node, 'copy-half', move());
	# as "make install" does it: another file of that name
	system_or_bail('cp', "$dir/index_mover.so", "$dir/index_mover.so.new");
	rename "$dir/index_mover.so.new", "$dir/index_mover.so" or die $!;
	my ($rc, $out, $err) = $node->psql('postgres', 'ALTER EXTENSION index_mover UPDATE');
	is($rc, 0, 'ALTER EXTENSION UPDATE to the same version in mid-copy') or diag $err;
	let_go($call);
	($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", 'a job goes on with the library it has loaded') or diag $err;
	survived('replaced library');
}

# ---- few file descriptors, and little memory ---------------------------------------
# The worker may open no file more than it has open by then: it has to close some
# that it may need again.  That it came to this is in the server's log.  (The limit
# is a number that no file may have, so it is the lowest that is free.)
SKIP:
{
	my $sleeper = fork // die "cannot fork: $!";
	sleep(60), POSIX::_exit(0) if !$sleeper;
	my $may_limit = -l "/proc/$sleeper/fd/0" && system("prlimit --pid $sleeper --nofile=100: > /dev/null 2>&1") == 0;
	kill('KILL', $sleeper);
	waitpid($sleeper, 0);
	skip 'no way to limit the files of another process', 1 unless $may_limit;
	my $call = held_at($node, 'copy-registered', move());
	my $log = -s $node->logfile;
	my $limit = 0;
	$limit++ while -l "/proc/$call->{worker}/fd/$limit";
	system_or_bail('prlimit', '--pid', $call->{worker}, "--nofile=$limit:");
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", 'no more file descriptors: moved') or diag $err;
	ok($node->log_contains(qr/out of file descriptors: .*; release and retry/, $log), 'no more file descriptors: it was so');
	survived('no more file descriptors');
}
$node->stop;
SKIP:
{
	skip 'no way to limit the memory of a process', 1 if system('sh -c "ulimit -v 4000000" 2> /dev/null') != 0;
	chomp(my $dir = `pg_config --pkglibdir`);
	skip 'AddressSanitizer needs terabytes of addresses', 1 if slurp_file("$dir/index_mover.so") =~ /libasan/;
	# Enough to run, but not for what the index expression asks for.
	system_or_bail('sh', '-c',
		'ulimit -v 600000; exec pg_ctl -w -s -D "$1" -l "$2" -o "--cluster-name=limited -c shared_buffers=16MB" start',
		'sh', $node->data_dir, $node->logfile);
	$node->_update_pid(1);
	$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION hungry(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF to_regclass('public.feast') IS NOT NULL AND i = 777 THEN RETURN length(repeat('x', 900000000)); END IF;
	RETURN i;
END $$;
CREATE TABLE big (i int);
INSERT INTO big SELECT g FROM generate_series(1, 1000) g;
CREATE INDEX big_i ON big (hungry(i)) TABLESPACE regress_slow;
SELECT oracle.remember_keys('big'), oracle.remember_metadata('big');
CREATE TABLE feast ();
SQL
	my ($rc, $out, $err) = $node->psql('postgres',
		"SELECT status, sqlstate FROM move_indexes('big_i', 'regress_fast', method => 'rebuild')");
	is($out, 'failed|53200', 'out of memory: a clean failure') or diag "$out $err";
	$node->safe_psql('postgres', 'DROP TABLE feast');
	survived_ok($node, 'big', 'out of memory', "SELECT status FROM move_indexes('big_i', 'regress_fast', method => 'rebuild')",
		max_keys => 200, restarted => 1, count => 'processes of a rebuild');
	is($node->safe_psql('postgres', move()), 'moved|', 'little memory: a copy works');
}

$node->stop;
done_testing();
