# IndexMover::Fuzz::Actions
#   What the disturber of the fuzzer does that is no statement: signals, restarts, settings.
package IndexMover::Fuzz::Actions;

use strict;
use warnings;

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

# Does what is said; returns what was done, an empty text if there was nothing to do it to.
sub act
{
	my ($w, $action) = @_;
	my ($name, $what) = $action =~ /^\\(\w+)\s*(.*)/s;
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
		$standby->start;
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
