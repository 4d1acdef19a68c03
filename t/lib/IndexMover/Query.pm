# IndexMover::Query
#   What safe_psql(), poll_query_until() and poll_until() ask, without a psql: its start
#   takes three times as long as most of what they ask, and they ask ten thousand times.
#
#   my $session = IndexMover::Query::connect($node, 'postgres');    # or dies
#   my $out = $session->run('SELECT 1; SELECT 2');                  # or dies; rows as psql -XAtq prints them
#   $session->end;
#
# Assumption: the server trusts whoever comes through its Unix socket, as those of the
# tests do.  Each call of safe_psql() has a session of its own, as with psql, and returns
# when that has ended; a loop that waits for a state asks in one and the same.
#
# Tricky: statements are sent one by one, as psql does, so they have to be told apart.
# What psql alone understands (a backslash; COPY from the client), and what says how psql
# has to be called, is left to psql.
package IndexMover::Query;

use strict;
use warnings;

use Carp qw(croak);
use Errno;
use IO::Select;
use IO::Socket::UNIX;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(time usleep);

our $TIMEOUT = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;

# Whether it can be asked here.
sub understands
{
	my ($node, $sql) = @_;
	return $node->host =~ m{^/} && !$ENV{PGOPTIONS} && $sql !~ /[^\x00-\x7f]|\\/ && $sql !~ /\bATOMIC\b|^\s*COPY\b/i;
}

