# IndexMover::Probe
#   What clients feel: a reader and a writer that do one small thing a
#   millisecond, each in a session of its own, and know their longest wait.
#
#   my $probe = IndexMover::Probe->new($node, read => 'SELECT ..', write => 'UPDATE ..');
#   ... something happens ...
#   my $felt = $probe->end;
#   # { read => { transactions => 5000, longest => 0.012, errors => {} }, write => { .. } }
#
# The statements are pgbench scripts.  "longest" counts from the moment at which
# a statement was due, so one that stands in a queue is not hidden by the ones
# behind it that were never sent.  "errors" counts by message, and should be empty.
package IndexMover::Probe;

use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Utils ();
use Time::HiRes qw(time usleep);

our $TIMEOUT = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;

sub new
{
	my ($class, $node, %statements) = @_;
	my $self = bless { node => $node, dir => PostgreSQL::Test::Utils::tempdir(), runs => {} }, $class;
	foreach my $name (sort keys %statements)
	{
		my $run = $self->{runs}{$name} = { out => '' };
		my $script = "$self->{dir}/$name.sql";
		PostgreSQL::Test::Utils::append_to_file($script, "$statements{$name};\n");
		$run->{harness} = IPC::Run::start(
			[
				'pgbench', '-n', '-c', '1', '-T', $TIMEOUT, '-R', '1000', '--max-tries=1', '-M', 'prepared',
				'--log', '--log-prefix', "$self->{dir}/$name", '-f', $script, $node->connstr('postgres')
			],
			'>&', \$run->{out}, IPC::Run::timer($TIMEOUT + 30));
	}
	# until each of them has done something: its log is there earlier, and gets its
	# first lines when there are a hundred
	foreach my $name (sort keys %statements)
	{
		my $start = time;
		until ((grep { -s } glob("$self->{dir}/$name.*[0-9]")) || !$self->{runs}{$name}{harness}->pumpable)
		{
			die "the $name probe does not start: $self->{runs}{$name}{out}" if time - $start > $TIMEOUT;
			$self->{runs}{$name}{harness}->pump_nb;
			usleep(10_000);
		}
	}
	return $self;
}

sub end
{
	my ($self) = @_;
	my %felt;
	foreach my $name (sort keys %{ $self->{runs} })
	{
		my $run = $self->{runs}{$name};
		# what the timer of its option -T would do
		$run->{harness}->signal('ALRM') if $run->{harness}->pumpable;
		eval { $run->{harness}->finish };
		my %f = (transactions => 0, longest => 0, errors => {});
		foreach my $file (glob("$self->{dir}/$name.*[0-9]"))
		{
			# client, number, latency in us, script, seconds, us, lag in us
			foreach (split /\n/, PostgreSQL::Test::Utils::slurp_file($file))
			{
				my @field = split / /;
				next unless @field >= 6;
				$f{transactions}++;
				$f{longest} = $field[2] / 1e6 if $field[2] =~ /^\d+$/ && $field[2] / 1e6 > $f{longest};
			}
		}
		$f{errors}{$1}++ while $run->{out} =~ /(?:ERROR|FATAL|PANIC):\s+([^\n]*)/g;
		$f{errors}{'connection lost'}++ if $run->{out} =~ /terminated (?:abnormally|unexpectedly)|connection .* lost/;
		$felt{$name} = \%f;
	}
	return \%felt;
}

1;
