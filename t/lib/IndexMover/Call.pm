# IndexMover::Call
#   Calls that run in the background, and what a test build does at which point of
#   theirs.
package IndexMover::Call;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Oracle ();
use IndexMover::Session;
use IndexMover::Wait;
use IPC::Run ();
use List::Util ();
use PostgreSQL::Test::Utils ();
use Time::HiRes qw(time);

our @EXPORT = qw(start_call finish_call call_is_running caller_pid sqlstate_of begin_job set_test_point set_tests held_at let_go queued_at);

our $TIMEOUT = $IndexMover::Wait::TIMEOUT;
our %count;
*count = \%IndexMover::Oracle::count;
my %log_seen;

# Start psql with $sql; the name is its application_name.  Options: dbname,
# user, connstr (further words of the connection string).
sub start_call
{
	my ($node, $name, $sql, %options) = @_;
	my $connstr = $node->connstr($options{dbname} || 'postgres');
	$connstr .= " user=$options{user}" if $options{user};
	$connstr .= " application_name=$name";
	$connstr .= " $options{connstr}" if $options{connstr};
	my $call = { name => $name, node => $node, sql => $sql, log => -s $node->logfile, out => '', err => '' };
	# A file, because IPC::Run writes to a process only when it is pumped.
	$call->{file} = PostgreSQL::Test::Utils::tempdir() . "/$name.sql";
	open(my $fh, '>', $call->{file}) or die "$call->{file}: $!";
	print $fh "$sql\n";
	close $fh;
	$call->{harness} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose',
			'-d', $connstr, '-f', $call->{file} ],
		'<', \'', '>', \$call->{out}, '2>', \$call->{err},
		$call->{timer} = IPC::Run::timer($TIMEOUT));
	return $call;
}

# Wait for its end; returns (exit status, output, errors and notices, seconds
# waited here).
sub finish_call
{
	my ($call) = @_;
	my $start = time;
	eval
	{
		# (a timer of IPC::Run ends a wait, but not a call of finish())
		$call->{timer}->start($TIMEOUT);
		while ($call->{harness}->pumpable)
		{
			die "timer expired\n" if $call->{timer}->is_expired;
			$call->{harness}->pump;
		}
		$call->{harness}->finish;
		1;
	} or do
	{
		my $problem = $@;
		$call->{harness}->kill_kill;
		die "call $call->{name} did not end within $TIMEOUT s: $problem";
	};
	my $status = $call->{harness}->result(0);
	count_call($call, time - $start);
	return ($status, $call->{out}, $call->{err}, time - $start);
}

