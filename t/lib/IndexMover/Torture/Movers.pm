# IndexMover::Torture::Movers
#   The processes of the random test that call us: there and back, the indexes of
#   a table or one of them by each method, or a table with or without them, waiting
#   or not, with random settings.  A hang is a call that takes longer than LONGEST.
package IndexMover::Torture::Movers;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run ();
use Time::HiRes qw(time usleep);

our @EXPORT_OK = qw(run_mover quick_sql);

use constant LONGEST => 150;

# What a move may end with that is disturbed so: in use, or not to be had for others
# within lock_wait; canceled; terminated, crashed, starting up; the worker has gone, or
# the copy cannot keep up; no room for a job or worker, or for a connection while those
# of the dead still count; shared memory of a server that has crashed; the connection lost.
my $expected = qr/^(?:55006|55P03|57014|57P0[123]|55000|53000|53300|58P01|08\w{3})$/;
my $indirectly = "directly or indirectly, for process \\d+, which waits for the session";

my @tables = qw(zoo zoo zoo parts wide wide forgetful side);
my @indexes = qw(zoo_pkey zoo_txt zoo_hash zoo_arr zoo_sp zoo_rng zoo_brin zoo_bloom zoo_num_key
  zoo_incl parts_txt parts_1_pkey wide_pkey wide_md5 side_txt);

# Run one command, or a list of them, in a psql of its own; returns (exit status, output, errors).
# Status -1: it did not end.
sub quick_sql
{
	my ($connstr, $sql, $limit) = @_;
	my ($out, $err) = ('', '');
	my $timer = IPC::Run::timer($limit || 60);
	my $h = eval {
		IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $connstr,
				map { ('-c', $_) } ref $sql ? @$sql : $sql ],
			'<', \'', '>', \$out, '2>', \$err, $timer);
	} or return (-2, '', $@);
	my $ended = eval { $h->finish; 1 };
	unless ($ended)
	{
		my $why = $@;
		$h->kill_kill(grace => 1);
		return (-1, $out, "$err$why");
	}
	return ($h->result(0), $out, $err);
}

sub settings
{
	my %s = (progress_interval => '0');
	$s{max_rate} = ('1MB', '4MB', '20MB', '0')[ int(rand(4)) ];
	$s{verify} = 'off' if rand() < 0.4;
	$s{pacing} = 'off' if rand() < 0.5;
	$s{prewarm} = 'off' if rand() < 0.3;
	$s{max_workers} = 1 + int(rand(3)) if rand() < 0.5;
	@s{qw(lock_wait on_blocker)} = ('20s', 'fail');
	$s{max_duration} = '5s' if rand() < 0.1;
	return '{' . join(', ', map { qq("$_": "$s{$_}") } sort keys %s) . '}';
}

# One call, as SQL; the second one, if any, waits for its end.
sub random_call
{
	my $what = rand();
	my $to = rand() < 0.5 ? 'regress_fast' : 'regress_slow';
	my $method = ('copy', 'copy', 'rebuild', 'auto')[ int(rand(4)) ];
	my $settings = settings();
	my $function = $what < 0.5 ? "move_indexes('" . $tables[ int(rand(@tables)) ] . "', '$to'"
	  : $what < 0.9 ? "move_indexes('" . $indexes[ int(rand(@indexes)) ] . "', '$to'"
	  : "move_tablespace_indexes('" . ($to eq 'regress_fast' ? 'regress_slow' : 'regress_fast') . "', '$to'";
	my $wait = rand() < 0.6;
	my $columns = $wait ? 'status, sqlstate, method, name, detail' : 'job';
	my $how = "method => '$method'";
	if (rand() < 0.4)
	{
		$function = rand() < 0.85 ? "move_table('" . $tables[ int(rand(@tables)) ] . "', '$to'"
			: "move_schema_tables('public', '$to', name_not_like => 'torture%'";
		$how = 'indexes => ' . ('true', 'false')[ int(rand(2)) ] . ', rehearse => ' . (rand() < 0.1 ? 'true' : 'false');
	}
	my $sql = "SELECT DISTINCT $columns FROM $function, $how, settings => '$settings'"
	  . ($wait ? '' : ', wait => false') . ')';
	return ($sql, $wait);
}

# Call until the file $stop exists.  Writes lines into $report: "row number
# status sqlstate method", "error number SQLSTATE message", "odd ..." with all of
# it for what no user should ever see.
sub run_mover
{
	my (%o) = @_;
	srand($o{seed} * 17 + $o{number});
	my (%rows, %errors, @odd, $calls);
	until (-e $o{stop})
	{
		my ($sql, $wait) = random_call();
		my ($rc, $out, $err) = quick_sql($o{connstr}, $sql, LONGEST);
		$calls++;
		if ($rc == 0 && !$wait && $out =~ /^(\d+)$/m)
		{
			my $job = $1;
			my $again;
			($rc, $again, my $more) = quick_sql($o{connstr}, "CALL wait_for_move($job, raise => false)", LONGEST);
			$err .= $more;
			(undef, $out, $more) = quick_sql($o{connstr},
				"SELECT status, sqlstate, method, name, message FROM index_mover_history WHERE job = $job");
		}
		push @odd, "no end within " . LONGEST . " s: $sql" if $rc == -1;
		foreach my $line (split /\n/, $out)
		{
			my ($status, $sqlstate, $method, $index, $detail) = split /\|/, $line;
			next unless defined $method;
			$rows{ join ' ', $status, $sqlstate || '-', $method || '-' }++;
			# Who builds concurrently waits for the snapshot of our caller, and we for
			# who builds concurrently: that has to end in 40P01.
			push @odd, $line
			  if ($sqlstate || '') ne '' && $sqlstate !~ $expected && $status ne 'skipped'
			  && ($sqlstate ne '40P01'
				|| ($detail // '') !~ /The move waits for process \d+, which waits, directly or indirectly, for the move/
				&& ($detail // '') !~ /The move waits, $indirectly that has called the move/);
		}
		while ($err =~ /(?:ERROR|FATAL):\s+(\w{5}): ([^\n]*)(?:\nDETAIL:\s+([^\n]*))?/g)
		{
			my ($sqlstate, $message, $detail) = ($1, $2, $3 // '');
			(my $short = $message) =~ s/"[^"]*"|\d+/../g;
			$errors{"$sqlstate $short"}++;
			# the same as above, when it is the caller who finds it first
			push @odd, "$sqlstate $message: $detail: $sql"
			  if $sqlstate !~ $expected
			  && ($sqlstate ne '40P01'
				|| $detail !~ /^The move waits, $indirectly that has called the move\.$/);
		}
		usleep(int(rand(200_000)));
		usleep(300_000) if $rc;
	}
	open(my $fh, '>', $o{report}) or die "$o{report}: $!";
	print $fh "calls $calls\n" if $calls;
	print $fh "row $rows{$_} $_\n" for sort keys %rows;
	print $fh "error $errors{$_} $_\n" for sort keys %errors;
	print $fh "odd $_\n" for @odd;
	close $fh;
	return;
}

1;
