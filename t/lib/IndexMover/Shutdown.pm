# IndexMover::Shutdown
#   Servers that end while something is on its way: shut down in each of pg_ctl's
#   modes, or because nothing but their postmaster was killed.
#
#   my $seconds = shut_down($node, 'smart');
#   kill_postmaster($node, $call, 'name of the case');     # and start the server again
package IndexMover::Shutdown;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Processes;
use IndexMover::Test;
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(shut_down kill_postmaster);

our $TIMEOUT = $IndexMover::Test::TIMEOUT;

# Shut the server down; returns the seconds that took.  A smart shutdown waits for
# clients, but not for us.
sub shut_down
{
	my ($node, $mode) = @_;
	my $start = time;
	if ($mode eq 'smart')
	{
		PostgreSQL::Test::Utils::system_log('pg_ctl', '-D', $node->data_dir, '-m', 'smart', '-W', 'stop');
		usleep(20_000) while -f $node->data_dir . '/postmaster.pid' && time - $start < $TIMEOUT;
		$node->_update_pid(0);
	}
	else
	{
		$node->stop($mode);
	}
	return time - $start;
}

# Kill the postmaster; $call->{worker}, of a call in the background, has to notice
# soon.  Then start the server again.
sub kill_postmaster
{
	my ($node, $call, $name) = @_;
	my $start = time;
	$node->kill9;
	usleep(5_000) while !process_is_gone($call->{worker}) && time - $start < $TIMEOUT;
	soon_ok(time - $start, 1, "$name: the worker is gone");
	finish_call($call);

	# the other processes end likewise
	my $started = 0;
	foreach my $try (1 .. 200)
	{
		last if $started = $node->start(fail_ok => 1);
		$node->{_pid} = undef;
		usleep(100_000);
	}
	ok($started, "$name: the server starts again");
	return;
}

1;