# Count a call that moves.  A deadlock is one whoever had to give way: what the
# call was told, or an error of any session in the server's log meanwhile.
sub count_call
{
	my ($call, $seconds) = @_;
	my ($node, $sql) = ($call->{node}, $call->{sql} // '');
	return unless $sql =~ /\b(?:move_\w*indexes|undo_move)\b/;
	# no line twice, if there are several calls at a time
	my $from = List::Util::max($call->{log} || 0, $log_seen{ $node->name } // 0);
	my $log = -f $node->logfile ? PostgreSQL::Test::Utils::slurp_file($node->logfile, $from) // '' : '';
	$log_seen{ $node->name } = $from + length $log;
	# (a rebuild that was chosen says that it gave way, 55006, and why)
	my $deadlocks = () = $log =~ /:  40P01: |did not move .*\n.*DETAIL:  .*deadlock detected/g;
	$deadlocks ||= "$call->{out}\n$call->{err}" =~ /\b40P01\b|deadlock detected/ ? 1 : 0;
	my $how = $sql =~ /'copy'/ ? 'by copy' : $sql =~ /'rebuild'/ ? 'by rebuild' : 'by the default method';
	$count{"calls that move $how, beside something else"}++;
	$count{"calls that move $how, beside something else, more than 60 s without an answer"} += $seconds > 60 ? 1 : 0;
	$count{"calls that move $how, beside something else, deadlocks"} += $deadlocks;
	return;
}

# Begin a job for which no session waits, with these settings; returns its number.  The
# method is copy unless method => says another.
sub begin_job
{
	my ($node, $relation, $tablespace, %settings) = @_;
	my $method = delete $settings{method} || 'copy';
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	return $node->safe_psql('postgres',
		"SELECT max(job) FROM move_indexes('$relation', '$tablespace', method => '$method', wait => false, settings => '{$json}')");
}

sub call_is_running
{
	my ($call) = @_;
	$call->{harness}->pump_nb;
	return $call->{harness}->pumpable ? 1 : 0;
}

sub caller_pid
{
	my ($call) = @_;
	poll_until($call->{node},
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = '$call->{name}'",
		't', "session of call $call->{name}");
	return $call->{node}->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE application_name = '$call->{name}'");
}

# The SQLSTATE of the first error in psql's output (VERBOSITY = verbose).
sub sqlstate_of
{
	my ($errors) = @_;
	return $errors =~ /^(?:psql:[^\n]*?)?(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/m ? $1 : '';
}

sub set_tests_to
{
	my ($node, %settings) = @_;
	$node->safe_psql('postgres', join '; ', "LOAD 'index_mover'",
		(map { $settings{$_} ? "ALTER SYSTEM SET index_mover.$_ = '$settings{$_}'"
			: "ALTER SYSTEM RESET index_mover.$_" } sort keys %settings),
		'SELECT pg_reload_conf()');
	return;
}

# What a test build does at which point (test_point => "name:action"), and what
# it leaves out (test_mutation => name); see t/test_points.c.  What is not
# named is reset.
sub set_tests
{
	my ($node, %settings) = @_;
	return set_tests_to($node, test_point => '', test_mutation => '', %settings);
}

# Only the first of them; '' for nothing.
sub set_test_point
{
	my ($node, $value) = @_;
	return set_tests_to($node, test_point => $value);
}

# Start a call and wait until its move stands still at a point.  Returns the call;
# let_go($call) makes the move go on.  The point may be "name:2", to stand still when it
# comes there for the second time.  With prepared => 1 no session is needed
# to hold it there; then => "name:action" is what happens at a later point.
sub held_at
{
	my ($node, $point, $sql, %options) = @_;
	set_test_point($node, join ',', "$point:wait", $options{then} || ());
	$point =~ s/:.*//;
	my $holder = IndexMover::Session->new($node, dbname => $options{dbname});
	$holder->run($options{prepared}
		? "BEGIN; SELECT pg_advisory_xact_lock(0, 5959); PREPARE TRANSACTION 'holder'"
		: 'SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover', $sql, %options);
	$call->{holder} = $holder;
	$holder->end, $call->{holder} = undef if $options{prepared};
	$node->wait_for_log(qr/test point "$point": waiting/, $log);
	set_test_point($node, '') unless $options{then};
	$call->{worker} = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover'");
	return $call;
}

# A swap queues for its lock only after several looks that found it held; here at the first
# look, at which $sql is in an open transaction.  Returns the
# job that $begin begins, held at "swap-asking", to queue next, and the session of that
# transaction.  The caller holds the lock of the test point.
sub queued_at
{
	my ($node, $sql, $begin) = @_;
	my $holder = IndexMover::Session->new($node);
	my $log = -s $node->logfile;
	$holder->run("BEGIN; $sql");
	set_tests($node, test_point => 'swap-asking:wait', test_mutation => 'looks:0');
	my $job = $begin->();
	$node->wait_for_log(qr/test point "swap-asking": waiting/, $log);
	set_tests($node);
	return ($job, $holder);
}

sub let_go
{
	my ($call) = @_;
	$call->{holder}->end if $call->{holder};
	$call->{holder} = undef;
	return;
}

1;
