# IndexMover::Processes
#   What has become of a process, by its id, asked of the operating system: has it
#   ended, has it slept, may its server be started again?
#
#   poll_process_is_gone($worker);
#   let_process_sleep($worker, 4);     # it has looked around four times more
#   let_process_take_signals($worker); # those sent so far have come
#   wait_until_down($node);            # its postmaster has given up
#   start_again($node, $old_pid);      # after a kill -9
#
# A zombie has ended; but as long as the postmaster is one, a new one believes that
# it is still there.
package IndexMover::Processes;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Test ();
use PostgreSQL::Test::Utils ();
use Time::HiRes qw(time usleep);

our @EXPORT = qw(process_is_gone poll_process_is_gone let_process_sleep let_process_take_signals wait_until_down start_again);

our $TIMEOUT = $IndexMover::Test::TIMEOUT;

# Whether a process has ended.  A zombie has; its parent may take its time.
sub process_is_gone
{
	my ($pid) = @_;
	return 1 unless kill(0, $pid);
	open(my $fh, '<', "/proc/$pid/stat") or return !kill(0, $pid);
	return (<$fh> || '') =~ /\) [ZX] / ? 1 : 0;
}

sub poll_process_is_gone
{
	my ($pid) = @_;
	my $start = time;
	usleep(10_000) until process_is_gone($pid) || time - $start > $TIMEOUT;
	return;
}

# Wait until a process has gone to sleep so many times more: a loop that naps
# between two looks has looked as often by then, however busy the machine is.
sub let_process_sleep
{
	my ($pid, $times) = @_;
	my $naps = sub {
		my $status = PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status");
		return $status =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : die "no count for process $pid";
	};
	my $start = time;
	my $end = $naps->() + $times;
	while ($naps->() < $end)
	{
		die "process $pid does not go on" if time - $start > $TIMEOUT;
		usleep(20_000);
	}
	return;
}

# Wait until no signal is pending for a process: its handlers are called before it does
# anything else.
sub let_process_take_signals
{
	my ($pid) = @_;
	my $start = time;
	while (PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") =~ /^(?:SigPnd|ShdPnd):\s+0*[1-9a-f]/m)
	{
		die "process $pid does not take its signals" if time - $start > $TIMEOUT;
		usleep(5_000);
	}
	return;
}

# Wait until a server that cannot go on has given up.
sub wait_until_down
{
	my ($node) = @_;
	my $start = time;
	my $postmaster = $node->{_pid};
	until (process_is_gone($postmaster))
	{
		die "server does not go down" if time - $start > $TIMEOUT;
		usleep(20_000);
	}
	# as long as it is a zombie, a new one believes that it is still there
	usleep(20_000) while kill(0, $postmaster) && time - $start < $TIMEOUT;
	$node->{_pid} = undef;
	return;
}

# Start a server whose postmaster was killed.  As long as that one is a zombie,
# the server believes that it is still there.
sub start_again
{
	my ($node, $old_pid) = @_;
	my $start = time;
	usleep(20_000) while kill(0, $old_pid) && time - $start < $TIMEOUT;
	return $node->start;
}

1;