# The statements of $sql, each with its semicolon.
sub statements
{
	my ($sql) = @_;
	my @statements = ('');
	my $depth = 0;
	while ($sql =~ /\G(?:('(?:[^']|'')*'|"[^"]*"|(?<!\w)(\$\w*\$).*?\g2|[^'"\$;()\/-]+)|--[^\n]*|\/\*.*?\*\/|(.))/gs)
	{
		my $text = $1 // $3 // ' ';
		$depth += $text eq '(' ? 1 : $text eq ')' ? -1 : 0;
		$statements[-1] .= $text;
		push @statements, '' if $text eq ';' && $depth <= 0;
	}
	return grep { /[^\s;]/ } @statements;
}

sub connect
{
	my ($node, $db) = @_;
	my $path = $node->host . '/.s.PGSQL.' . $node->port;
	my $socket = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $path)
	  or die "connection error: 'connection to server on socket \"$path\" failed: $!'\n";
	my $self = bless { socket => $socket, input => '', select => IO::Select->new($socket) }, __PACKAGE__;
	my $startup = pack('N(Z*)*x', 196608, user => scalar getpwuid($>), database => $db, application_name => $ENV{PGAPPNAME} // 'psql');
	$self->put(pack('N', 4 + length $startup) . $startup);
	my $answer = $self->answer;
	die "connection error: '$answer->{error}'\n" if $answer->{error};
	return $self;
}

sub put
{
	my ($self, $bytes) = @_;
	local $SIG{PIPE} = 'IGNORE';
	while (length $bytes)
	{
		# (if that fails, so does the reading of the answer)
		my $n = syswrite($self->{socket}, $bytes) or return;
		substr($bytes, 0, $n) = '';
	}
	return;
}

# The next message, its type and its contents; nothing if there will be none.
sub message
{
	my ($self) = @_;
	my $input = \$self->{input};
	until (length $$input >= 5 && length $$input > unpack('x N', $$input))
	{
		my $n = sysread($self->{socket}, $$input, 65536, length $$input);
		next if !defined $n && $!{EINTR};
		return unless $n;
	}
	my ($type, $length) = unpack('a N', $$input);
	my $contents = substr($$input, 5, $length - 4);
	substr($$input, 0, $length + 1) = '';
	return ($type, $contents);
}

# All that comes until the server is ready: rows, notices, and the error if there is one.
sub answer
{
	my ($self) = @_;
	my %answer = (rows => '', notices => '', error => '');
	while (1)
	{
		my ($type, $contents) = $self->message;
		if (!defined $type)
		{
			$self->{lost} = 1;
			$answer{error} .= "server closed the connection unexpectedly";
			return \%answer;
		}
		return \%answer if $type eq 'Z';
		if ($type eq 'D')
		{
			$answer{rows} .= join('|', map { $_ // '' } unpack_row($contents)) . "\n";
		}
		elsif ($type eq 'd')
		{
			$answer{rows} .= $contents;
		}
		elsif ($type eq 'E' || $type eq 'N')
		{
			my %field = map { /^(.)(.*)$/s } split /\0/, $contents;
			my $text = "psql:<stdin>:1: $field{S}:  $field{M}\n";
			$text .= "DETAIL:  $field{D}\n" if defined $field{D};
			$text .= "HINT:  $field{H}\n" if defined $field{H};
			$text .= "CONTEXT:  $field{W}\n" if defined $field{W};
			$answer{ $type eq 'E' ? 'error' : 'notices' } .= $text;
		}
		elsif ($type eq 'G' || $type eq 'R' && unpack('N', $contents) != 0)
		{
			die "the server wants more than it is told here\n";
		}
	}
}

# The columns of a row, NULL as undef; for the fuzzer's connections, too.
sub unpack_row
{
	my ($contents) = @_;
	my ($columns, $at) = (unpack('n', $contents), 2);
	my @row;
	foreach (1 .. $columns)
	{
		my $length = unpack('l>', substr($contents, $at, 4));
		push @row, $length < 0 ? undef : substr($contents, $at + 4, $length);
		$at += 4 + ($length < 0 ? 0 : $length);
	}
	return @row;
}

# Run all statements of $sql, up to the first that fails; dies of that.
sub run
{
	my ($self, $sql) = @_;
	my $out = '';
	foreach my $statement (statements($sql))
	{
		$self->put('Q' . pack('N Z*', 5 + length $statement, $statement));
		my $answer = $self->answer;
		# what safe_psql() of core does with psql's errors
		print "#### Begin standard error\n$answer->{notices}\n#### End standard error\n" if $answer->{notices};
		die +($self->{lost} ? 'connection error' : 'error running SQL') . ": '$answer->{error}'\nwhile running '$sql'\n"
		  if $answer->{error};
		$out .= $answer->{rows};
	}
	chomp $out;
	return $out;
}

# Leave, and wait until the server's process has gone, so that nothing finds it.
sub end
{
	my ($self) = @_;
	$self->put("X\0\0\0\4") unless $self->{lost};
	my $start = time;
	while (time - $start < $TIMEOUT && $self->{select}->can_read($TIMEOUT))
	{
		last unless sysread($self->{socket}, my $rest, 65536);
	}
	close $self->{socket};
	return;
}

# Ask once more what is waited for, in a session that stays open as long as it can;
# returns the answer, or nothing and the error.
sub ask_again
{
	my ($session, $node, $db, $sql) = @_;
	if (!understands($node, $sql))
	{
		my ($out, $err);
		# where the connection is refused, psql may end before it is told the query
		eval { $node->psql($db, $sql, stdout => \$out, stderr => \$err); 1 } and return ($out, $err);
		die $@ unless $@ =~ /Broken pipe/;
		return (undef, $@);
	}
	my $out = eval { $$session ||= IndexMover::Query::connect($node, $db); $$session->run($sql) };
	return ($out, '') if defined $out;
	my $error = $@;
	$$session->end if $$session;
	$$session = undef;
	return (undef, $error);
}

{
	my $safe_psql = PostgreSQL::Test::Cluster->can('safe_psql');
	no warnings 'redefine';

	*PostgreSQL::Test::Cluster::safe_psql = sub {
		my ($node, $db, $sql, %params) = @_;
		return $node->$safe_psql($db, $sql, %params) if %params || !understands($node, $sql);
		my $session = IndexMover::Query::connect($node, $db);
		my $out = eval { $session->run($sql) };
		my $error = $@;
		$session->end;
		croak $error unless defined $out;
		return $out;
	};

	*PostgreSQL::Test::Cluster::poll_query_until = sub {
		my ($node, $db, $sql, $expected) = @_;
		$expected //= 't';
		my ($session, $out, $error);
		my $start = time;
		while (1)
		{
			($out, $error) = ask_again(\$session, $node, $db, $sql);
			last if defined $out && $out eq $expected || time - $start > $TIMEOUT;
			usleep(20_000);
		}
		$session->end if $session;
		return 1 if defined $out && $out eq $expected;
		diag "timed out waiting for \"$expected\" from: $sql\nlast answer: " . ($out // $error);
		return 0;
	};

	*PostgreSQL::Test::Cluster::wait_for_log = sub {
		my ($node, $regexp, $offset) = @_;
		$offset //= 0;
		my $start = time;
		while (1)
		{
			my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset);
			return $offset + length $log if $log =~ $regexp;
			croak "timed out waiting for match: $regexp" if time - $start > $TIMEOUT;
			usleep(20_000);
		}
	};
}

1;
