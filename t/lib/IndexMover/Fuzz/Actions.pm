# IndexMover::Fuzz::Actions
#   What the disturber of the fuzzer does that is no statement: signals, restarts, settings.
package IndexMover::Fuzz::Actions;

use strict;
use warnings;

use Errno qw(EIO ENOSPC);
use IndexMover::Storage;
use Time::HiRes qw(time);

# The nth of the processes, if there are any.
sub some_pid
{
	my ($w, $condition, $nth) = @_;
	my $answer = $w->{admin}->run("SELECT pid FROM pg_stat_activity WHERE $condition ORDER BY pid", 60) or return;
	my @pids = map { $_->[0] } @{ $answer->{rows} };
	return @pids ? $pids[ $nth % @pids ] : undef;
}

my $client = "backend_type = 'client backend' AND application_name LIKE 'fuzz %' AND application_name <> 'fuzz 0' AND state <> 'idle'";
my $worker = "backend_type LIKE 'index\\_mover%'";

# The environment's LD_PRELOAD without our library: the storage of the standby does not fail.
our $plain = '';

sub start_standby
{
	my ($w) = @_;
	local $ENV{LD_PRELOAD} = $plain;
	$w->{standby}->start;
	return;
}

# Does what is said; returns what was done, an empty text if there was nothing to do it to.
sub act
{
	my ($w, $action) = @_;
	my ($name, $what) = $action =~ /^\\(\w+)\s*(.*)/s;
	mend_calls() unless $name eq 'full' || $name eq 'unreadable';
	my $signal = sub {
		my ($signal, $condition) = @_;
		my $pid = some_pid($w, $condition, $what) or return '';
		if ($signal eq 'KILL') { $w->{killed}{$pid} = 1; $w->{crashed} = 1 }
		return kill($signal, $pid) ? "process $pid" : '';
	};
	return $signal->('INT', $client) if $name eq 'cancel';
	return $signal->('TERM', $client) if $name eq 'terminate';
	return $signal->('INT', $worker) if $name eq 'cancel_worker';
	return $signal->('TERM', $worker) if $name eq 'terminate_worker';
	return $signal->('KILL', $worker) if $name eq 'kill_worker';
	return $signal->('KILL', $client) if $name eq 'kill_backend';
	if ($name eq 'stop_process')
	{
		my $pid = some_pid($w, "$worker OR $client", $what) or return '';
		kill 'STOP', $pid;
		push @{ $w->{wake} }, [ time + 1, $pid ];
		return "process $pid for a second";
	}
	# writes to a tablespace fail, or reads of it, until the disturber's next action
	if ($name eq 'full' || $name eq 'unreadable')
	{
		my $answer = $w->{admin}->run('SELECT oid FROM pg_tablespace WHERE oid >= 16384 ORDER BY oid', 60) or return '';
		my @oids = map { $_->[0] } @{ $answer->{rows} } or return '';
		break_calls($name eq 'full' ? ('write', ENOSPC) : ('read', EIO), 1 + $what % 3, 1_000_000, 'pg_tblspc/' . $oids[ $what % @oids ]
			. '/');
		return 'done';
	}
	# in the second database the extension goes, and comes back
	if ($name eq 'extension')
	{
		my $client = IndexMover::Fuzz::Client->new(node => $w->{node}, db => 'fuzz2', role => $w->{admin}{role}, name => 'admin2');
		my $schema = $w->{catalogs}{schema};
		my $answer = $client->run("SET statement_timeout = '20s'; DROP EXTENSION index_mover;
			CREATE EXTENSION index_mover SCHEMA $schema", 60);
		$client->end;
		return !$answer || $answer->{lost} ? 'connection lost' : @{ $answer->{errors} } ? "error $answer->{errors}[0]{M}" : 'done';
	}
	# a database is copied, moves, and goes, with whoever works in it
	if ($name eq 'database')
	{
		my @told;
		my $space = ('pg_default', 'fz_a', 'fz_b')[ $what % 3 ];
		foreach my $sql ('CREATE DATABASE fz_copy TEMPLATE fuzz2', "ALTER DATABASE fz_copy SET TABLESPACE $space",
			"SELECT pg_sleep(0.3)", 'DROP DATABASE IF EXISTS fz_copy' . ($what % 2 ? ' WITH (FORCE)' : ''))
		{
			my $answer = $w->{admin}->run("SET statement_timeout = '20s'", 60) && $w->{admin}->run($sql, 60);
			push @told, !$answer || $answer->{lost} ? 'connection lost' : @{ $answer->{errors} } ? $answer->{errors}[0]{C} : 'ok';
		}
		$w->{admin}->run('RESET statement_timeout', 60);
		return join ' ', @told;
	}
	if ($name eq 'mend') { return mend_calls() . ' calls have failed' }
	if ($name eq 'restart' || $name eq 'immediate')
	{
		kill 'CONT', $_->[1] for @{ $w->{wake} };
		$w->{crashed} = 1 if $name eq 'immediate';
		$w->{node}->stop($name eq 'restart' ? 'fast' : 'immediate');
		$w->{node}->start;
		return 'done';
	}
	if ($name eq 'standby')
	{
		my $standby = $w->{standby} or return '';
		$standby->stop('fast');
		start_standby($w);
		return 'done';
	}
	if ($name eq 'set')
	{
		my ($setting, $value) = split / = /, $what, 2;
		$value = "'$value'" unless $value =~ /^'/;
		my $answer = $w->{admin}->run("ALTER SYSTEM SET $setting = $value", 60) or return '';
		return "error $answer->{errors}[0]{M}" if @{ $answer->{errors} };
		$w->{admin}->run('SELECT pg_reload_conf()', 60);
		return 'done';
	}
	die "no such action: $action\n";
}

1;
