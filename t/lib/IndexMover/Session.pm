# IndexMover::Session
#   An open psql session that a test talks to step by step, so that it can hold
#   transactions, snapshots and locks while something else goes on.
#
#   my $s = IndexMover::Session->new($node);
#   $s->run('BEGIN; LOCK TABLE t IN ACCESS SHARE MODE');   # dies on an error
#   my $answer = $s->run('SELECT count(*) FROM t');
#   $s->send('UPDATE t SET i = 1');                        # does not wait
#   my $answer = $s->answer;                               # of what was sent
#   $s->end;
package IndexMover::Session;

use strict;
use warnings;

use IPC::Run ();
use Time::HiRes qw(usleep);

our $TIMEOUT = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;

sub new
{
	my ($class, $node, %options) = @_;
	my $self = bless { n => 0, in => '', out => '', err => '' }, $class;
	my $connstr = $node->connstr($options{dbname} || 'postgres');
	$connstr .= " application_name=$options{name}" if $options{name};
	$connstr .= " user=$options{user}" if $options{user};
	# a walsender, which takes SQL, too, and what subscriptions send
	$connstr .= ' replication=database' if $options{walsender};
	$self->{timer} = IPC::Run::timer($TIMEOUT);
	$self->{harness} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $connstr ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err}, $self->{timer});
	$self->{pid} = $self->run('SELECT pg_backend_pid()');
	return $self;
}

sub pid { return $_[0]->{pid}; }

# Send commands without waiting for their end.
sub send
{
	my ($self, $sql) = @_;
	my $n = ++$self->{n};
	$self->{err} = '';
	$self->{in} .= "$sql;\n\\echo === $n\n";
	$self->{harness}->pump_nb, usleep(1000) while length $self->{in};
	return;
}

# Has the last command ended?
sub has_answered
{
	my ($self) = @_;
	$self->{harness}->pump_nb;
	return $self->{out} =~ /^=== $self->{n}$/m ? 1 : 0;
}

# Wait for the end of what was sent; returns its output.  Errors are in
# $self->errors.
sub answer
{
	my ($self) = @_;
	my $n = $self->{n};
	$self->{timer}->start($TIMEOUT);
	until ($self->{out} =~ /^=== $n$/m)
	{
		die "no answer within $TIMEOUT s: $self->{err}\n" if $self->{timer}->is_expired;
		$self->{harness}->pump;
	}
	my $out = $self->{out};
	$self->{out} = '';
	$out =~ s/^=== \d+\n?//mg;
	chomp $out;
	return $out;
}

sub errors { return $_[0]->{err}; }

# Send, wait, and die on an error.
sub run
{
	my ($self, $sql) = @_;
	$self->send($sql);
	my $out = $self->answer;
	die "session failed: $self->{err}\nin: $sql\n" if $self->{err} =~ /ERROR|FATAL/;
	return $out;
}

# End the client, without a word to the server.
sub kill_client
{
	my ($self) = @_;
	$self->{harness}->kill_kill(grace => 1);
	return;
}

sub end
{
	my ($self) = @_;
	$self->{in} .= "\\q\n";
	eval { $self->{harness}->finish };
	return;
}

1;
