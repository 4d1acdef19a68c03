# IndexMover::Fuzz::Client
#   A connection to a server on this machine that never waits: the fuzzer has a dozen of
#   them in one process.  After IndexMover::Query, which waits for each answer.
#
#   my $c = IndexMover::Fuzz::Client->new(node => $node, db => 'fuzz', role => 'fuzz_1');
#   $c->send('SELECT 1') if $c->is_ready;      # by the simple protocol
#   $c->send('/*extended*/ SELECT 1');         # by the extended one; /*portal*/: the first row only
#   $c->read;                          # when select() says that there is something
#   my $answer = $c->take_answer;      # { rows => [], errors => [], notices => [] }, if it is there
package IndexMover::Fuzz::Client;

use strict;
use warnings;

use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use IndexMover::Query ();
use IO::Select;
use IO::Socket::UNIX;
use Time::HiRes qw(time);

sub new
{
	my ($class, %options) = @_;
	my $self = bless {%options}, $class;
	$self->connect;
	return $self;
}

# Begin to connect; where the server is down, that is for later.
sub connect
{
	my ($self) = @_;
	my $node = $self->{node};
	@$self{qw(input answer status pid busy lost)} = ('', undef, 'I', undef, 0, 0);
	$self->{socket} = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $node->host . '/.s.PGSQL.' . $node->port);
	$self->{tried_at} = time;
	return $self->{lost} = 1 unless $self->{socket};
	$self->{socket}->blocking(0);
	my %parameters = (user => $self->{role}, database => $self->{db}, application_name => $self->{name} // 'fuzz');
	my $startup = pack('N(Z*)*x', 196608, %parameters);
	$self->put(pack('N', 4 + length $startup) . $startup);
	$self->begin_answer;
	return;
}

sub begin_answer
{
	my ($self) = @_;
	$self->{busy} = 1;
	$self->{sent_at} = time;
	$self->{so_far} = { rows => [], errors => [], notices => [] };
	return;
}

sub put
{
	my ($self, $bytes) = @_;
	local $SIG{PIPE} = 'IGNORE';
	while (length $bytes)
	{
		my $n = syswrite($self->{socket}, $bytes);
		if (defined $n) { substr($bytes, 0, $n) = '' }
		elsif ($!{EAGAIN} || $!{EINTR}) { IO::Select->new($self->{socket})->can_write(1) }
		else { $self->lose; return }
	}
	return;
}

sub is_ready { my ($self) = @_; return !$self->{lost} && !$self->{busy}; }

sub send
{
	my ($self, $sql) = @_;
	utf8::encode($sql) if utf8::is_utf8($sql);
	$self->begin_answer;
	return $self->put('Q' . pack('N Z*', 5 + length $sql, $sql)) unless $sql =~ m{^/\*(extended|portal)\*/};
	my $rows = $1 eq 'portal' ? 1 : 0;
	return $self->put(join '', map { $_->[0] . pack('N', 4 + length $_->[1]) . $_->[1] } [ P => pack('Z* Z* n', '', $sql, 0) ],
		[ B => pack('Z* Z* n n n', '', '', 0, 0, 0) ], [ E => pack('Z* N', '', $rows) ], [ S => '' ]);
}

sub lose
{
	my ($self) = @_;
	return if $self->{lost};
	$self->{lost} = 1;
	$self->{busy} = 0;
	close $self->{socket} if $self->{socket};
	$self->{answer} = delete $self->{so_far} || { rows => [], errors => [], notices => [] };
	$self->{answer}{lost} = 1;
	return;
}

# Read what is there.
sub read
{
	my ($self) = @_;
	return if $self->{lost};
	my $n = sysread($self->{socket}, $self->{input}, 65536, length $self->{input});
	return if !defined $n && ($!{EAGAIN} || $!{EINTR} || $!{EWOULDBLOCK});
	return $self->lose unless $n;
	while (length $self->{input} >= 5)
	{
		my ($type, $length) = unpack('a N', $self->{input});
		last if length($self->{input}) < $length + 1;
		my $contents = substr($self->{input}, 5, $length - 4);
		substr($self->{input}, 0, $length + 1) = '';
		$self->message($type, $contents);
	}
	return;
}

sub message
{
	my ($self, $type, $contents) = @_;
	my $answer = $self->{so_far} ||= { rows => [], errors => [], notices => [] };
	if ($type eq 'K') { $self->{pid} = unpack('N', $contents) }
	elsif ($type eq 'D')
	{
		push @{ $answer->{rows} }, [ IndexMover::Query::unpack_row($contents) ] if @{ $answer->{rows} } < 5000;
	}
	elsif ($type eq 'E' || $type eq 'N')
	{
		my %field = map { /^(.)(.*)$/s } split /\0/, $contents;
		push @{ $answer->{ $type eq 'E' ? 'errors' : 'notices' } }, \%field;
	}
	elsif ($type eq 'G') { $self->put('f' . pack('N Z*', 4 + 5, 'none')) }
	elsif ($type eq 'Z')
	{
		$self->{status} = $contents;
		$self->{busy} = 0;
		$self->{answer} = delete $self->{so_far};
	}
	return;
}

sub take_answer { my ($self) = @_; return delete $self->{answer}; }

# Wait for what was sent, at most so long; undef if it does not come.
sub wait
{
	my ($self, $seconds) = @_;
	my $until = time + $seconds;
	my $select = IO::Select->new($self->{socket} || ());
	while ($self->{busy})
	{
		my $left = $until - time;
		return if $left <= 0;
		$self->read if $select->can_read($left);
	}
	return $self->take_answer;
}

# Connect as often as needed; false if the server does not take it.
sub wait_until_connected
{
	my ($self, $seconds) = @_;
	my $until = time + $seconds;
	while (time < $until)
	{
		$self->connect if $self->{lost};
		$self->wait($until - time) unless $self->{lost};
		return 1 if $self->is_ready;
		Time::HiRes::sleep(0.2);
	}
	return 0;
}

# Run one statement string; the answer, or undef.
sub run
{
	my ($self, $sql, $seconds) = @_;
	return unless $self->wait_until_connected($seconds // 120);
	$self->send($sql);
	return $self->wait($seconds // 120);
}

sub end
{
	my ($self) = @_;
	return if $self->{lost};
	$self->put("X\0\0\0\4");
	close $self->{socket} unless $self->{lost};
	$self->{lost} = 1;
	$self->{busy} = 0;
	return;
}

1;
